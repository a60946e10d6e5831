"""The command `semisilo`: both sides on one machine. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from common import __version__
from common.cli_errors import run_cli

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Tries a whole federation on this machine. A real one has two commands: coordinator and silo.

    \b
    Examples:
      semisilo demo                     one coordinator and three silos, real processes, a minute or two
      semisilo demo --labels-per-class 2 --rounds 30
      semisilo demo --folder here       look at what a federation consists of
    """)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"semisilo {__version__}")
        raise typer.Exit


@app.callback()
def _semisilo(version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True,
                                                    help="Show the version and end.")] = False) -> None:
    pass


@app.command()
def demo(
    method: Annotated[str, typer.Option("--method", help="The method to train with.")] = "semifl",
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
                                               help="Write the result to FILE as JSON.")] = None,
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

    from semisilo.demo import DemoSettings, run_demo
    from semisilo.demo_display import ConsoleWatcher, show_result
    from semisilo.processes import StepFailed, interrupt_on_termination

    chosen = {"rounds": rounds, "labels_per_class": labels_per_class}
    settings = DemoSettings(method=method, seed=seed, silos=silos,
                            **{name: value for name, value in chosen.items() if value is not None})
    console = Console(highlight=False)
    try:
        with interrupt_on_termination():
            result = run_demo(settings, folder=folder, keep=keep, watcher=ConsoleWatcher(console))
    except StepFailed as error:
        if error.log_tail:
            typer.echo(error.log_tail, err=True)
        raise
    if json_ is not None:
        json_.write_text(result.to_json(), encoding="utf-8")
    show_result(console, result)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_cli(app, name="semisilo"))


if __name__ == "__main__":
    main()
