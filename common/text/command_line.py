"""What the commands `coordinator`, `silo` and `semisilo` have in common: the version, two options, facts or text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from semisilo.common import __version__

__all__ = ["JsonOption", "LogFormatOption", "show_version", "tell"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]
LogFormatOption = Annotated[Literal["text", "json"], typer.Option(
    "--log-format", envvar="SEMISILO_LOG_FORMAT",
    help="json: one JSON object per line on standard error, and no live view.")]


def show_version(wanted: bool) -> None:
    """What --version does. Raises: typer.Exit."""
    if wanted:
        typer.echo(f"semisilo {__version__}")
        raise typer.Exit


def tell(as_json: bool, facts: Mapping[str, object], text: str) -> None:
    """Prints what a command has done: facts for a program, or text for a person."""
    if as_json:
        import json

        text = json.dumps(dict(facts), ensure_ascii=False, indent=2)
    typer.echo(text)
