"""The command `semisilo`: both sides on one machine. Nothing heavy is imported before a command needs it.

Tests: tests/test_keyboard.py.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from semisilo.cli import new, predict, probe
from semisilo.cli.json_file import STANDARD_OUTPUT, check_json_file, write_json_file
from semisilo.common.text.cli_errors import Terminated, run_cli
from semisilo.common.text.command_line import show_version

__all__ = ["app", "main"]

class EngineChoice(StrEnum):
    """Where simulated silos train."""

    processes = "processes"
    process = "process"
    ray = "ray"


class DeviceChoice(StrEnum):
    """On what they train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


_JSON_FILE = "Write the result to FILE as JSON as well; with - to standard output, where nothing else is written then."

app = typer.Typer(
    no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Both sides on this machine: the demo, and studies with simulated silos. A real federation has two commands:
    coordinator and silo.

    \b
    Examples:
      semisilo demo                     one coordinator and three silos, real processes, a minute or two
      semisilo simulate study.toml      a hundred silos and more on this machine
      semisilo report runs/study        the report of a simulation again
      semisilo split study.toml --out parts      the same images as files, for real silos
      semisilo probe study.toml         what a site's own update would give away of its images
      semisilo predict MODEL SOURCE     an exported model on a folder of images
      semisilo new my-study             a folder to start from

    \b
    Exit status: 0 done; 1 failure; 2 wrong usage; 130 Ctrl-C; 143 SIGTERM.
    """)


@app.callback()
def _semisilo(version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True,
                                                    help="Show the version and end.")] = False) -> None:
    pass


@app.command()
def demo(
    method: Annotated[str, typer.Option("--method", help="The method to train with.")] = "self_training",
    seed: Annotated[int, typer.Option("--seed", help="Of the split of the images and of the study.")] = 1,
    silos: Annotated[int, typer.Option("--silos", min=1, max=64, help="How many silos.")] = 3,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, show_default=False,
                                               help="How many rounds; by default enough to see the gain.")] = None,
    labels_per_class: Annotated[int | None, typer.Option(
        "--labels-per-class", min=1, show_default=False,
        help="Labelled images of each digit at the coordinator; few by default.")] = None,
    folder: Annotated[Path | None, typer.Option(
        "--folder", metavar="DIR", show_default=False,
        help="Where to work: a new or empty folder, which stays. Default: a temporary one, of which only the report "
             "stays.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", show_default=False, dir_okay=False,
                                               allow_dash=True, help=_JSON_FILE)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
) -> None:
    """Runs a real federation on this machine: a coordinator with few labels, silos with unlabelled images.

    Every process is started with the commands that two institutions would type, over mutual TLS on localhost; at the
    end the federated model is compared with one trained on the labels alone. Nothing is left running, also after
    Ctrl-C.

    \b
    Examples:
      semisilo demo
      semisilo demo --silos 5 --rounds 20
      semisilo demo --folder here --json result.json
    """
    from rich.console import Console

    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.demo.demo import DemoSettings, run_demo
    from semisilo.demo.processes import StepFailed
    from semisilo.demo.terminal import ConsoleWatcher, show_result

    check_json_file(json_)
    chosen = {"rounds": rounds, "labels_per_class": labels_per_class}
    settings = DemoSettings(method=method, seed=seed, silos=silos,
                            **{name: value for name, value in chosen.items() if value is not None})
    console = Console(highlight=False, stderr=json_ == STANDARD_OUTPUT)
    try:
        with interrupt_on_termination():
            result = run_demo(settings, folder=folder, keep=keep, watcher=ConsoleWatcher(console))
    except StepFailed as error:
        if error.log_tail:
            typer.echo(error.log_tail, err=True)
        raise
    show_result(console, result)
    write_json_file(result.to_json(), json_)


TensorBoardOption = Annotated[bool, typer.Option(
    "--tensorboard", help="Write an event file for TensorBoard as well, into the simulation's folder tensorboard.")]
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", show_default=False,
                                           help="A study file with a table [simulation], or its folder.")]


@app.command()
def simulate(
    study: StudyFile,
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="DIR", show_default=False,
        help="Folder of this simulation; it stays. Default: runs/NAME here.")] = None,
    engine: Annotated[EngineChoice, typer.Option(
        "--engine", help="Where silos train: in several processes of this machine (on an accelerator in one), in this "
                         "one process, or on a Ray cluster. The bits are the same.")] = EngineChoice.processes,
    workers: Annotated[int | None, typer.Option(
        "--workers", min=1, show_default=False,
        help="Silos that train at a time. Default: one per processor while memory holds them; with --engine ray one "
             "per processor of the cluster, or per accelerator.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", show_default=False,
                                             help="In place of [study] seed: of the split and of the study.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, show_default=False,
                                                help="In place of [numerics] threads; other bits follow.")] = None,
    device: Annotated[DeviceChoice, typer.Option("--device", help="auto uses a GPU if there is one.")]
    = DeviceChoice.auto,
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", show_default=False, dir_okay=False,
                                               allow_dash=True, help=_JSON_FILE)] = None,
    tensorboard: TensorBoardOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the result only.")] = False,
) -> None:
    """Runs a study with simulated silos, or goes on with one that was interrupted.

    The coordinator's own engine and the silos' own trainers, codec and memory, without a network: the final model has
    the bits of a run with real silos. The folder holds the ledger, the report, metrics.csv and metrics.json.
    Where patients are known, none is in two of test, validation, labelled images and silos; one line says what that
    took.

    \b
    Examples:
      semisilo simulate study.toml
      semisilo simulate study.toml --seed 2 --out runs/second
      semisilo simulate study.toml --workers 4
      semisilo simulate study.toml --engine ray
    """
    from rich.console import Console

    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.logs import set_up_logging
    from semisilo.coordinator.federation.tracking_table import TrackingSettings, check_installed
    from semisilo.simulation.display import ConsoleWatcher, show_result
    from semisilo.simulation.output import write_output
    from semisilo.simulation.settings import name_of
    from semisilo.simulation.simulate import run

    check_json_file(json_)
    set_up_logging(quiet=True)
    console = Console(highlight=False, stderr=json_ == STANDARD_OUTPUT)
    if tensorboard:
        check_installed(TrackingSettings(tensorboard=True))
    try:
        with interrupt_on_termination():
            result = run(study, out=out or Path("runs") / name_of(study.absolute()), engine=engine.value,
                         device=device.value, seed=seed, threads=threads, workers=workers,
                         watcher=ConsoleWatcher(console, quiet=quiet))
            page = write_output(result, tensorboard=tensorboard, again=False)
    except (KeyboardInterrupt, Terminated):
        typer.echo("interrupted; the same command continues from here", err=True)
        raise
    show_result(console, result, page)
    write_json_file(result.to_json(), json_)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", show_default=False,
                                        help="Folder of a simulation, such as runs/NAME.")],
    loss_surface: Annotated[bool, typer.Option(
        "--loss-surface", help="Fed-SHVR: measure the loss around the newest model first, and plot it.")] = False,
    points: Annotated[int | None, typer.Option(
        "--points", min=3, show_default=False,
        help="With --loss-surface: points along each of two random directions; an odd number. Default: 11, which takes "
             "121 passes over all images.")] = None,
    span: Annotated[float | None, typer.Option(
        "--span", show_default=False,
        help="With --loss-surface: how far to go each way; 1, the default, moves every tensor by its own length.")]
    = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else on standard "
                                                         "output.")] = False,
    tensorboard: TensorBoardOption = False,
) -> None:
    """Writes the report, metrics.csv and metrics.json of a simulation again, also while it runs or after it failed.

    The page shows accuracy, bytes and label ratio by round, and whatever the study has measured: classes of the
    pseudo-labels and how many are right, recall of every class, local accuracy, what is forgotten, the stationarity
    gap, the numbers of the method. With --loss-surface it gains the loss around a model of Fed-SHVR, with and without
    the confidence penalty; it stays in RUN/loss_surface.json and in later reports of the same model.

    \b
    Examples:
      semisilo report runs/study
      semisilo report runs/study --loss-surface
      semisilo report runs/study --loss-surface --points 21 --span 0.5
    """
    from rich.console import Console

    from semisilo.common.errors import UsageError
    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.simulation.display import show_result
    from semisilo.simulation.folder import SimulationFolder
    from semisilo.simulation.output import report as write_report

    console = Console(highlight=False, stderr=as_json)
    if not loss_surface and (points is not None or span is not None):
        raise UsageError("--points and --span have no effect without --loss-surface.",
                         remedy="Add --loss-surface, or leave them out.")
    with interrupt_on_termination():
        if loss_surface:
            from semisilo.simulation.surface import measure_surface

            with progress_bar(console) as progress:
                measure_surface(SimulationFolder(run.absolute()), points=11 if points is None else points,
                                span=1.0 if span is None else span, progress=progress)
        result, page = write_report(run, tensorboard=tensorboard)
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        show_result(console, result, page)


@app.command()
def split(
    study: StudyFile,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", show_default=False,
                                      help="Where the parts go: a new or empty folder.")],
    seed: Annotated[int | None, typer.Option("--seed", show_default=False,
                                             help="In place of [study] seed: of the split and of the study.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Deals the images of a simulated study and writes every participant's part, for real silos.

    DIR/coordinator is the study's folder for `studies/NAME` of a federation, DIR/silos/NAME.npz what a silo joins
    with, DIR/manifest.json says what is in them. The same file and seed give the same bytes on every machine, and
    `semisilo simulate` deals the same images. Where patients are known, none is in two parts.

    \b
    Examples:
      semisilo split study.toml --out parts
    """
    from semisilo.simulation.output import split_study

    lines = split_study(study, out=out, seed=seed)
    typer.echo((out / "manifest.json").read_text(encoding="utf-8").rstrip() if as_json else "\n".join(lines))


probe.add_to(app)
predict.add_to(app)
new.add_to(app)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_cli(app, name="semisilo"))


if __name__ == "__main__":
    main()
