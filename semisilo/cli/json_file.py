"""The option `--json FILE` of commands that work for long: looked at before they begin, written when they are done.

Tests: tests/test_keyboard.py.
"""

from __future__ import annotations

from pathlib import Path

import typer

from semisilo.common.text.command_line import check_out_file

__all__ = ["STANDARD_OUTPUT", "check_json_file", "write_json_file"]

STANDARD_OUTPUT = Path("-")


def check_json_file(path: Path | None) -> None:
    """Whether the result can be written, before it is worked for.

    Raises: UsageError where there is no such folder, or this user may not write there.
    """
    if path is not None and path != STANDARD_OUTPUT:
        check_out_file(path, "--json")


def write_json_file(text: str, path: Path | None) -> None:
    """Writes a result, to standard output where `path` says so; nothing for None. Raises: OSError."""
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    elif path is not None:
        from semisilo.common.storage.durable import naming  # late: most commands write no such file

        with naming(path):
            path.write_text(text, encoding="utf-8")
