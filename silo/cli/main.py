"""The command `silo`: what the hospital's engineer types. Each command loads, calls and prints.

Nothing heavy is imported before a command needs it, so that help, version and status answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from semisilo.common.config import parse_duration
from semisilo.common.text.cli_errors import clean_exit_on_termination, interrupt_on_termination, run_cli
from semisilo.common.text.command_line import JsonOption, LogFormatOption, show_version
from semisilo.silo.cli import check, data, disclosures, leave, model, move, page, peers, permit_model, studies
from semisilo.silo.cli.options import HomeOption, MetricsOption, NoLabelsOption, home_of

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Takes part in a federation: trains on this site's images, which never leave it.

    \b
    Enrol once, then join:
      silo enroll semisilo-invite-v1.eyJhIjoi...   the line from the coordinator's operator
      silo check                                   what works, what does not, and how to fix it
      silo join --data /scans                      waits, trains, sends updates; safe to stop and restart
      silo status                                  what it is doing, from another shell
      silo disclosures                             what has left this site
      silo studies                                 what this site has agreed to
      silo page                                    all of this in a browser
      silo move hub.example:8443                   the coordinator has another address
      silo leave                                   end the membership and clean up

    \b
    What may leave this site, how much a day and at what hours it works is written in silo.toml, in the silo's home
    folder.

    \b
    Exit status: 0 done; 1 failure; 2 wrong usage; 130 Ctrl-C; 143 SIGTERM, but 0 of join without --once.
    """)


@app.callback()
def _silo(version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True,
                                                help="Show the version and end.")] = False) -> None:
    pass


@app.command()
def enroll(
    line: Annotated[list[str], typer.Argument(
        metavar="LINE", help="The invitation line from the coordinator's operator, or - to read it from standard "
                             "input, so that it stays out of the shell's history.")],
    home: HomeOption = None,
    force: Annotated[bool, typer.Option("--force",
                                        help="Replace the identity of another silo here.")] = False,
    json_: JsonOption = False,
) -> None:
    """Makes this silo's key and gets its certificate.

    The private key is made here and never leaves. The line can be used once; the same command may be repeated if the
    connection broke. Stop `silo join` first if it runs here. A silo.toml with the defaults is written if there is none:
    read it.

    \b
    Examples:
      silo enroll semisilo-invite-v1.eyJhIjoi...
      silo enroll - < invitation.txt
      silo enroll semisilo-invite-v1.eyJhIjoi... --home /var/lib/semisilo
    """
    import asyncio
    import os
    import shlex
    import time

    from semisilo.common.errors import UsageError
    from semisilo.common.identity.certificates import utc_text
    from semisilo.common.storage.durable import write_durably
    from semisilo.silo.membership.enrollment import enroll as enroll_at
    from semisilo.silo.site.home import SiloHome, home_option
    from semisilo.silo.site.policy import policy_text

    folder = home_of(home)
    words = _typed_line() if line == ["-"] else " ".join(line)
    if line != ["-"] and os.path.isfile(words):  # False also for a line that is too long for a name
        raise UsageError(f"{words} is a file, and no invitation line.",
                         remedy=f"Have it read: silo enroll{home_option(folder)} - < {shlex.quote(words)}")
    identity = asyncio.run(enroll_at(words, folder, now=time.time(), force=force,
                                     on_trouble=lambda error: typer.echo(error.line(), err=True)))
    policy = SiloHome(folder).policy
    if written := not policy.exists():
        write_durably(policy, policy_text().encode())
    if json_:
        import json

        typer.echo(json.dumps({
            "silo": identity.silo, "federation": identity.federation, "address": identity.address, "home": str(folder),
            "certificate_until_unix": identity.not_after_unix, "renews_from_unix": identity.about.renew_unix,
            "policy": str(policy), "policy_written": written}, ensure_ascii=False, indent=2))
        return
    typer.echo(f"Enrolled as silo '{identity.silo}' of federation '{identity.federation}' at {identity.address}.")
    typer.echo(f"The certificate lasts until {utc_text(identity.not_after_unix)} and renews itself while "
               "`silo join` runs.")
    if written:
        typer.echo(f"What may leave this site is written in {policy}: read it.")
    option = home_option(folder)
    typer.echo(f"Next: silo check{option}, then: silo join{option} --data FOLDER")


def _typed_line() -> str:
    """The invitation from standard input: all of a pipe or file, one line of a terminal, where it is asked for."""
    if not sys.stdin.isatty():
        return sys.stdin.read()
    typer.echo("Paste the line from the coordinator's operator, then press Enter:", err=True)
    return sys.stdin.readline()


@app.command()
def join(
    data: Annotated[str | None, typer.Option(
        "--data", metavar="SOURCE", show_default=False,
        help="The images: a folder of images, a folder of class folders, one with the folders labelled/CLASS and "
             "unlabelled, a file.npz, or a named set such as digits. Default: [data] of silo.toml, else "
             "$SEMISILO_IMAGES, else the images of the last time.")] = None,
    labelled: Annotated[str | None, typer.Option(
        "--labelled", metavar="SOURCE", show_default=False,
        help="Labelled images that lie elsewhere: class folders, or a file.npz with labels. All of --data is then "
             "unlabelled. A study that has its labels at the coordinator alone drops all labels of this "
             "site.")] = None,
    test: Annotated[str | None, typer.Option(
        "--test", metavar="SOURCE", show_default=False,
        help="Labelled images that this site's own model is measured on, where a study does so; never trained "
             "on.")] = None,
    no_labels: NoLabelsOption = False,
    home: HomeOption = None,
    exit_when_finished: Annotated[bool, typer.Option(
        "--exit-when-finished", help="End with status 0 when the study is over, instead of waiting for the next "
                                     "one.")] = False,
    once: Annotated[bool, typer.Option(
        "--once", help="Take part in one study and end: for batch systems such as Slurm. Ends with status 3 when there "
                       "is none within --wait.")] = False,
    wait: Annotated[str, typer.Option(
        "--wait", metavar="DURATION", help="How long --once waits for a study to begin.")] = "10m",
    on_error: Annotated[Literal["stop", "skip", "report"] | None, typer.Option(
        "--on-error", show_default=False,
        help="At an image that cannot be read: stop, skip it and say so, or report: read everything, list all that is "
             "wrong here, then stop. Default: what silo.toml says, else stop."
        )] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log details of the connection as well.")] = False,
    log_format: LogFormatOption = "text",
    metrics: MetricsOption = None,
) -> None:
    """Takes part in the federation's studies until stopped.

    Waits for tasks, trains, sends updates, reconnects by itself. May be stopped (Ctrl-C) or killed at any time and
    started again: it goes on where it was. Only connections out are made, through the proxy of $https_proxy if set.

    \b
    Examples:
      silo join --data /scans
      silo join --data images.npz --on-error skip
      silo join --data /scans --labelled /scans-with-a-diagnosis
      silo join                                     the images of the last time
      silo join --data digits --exit-when-finished
      silo join --once --wait 30m                   in a batch job
      torchrun --standalone --nproc-per-node 4 --no-python silo join

    Under torchrun the processes train together, each on a GPU of its own, and are one silo.

    \b
    Exit status: 0 study over, or stopped by SIGTERM; 1 failure; 2 wrong usage; 130 Ctrl-C. With --once also 3 when
    there was no study (0 under torchrun), and 143, not 0, when SIGTERM has stopped it with the study under way.
    """
    once_seconds = None if not once else parse_duration(wait, where="--wait")
    with interrupt_on_termination() if once else clean_exit_on_termination():
        from semisilo.common.text.logs import set_up_logging

        set_up_logging(verbose=verbose, log_format=log_format)
        from semisilo.silo.join import join as join_federation

        raise typer.Exit(join_federation(
            home_of(home), data=data, labelled=labelled, test=test, no_labels=no_labels, on_error=on_error,
            exit_when_finished=exit_when_finished, once_seconds=once_seconds, metrics=metrics))


@app.command()
def status(
    home: HomeOption = None,
    json_: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Print nothing; exit status 0 while `silo join` runs here, "
                                                       "else 1. For health checks.")] = False,
) -> None:
    """Shows who this silo is and what its agent is doing.

    \b
    Examples:
      silo status
      silo status --json | jq .days_left
    """
    import time

    if check:
        from semisilo.silo.site.home import SiloHome

        raise typer.Exit(0 if SiloHome(home_of(home)).is_running() else 1)
    from semisilo.silo.monitoring.status import facts, lines

    found = facts(home_of(home), now=time.time())
    if json_:
        import json

        typer.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=2))
    else:
        from semisilo.common.text.wrapped import terminal_width

        typer.echo("\n".join(lines(found, now=time.time(), width=terminal_width())))


check.add_to(app)
data.add_to(app)
disclosures.add_to(app)
leave.add_to(app)
model.add_to(app)
move.add_to(app)
page.add_to(app)
peers.add_to(app)
permit_model.add_to(app)
studies.add_to(app)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_cli(app, name="silo"))


if __name__ == "__main__":
    main()
