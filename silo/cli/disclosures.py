"""`silo disclosures`.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(disclosures)


def disclosures(
    home: HomeOption = None,
    study: Annotated[str | None, typer.Option("--study", metavar="NAME", show_default=False,
                                              help="Only what belongs to this study.")] = None,
    since: Annotated[str | None, typer.Option(
        "--since", metavar="WHEN", show_default=False,
        help='Only what left since then: "7d", "12h", or a date such as "2026-11-21" (local time).')] = None,
    kind: Annotated[list[str] | None, typer.Option(
        "--kind", metavar="KIND", show_default=False,
        help="Only lines of this kind; may be given several times: update, abstention, refusal, announcement, check, "
             "enrolment, renewal, leaving, evaluation, model.")] = None,
    csv_: Annotated[Path | None, typer.Option(
        "--csv", metavar="FILE", show_default=False, help="Write them to FILE as CSV; - for standard output.")] = None,
    json_: JsonOption = False,
) -> None:
    """Shows what has left this site, newest last.

    What, when, how many bytes, and their digest. The record is HOME/disclosures.jsonl. A line
    is on disk before anything of what it tells of is sent. Works without the coordinator, and after `silo leave`.

    \b
    Examples:
      silo disclosures
      silo disclosures --since 7d --kind update
      silo disclosures --study first --csv first.csv
      silo disclosures --json | jq .totals

    \b
    Exit status: 0; 1 when a line of the record cannot be read, which is then named.
    """
    import time

    from semisilo.common.errors import UsageError
    from semisilo.common.text.describe import counted
    from semisilo.common.text.logs import printable
    from semisilo.silo.site.disclosure_table import as_csv, as_json, as_text, choose, since_unix
    from semisilo.silo.site.disclosures import read_lines
    from semisilo.silo.site.home import SiloHome

    folder = home_of(home)
    if not folder.is_dir():
        raise UsageError(f"{folder} holds no silo.", remedy="Say which one: silo disclosures --home DIR")
    path = SiloHome(folder).disclosures
    chosen = choose(read_lines(path), study=study, kinds=tuple(kind or ()),
                    since=None if since is None else since_unix(since, time.time()))
    if csv_ is not None and str(csv_) != "-":
        csv_.write_text(as_csv(chosen), encoding="utf-8")
        if not json_:
            typer.echo(f"{counted(len(chosen.lines), 'line')} {'is' if len(chosen.lines) == 1 else 'are'} in {csv_}.")
    elif csv_ is not None:
        if json_:
            raise UsageError("--csv - and --json both want standard output.", remedy="Name a file for one of them.")
        typer.echo(as_csv(chosen), nl=False)
    if json_:
        import json

        typer.echo(json.dumps(as_json(chosen, path=str(path)), ensure_ascii=False, indent=2))
    elif csv_ is None:
        typer.echo("\n".join(as_text(chosen)))
    for line in chosen.broken:
        typer.echo(f"{path}: line {line.number} cannot be read: {printable(line.reason)}", err=True)
    if chosen.broken:
        raise typer.Exit(1)
