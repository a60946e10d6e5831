"""`silo studies`, `silo approve`, `silo decline`: what this site has agreed to.

Tests: tests/silo/cli/test_studies.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]

_StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study, as `silo studies` lists it.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(studies)
    app.command()(approve)
    app.command()(decline)


def studies(home: HomeOption = None,
            show: Annotated[str, typer.Option("--show", metavar="STUDY", show_default=False,
                                              help="The whole card of a study.")] = "",
            json_: JsonOption = False) -> None:
    """Lists studies and what this site has agreed to.

    A study card says what a study asks of every silo from its first round to its last: method, settings, network,
    privacy, what leaves. The silo signs it before its first task, and refuses every task that says something else.
    With [require] approval = true in silo.toml a person decides: silo approve STUDY.

    \b
    Examples:
      silo studies
      silo studies --show blood-cells
      silo studies --json
    """
    import json

    from semisilo.common.text.wrapped import terminal_width
    from semisilo.silo.site.home import SiloHome, StatusFile
    from semisilo.silo.study_cards.book import CardBook
    from semisilo.silo.study_cards.decision import find_card
    from semisilo.silo.study_cards.table import facts_of, lines_of, whole_card

    folder = _folder_of(home, "studies")
    book, works_on = CardBook(SiloHome(folder).cards), StatusFile.load(SiloHome(folder).status).works_on
    entries = [find_card(book, show)] if show else book.entries()
    if json_:
        typer.echo(json.dumps([facts_of(entry, works_on=works_on) for entry in entries], indent=2, ensure_ascii=False))
        return
    width = terminal_width()
    for line in (whole_card(entries[0], works_on=works_on, width=width) if show
                 else lines_of(entries, works_on=works_on, width=width)):
        typer.echo(line)


def approve(study: _StudyArgument, home: HomeOption = None, json_: JsonOption = False) -> None:
    """Approves a study that waits for a person.

    This silo signs its card, and takes its tasks. A running `silo join` continues automatically.

    \b
    Example:
      silo approve blood-cells
    """
    _decide(study, _folder_of(home, f"approve {study}"), approved=True, json_=json_)


def decline(study: _StudyArgument, home: HomeOption = None, json_: JsonOption = False) -> None:
    """Declines a study: its tasks are refused.

    What has left before stays where it is.

    \b
    Example:
      silo decline blood-cells
    """
    _decide(study, _folder_of(home, f"decline {study}"), approved=False, json_=json_)


def _folder_of(home: Path | None, command: str) -> Path:
    """Raises: UsageError where there is none."""
    from semisilo.common.errors import UsageError

    folder = home_of(home)
    if not folder.is_dir():
        raise UsageError(f"{folder} holds no silo.", remedy=f"Say which one: silo {command} --home DIR")
    return folder


def _decide(study: str, home: Path, *, approved: bool, json_: bool) -> None:
    import time

    from semisilo.common.process.account import account
    from semisilo.common.text.command_line import tell
    from semisilo.silo.site.home import SiloHome
    from semisilo.silo.study_cards.book import CardBook
    from semisilo.silo.study_cards.decision import decide
    from semisilo.silo.study_cards.table import facts_of

    book = CardBook(SiloHome(home).cards)
    entry = decide(book, study, approved=approved, by=account(), now_unix=time.time())
    done = {"approved": f"Study {study} is approved; this silo signs its card with its next task.",
            "signed": f"Study {study} is signed already.",
            "declined": f"Study {study} is declined; its tasks are refused."}
    tell(json_, facts_of(entry), done[entry.state])
