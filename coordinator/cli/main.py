"""The command `coordinator`: parse, call, print."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.common.errors import UsageError
from semisilo.common.text.cli_errors import clean_exit_on_termination, interrupt_on_termination, run_cli
from semisilo.common.text.command_line import JsonOption, LogFormatOption, json_lines, show_version, tell
from semisilo.coordinator.cli import audit, backup, data, export, models, operate, track
from semisilo.coordinator.cli.confirm import sure
from semisilo.coordinator.cli.options import Folder, SiloName, StudyFileName, StudyName

__all__ = ["main"]

app = typer.Typer(
    name="coordinator", no_args_is_help=True, add_completion=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Trains one image model across silos that keep their images.\n\n"
         "\b\nA first federation:\n"
         "  coordinator init lung --address hub.example:8443\n"
         "  cd lung && nano studies/first/study.toml\n"
         "  coordinator serve\n"
         "  coordinator invite hospital-a     in another shell; send the line to the hospital\n"
         "  coordinator status\n"
         "  coordinator report first\n\n"
         "Exit status: 0 done; 1 failure; 2 wrong usage; 130 Ctrl-C; 143 SIGTERM, but 0 of serve.")

ScenarioOption = Annotated[Literal["labels-at-coordinator", "labels-at-silo", "labels-at-both"], typer.Option(
    "--scenario", help="Where the labelled images are; decides what stands in the study file. labels-at-both: at the "
                       "coordinator, and a few more at some silos.")]


@app.callback()
def _common(version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True,
                                                  help="Print the version and exit.")] = False) -> None:
    """Options of every command."""


_THIS_MACHINE = "localhost:8443"


@app.command()
def init(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the federation: lower-case letters, "
                                                            "digits, hyphens.")],
         address: Annotated[str, typer.Option(help="host:port that silos will connect to; the next port is used for "
                                                   "enrollment.")] = _THIS_MACHINE,
         folder: Annotated[Path | None, typer.Option("--folder", "-C", help="Where to make it; ./NAME by default.")]
         = None, scenario: ScenarioOption = "labels-at-coordinator",
         if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing when the folder is this federation "
                                                  "already; for scripts.")] = False,
         as_json: JsonOption = False) -> None:
    """Make a federation folder with its own certificate authority and a first study.

    Example: coordinator init lung-federation --address hub.example:8443
    """
    import time

    from semisilo.coordinator.federation.authority import (
        create_authority,
        ensure_coordinator_certificate,
        read_authority_file,
    )
    from semisilo.coordinator.federation.folder import new_federation, open_federation
    from semisilo.coordinator.ledger.ledger import Ledger
    from semisilo.coordinator.studies.queue import create_study

    federation_folder = Path(name) if folder is None else folder
    if if_missing and (federation_folder / "federation.toml").exists():
        if (known := open_federation(federation_folder).name) != name:
            raise UsageError(f"{federation_folder} is the federation '{known}'.", remedy="Name another folder.")
        read_authority_file(federation_folder / "authority" / "ca.pem")  # half of one is none
        facts = {"federation": name, "folder": str(federation_folder), "made": False}
        tell(as_json, facts, f"Federation {name} is in {federation_folder} already.")
        return
    with new_federation(federation_folder, name=name, address=address) as federation:
        create_authority(federation.authority, name, now=time.time())
        ensure_coordinator_certificate(federation.authority, time.time())
        Ledger(federation.ledger).close()
        study = create_study(federation, "first", scenario=scenario)
    enrollment = federation.config.address.enrollment_address
    facts = {"federation": name, "folder": str(federation.folder), "made": True, "address": address,
             "enrollment_address": enrollment, "authority": str(federation.authority), "study": str(study)}
    here = f"                      only silos on this machine can: for others write [address] public =" \
           f" \"HOST:PORT\" into {federation.folder / 'federation.toml'}\n" if address == _THIS_MACHINE else ""
    tell(as_json, facts, f"Federation {name} is ready in {federation.folder}\n"
               f"  silos connect to    {address} (enrollment: {enrollment})\n{here}"
               f"  keep secret         {federation.authority} (anyone who has it can let silos in)\n\n"
               f"Next:\n"
               f"  edit    {study}\n"
               f"  run     coordinator serve --folder {federation_folder}\n"
               f"  invite  coordinator invite hospital-a --folder {federation_folder}")


@app.command()
def invite(silo: Annotated[str, typer.Argument(metavar="SILO", help="Name of the silo: lower-case letters, digits, "
                                                              "hyphens.")],
           folder: Folder = Path(),
           life: Annotated[str, typer.Option(help='How long the line can be used, for example "2h"; the setting '
                                                  "invitation_life by default.")] = "",
           as_json: JsonOption = False) -> None:
    """Print one line for a silo: address, one-time token and the authority's certificate.

    Send it over a channel that you trust; it works once, as soon as it is printed where `coordinator serve` runs: this
    command waits until the port for it listens. A new line for the same silo replaces the one before, and,
    once used, ends the silo's earlier certificates. Example: coordinator invite hospital-a
    """
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.federation import operate
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.rounds.live_file import wait_for_enrollment

    federation = open_federation(folder)
    address = federation.config.address
    with acting_ledger(federation) as ledger:
        made = operate.invite(federation, ledger, silo, life=life, origin="command")
    enrollment = wait_for_enrollment(federation.live)
    tell(as_json, {"silo": silo, "line": made.line, "address": address.public,
                   "enrollment_address": address.enrollment_address, "expires_unix": made.expires_unix,
                   "enrollment": enrollment}, made.line)
    if enrollment == "shut":
        typer.echo("The line is right, but `coordinator serve` does not let silos in yet: its log says why. It goes on"
                   " trying.", err=True)
    elif sys.stdout.isatty() and not as_json:
        running = "" if enrollment == "open" else "'coordinator serve' must run for that, "
        typer.echo(f"\nSend this line to {silo}; there: silo enroll LINE\n"
                   f"{running or 'The coordinator is '}reachable at {address.enrollment_address}.", err=True)


@app.command()
def revoke(silo: SiloName, folder: Folder = Path(),
           yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
           as_json: JsonOption = False) -> None:
    """End a silo's membership at once; what is in the model stays.

    Works at the silo's next call, and ends one in flight within seconds. An update of the open phase is left out.
    `coordinator invite NAME` lets it back in.
    `coordinator set-aside NAME` only leaves it out for a while.
    Examples: coordinator revoke hospital-a; coordinator revoke hospital-a --yes
    """
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.federation import operate
    from semisilo.coordinator.federation.folder import open_federation

    with acting_ledger(open_federation(folder)) as ledger:
        operate.check_known(ledger, silo)
        if not yes:
            sure("coordinator revoke", f"Revoke silo {silo}? Its certificate ends now; to come back it needs a new"
                 " invitation.", before="a membership ends", otherwise="Not revoked.")
        operate.revoke(ledger, silo, origin="command")
    tell(as_json, {"silo": silo, "state": "revoked"}, f"Silo {silo} is revoked.")


@app.command()
def new(study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.")], folder: Folder = Path(),
        scenario: ScenarioOption = "labels-at-coordinator", as_json: JsonOption = False) -> None:
    """Make a study file to edit. Example: coordinator new second --scenario labels-at-silo"""
    from semisilo.coordinator.federation.folder import folder_option, open_federation
    from semisilo.coordinator.studies.queue import create_study

    path = create_study(open_federation(folder), study, scenario=scenario)
    tell(as_json, {"study": study, "path": str(path)}, f"Edit {path}, then: coordinator queue {study}"
                                                              f"{folder_option(folder)}")


@app.command()
def queue(study: StudyFileName, folder: Folder = Path(),
          no_images: Annotated[bool, typer.Option("--no-images", help="Check the file alone: where reading all images "
                                                                      "takes long, or they come later.")] = False,
          check: Annotated[bool, typer.Option("--check", help="Check only, and queue nothing.")] = False,
          as_json: JsonOption = False) -> None:
    """Check a study and put it in the queue of the running coordinator.

    Refuses what `serve` would refuse when it opens the study, in the same words: the file, network and weights, images
    and classes, images in two sets. Reads all of the coordinator's images for that, and trains nothing.

    `coordinator serve` also queues new studies when it starts.

    \b
    Examples:
      coordinator queue second
      coordinator queue second --no-images
      coordinator queue second --check
    """
    from semisilo.common.text.describe import counted
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.cli.checking import check_images
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.studies.queue import queue_study

    federation = open_federation(folder)
    with interrupt_on_termination(), acting_ledger(federation) as ledger, progress_bar() as progress:
        checked = check_images(federation, study, progress=progress)
        config = queue_study(federation, ledger, study, only_check=check, **({} if no_images else {"check": checked}))
    facts = {"study": study, "state": "checked" if check else "queued", "method": config.method.name,
             "rounds": config.study.rounds, "images_checked": not no_images}
    tell(as_json, facts, f"Study {study} {'can be' if check else 'is'} queued: {config.method.name},"
                         f" {counted(config.study.rounds, 'round')}.")


@app.command()
def serve(folder: Folder = Path(),
          exit_when_finished: Annotated[bool, typer.Option("--exit-when-finished",
                                                           help="End when no study is left in the queue.")] = False,
          verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
          log_format: LogFormatOption = "text",
          page: Annotated[str | None, typer.Option("--page", metavar="HOST:PORT", envvar="SEMISILO_PAGE",
                                                   help="Where the operator page listens, instead of [page] listen "
                                                        "of federation.toml; '' for no page. For containers.")] = None,
          ) -> None:
    """Serve silos and run the queued studies, one after another.

    Safe to kill and start again at any moment: the study goes on where it was and ends with the same model.
    """
    with clean_exit_on_termination():
        import asyncio

        from rich.console import Console

        from semisilo.common.text.logs import set_up_logging

        set_up_logging(verbose=verbose, log_format=log_format)  # before gRPC, which looks once how much it should say

        from semisilo.coordinator.federation.folder import open_federation, with_page_at
        from semisilo.coordinator.serve import serve as run

        federation = open_federation(folder)
        if page is not None:
            federation = with_page_at(federation, page)
        console = Console(stderr=True, force_terminal=False if log_format == "json" else None)  # no live view in a log
        raise typer.Exit(asyncio.run(run(federation, exit_when_finished=exit_when_finished, console=console)))


@app.command()
def status(folder: Folder = Path(),
           as_json: JsonOption = False,
           check: Annotated[bool, typer.Option("--check", help="Print nothing; exit status 0 while `serve` runs here, "
                                                              "else 1. For health checks.")] = False) -> None:
    """Show studies, silos and the current round; works while `serve` runs and when it does not."""
    from semisilo.common.config import to_dict
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.ledger.ledger import Ledger
    from semisilo.coordinator.monitoring.status import gather
    from semisilo.coordinator.rounds.live_file import read

    federation = open_federation(folder)
    if check:
        raise typer.Exit(0 if read(federation.live) is not None or federation.silenced() else 1)
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        facts = gather(federation, ledger, read(federation.live))
    if as_json:
        typer.echo(json_lines(to_dict(facts)))
        return
    from rich.console import Console

    from semisilo.coordinator.cli.status import render

    render(Console(), facts)


@app.command()
def report(study: StudyName = "",
           folder: Folder = Path(),
           out: Annotated[Path | None, typer.Option(help="Folder for the page and the plots; "
                                                         "studies/STUDY/report by default.")] = None,
           as_json: JsonOption = False) -> None:
    """Write a self-contained HTML page and PNG plots: the study's measure by round and by bytes, and the cost."""
    from semisilo.coordinator.federation.folder import folder_option, open_federation
    from semisilo.coordinator.ledger.ledger import Ledger
    from semisilo.coordinator.report.report import write_report

    federation = open_federation(folder)
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder.", remedy="Name a folder for the page and the plots.")
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        name = study
        if not name:
            known = ledger.studies()
            if not known:
                raise UsageError("There is no study to report on.",
                                 remedy=f"Run one first: coordinator serve{folder_option(folder)}.")
            name = known[-1].name
        page = write_report(federation, ledger, name, out or federation.studies / ledger.study(name).name / "report")
    tell(as_json, {"study": name, "page": str(page)}, f"Report: {page}")


audit.add_to(app)
backup.add_to(app)
data.add_to(app)
operate.add_to(app)
export.add_to(app)
models.add_to(app)
track.add_to(app)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_cli(app, name="coordinator"))


if __name__ == "__main__":
    main()
