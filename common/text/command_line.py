"""What the commands `coordinator`, `silo` and `semisilo` have in common: the version, options, facts or text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.common import __version__
from semisilo.common.config import parse_duration
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.text.logs import printable

__all__ = ["JsonOption", "LogFormatOption", "check_out_file", "json_lines", "show_version", "since_unix", "tell"]

_DURATION = re.compile(r"\d+(\.\d+)?(s|m|h|d)")
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


def check_out_file(path: Path, option: str) -> None:
    """Whether a file can be written, before it is worked for.

    Args:
        option: that names it, for the error.
    Raises: UsageError where there is no such folder, or this user may not write there.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}.",
                         remedy="Make it, or choose another FILE.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {path}: cannot be written.", remedy="Choose another FILE.")


def json_lines(facts: Mapping[str, object]) -> str:
    """Facts as JSON, a line for each field and for each entry of a list. With an indent everywhere json.dumps takes ten
    times as long, which a person notices where there are a thousand silos."""
    import json

    def lines(value: object) -> str:
        if not isinstance(value, list) or not value:
            return json.dumps(value)
        return "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"

    return "{\n  " + ",\n  ".join(f"{json.dumps(name)}: {lines(value)}" for name, value in facts.items()) + "\n}"


def since_unix(text: str, now_unix: float) -> float:
    """The moment of "7d", "12h", "2026-11-21" or "2026-11-21 14:30" (in local time), Unix seconds.

    Raises: UsageError.
    """
    try:
        if _DURATION.fullmatch(text.strip()):
            return now_unix - parse_duration(text.strip())
        moment = datetime.fromisoformat(text.strip())
        return moment.timestamp()
    except (ValueError, BadConfiguration, OverflowError):
        raise UsageError(f"--since: {printable(text, limit=60)!r} is neither a time span nor a date.",
                         remedy='Write for example "7d", "12h" or "2026-11-21".') from None
