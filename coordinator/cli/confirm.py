"""The question before a command that cannot be taken back; `--yes` answers it for scripts.

Tests: tests/coordinator/cli/test_operate.py.
"""

from __future__ import annotations

import sys

import typer

from semisilo.common.errors import UsageError

__all__ = ["sure"]


def sure(command: str, question: str, *, before: str, otherwise: str) -> None:
    """Asks on the terminal, and ends the command with status 1 where the answer is not yes.

    Args:
        command: as it was typed, such as "coordinator stop".
        before: before what it asks, for whoever cannot be asked.
        otherwise: what to say where the answer is no.
    Raises: UsageError where nobody can answer; typer.Abort at Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks before {before}, and nobody can answer here.", remedy="Add --yes.")
    try:
        is_sure = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        typer.echo(f"\n{otherwise}", err=True)
        raise
    if not is_sure:
        typer.echo(otherwise, err=True)
        raise typer.Exit(1)
