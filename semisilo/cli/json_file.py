"""The option `--json FILE` of commands that work for long: looked at before they begin, written when they are done.

Tests: tests/test_keyboard.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import typer

from semisilo.common.errors import UsageError

__all__ = ["STANDARD_OUTPUT", "check_json_file", "write_json_file"]

STANDARD_OUTPUT = Path("-")


def check_json_file(path: Path | None) -> None:
    """Whether the result can be written, before it is worked for.

    Raises: UsageError where there is no such folder, or this user may not write there.
    """
    if path is None or path == STANDARD_OUTPUT:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {path.parent}.", remedy="Make it, or choose another FILE.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"--json {path}: cannot be written.", remedy="Choose another FILE.")


def write_json_file(text: str, path: Path | None) -> None:
    """Writes a result, to standard output where `path` says so; nothing for None. Raises: OSError."""
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    elif path is not None:
        path.write_text(text, encoding="utf-8")
