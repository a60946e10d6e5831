"""`silo leave`.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(leave)


def leave(
    home: HomeOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    offline: Annotated[bool, typer.Option(
        "--offline", help="Clean up here only, without the coordinator: when it is gone, or this certificate has "
                          "expired. Its operator should revoke the silo then.")] = False,
    json_: JsonOption = False,
) -> None:
    """Leaves the federation and removes its keys and caches here.

    Tells the coordinator, then removes key, certificate, caches and memory. silo.toml and the records of what left and
    what was asked stay. Tasks that are open are cancelled; what this silo has contributed stays in the model. Stop
    `silo join` first. An invitation lets the silo back in.

    \b
    Examples:
      silo leave
      silo leave --yes --json
      silo leave --offline                          the coordinator is gone for good
    """
    import json
    from dataclasses import asdict

    from semisilo.common.errors import UsageError
    from semisilo.common.identity.certificates import utc_text
    from semisilo.common.text.logs import set_up_logging
    from semisilo.common.text.wrapped import fitted, terminal_width
    from semisilo.silo.membership.leaving import leave as leave_from

    set_up_logging()

    def confirm(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError("silo leave asks before it removes anything, and nobody can answer here.",
                             remedy="Add --yes.")
        return typer.confirm(question, err=True)

    done = leave_from(home_of(home), offline=offline, confirm=confirm)
    if done is None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)
    if json_:
        typer.echo(json.dumps(asdict(done), ensure_ascii=False, indent=2))
        return
    whom = f"Silo '{done.silo}' has left federation '{done.federation}'" if done.silo else "The silo has left"
    when = f" on {utc_text(done.left_unix)}" if done.left_unix is not None else ""
    for line in (f"{whom}{when}.", done.note, f"Removed: {', '.join(done.removed) or 'nothing'}.",
                 f"Kept: {', '.join(done.kept) or 'nothing'}."):
        if line:
            typer.echo("\n".join(fitted(line, terminal_width())))
