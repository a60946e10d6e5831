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
             "enrolment, renewal, leaving, evaluation, model, secure_step, study_card.")] = None,
    csv_: Annotated[Path | None, typer.Option(
        "--csv", metavar="FILE", show_default=False, help="Write them to FILE as CSV; - for standard output.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check instead what this silo has seen of the coordinator's "
                                                        "audit trail: HOME/heads.jsonl.")] = False,
    coordinator_export: Annotated[Path | None, typer.Option(
        "--coordinator-export", metavar="FILE", show_default=False,
        help="With --check: also against the whole trail, from `coordinator audit --format json`.")] = None,
    json_: JsonOption = False,
) -> None:
    """Shows what has left this site, newest last.

    What, when, how many bytes, and their digest. The record is HOME/disclosures.jsonl. A line
    is on disk before anything of what it tells of is sent. Works without the coordinator, and after `silo leave`.

    With --check it looks at the signed heads of the coordinator's audit trail that came with tasks: a trail that was
    cut off or rewritten contradicts them. Two heads that do stay in HOME/heads.jsonl, signed: a proof.

    \b
    Examples:
      silo disclosures
      silo disclosures --since 7d --kind update
      silo disclosures --study first --csv first.csv
      silo disclosures --json | jq .totals
      silo disclosures --check --coordinator-export audit.json

    \b
    Exit status: 0; 1 when a line of the record cannot be read, which is then named, or the check finds something.
    """
    import time

    from semisilo.common.errors import UsageError
    from semisilo.common.storage.durable import naming
    from semisilo.common.text.command_line import check_out_file, since_unix
    from semisilo.common.text.describe import counted
    from semisilo.common.text.logs import printable
    from semisilo.silo.site.disclosure_table import as_csv, as_json, as_text, choose
    from semisilo.silo.site.disclosures import read_lines
    from semisilo.silo.site.home import SiloHome

    folder = home_of(home)
    if not folder.is_dir():
        raise UsageError(f"{folder} holds no silo.", remedy="Say which one: silo disclosures --home DIR")
    if check:
        _check(folder, coordinator_export, as_json=json_)
        return
    if coordinator_export is not None:
        raise UsageError("--coordinator-export belongs to --check.", remedy="Add --check.")
    path = SiloHome(folder).disclosures
    chosen = choose(read_lines(path), study=study, kinds=tuple(kind or ()),
                    since=None if since is None else since_unix(since, time.time()))
    if csv_ is not None and str(csv_) != "-":
        check_out_file(csv_, "--csv")
        with naming(csv_):
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
        from semisilo.common.text.wrapped import terminal_width

        typer.echo("\n".join(as_text(chosen, width=terminal_width())))
    for line in chosen.broken:
        typer.echo(f"{path}: line {line.number} cannot be read: {printable(line.reason)}", err=True)
    if chosen.broken:
        raise typer.Exit(1)


def _check(folder: Path, export: Path | None, *, as_json: bool) -> None:
    from semisilo.common.text.logs import printable
    from semisilo.silo.site.trail_check import check_trail

    found = check_trail(folder, export)
    if as_json:
        import json

        from semisilo.common.config import to_dict

        typer.echo(json.dumps(to_dict(found), ensure_ascii=False, indent=2))
    else:
        from semisilo.common.text.wrapped import fitted, terminal_width

        for line in (found.text, *(f"  note: {printable(note, limit=1000)}" for note in found.notes)):
            typer.echo("\n".join(fitted(line, terminal_width())))
        for problem in found.problems:
            typer.echo(f"  WRONG: {printable(problem, limit=1000)}", err=True)
    if found.problems:
        raise typer.Exit(1)
