"""The commands `coordinator verify`, `audit` and `operator`: parse, call, print.

Tests: tests/coordinator/cli/test_audit.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.coordinator.cli.options import Folder, complete_studies

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(verify)
    app.command()(audit)
    app.command()(operator)
    app.command()(card)


def verify(folder: Folder = Path(),
           heads: Annotated[list[Path] | None, typer.Option(
               "--heads", metavar="FILE", help="What a silo has seen of the audit trail: heads.jsonl from its home "
                                               "folder; may be given several times.")] = None,
           as_json: JsonOption = False) -> None:
    """Check the audit trail: every event, the rows that events tell of, the last signed head, and heads of silos.

    Finds events that were altered or removed, and rounds, updates, certificates, silos and studies that differ from
    what the events say. That the end was cut off, or all of it rewritten, shows against what silos have kept: ask them
    for their heads.jsonl. Changes nothing; works while serve runs.

    \b
    Examples:
      coordinator verify
      coordinator verify --heads hospital-a/heads.jsonl --heads hospital-b/heads.jsonl

    \b
    Exit status: 0; 1 when something is wrong, one line each.
    """
    from semisilo.common.text.describe import counted
    from semisilo.common.text.logs import printable
    from semisilo.coordinator.federation.audit_check import verify as check
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.ledger.ledger import Ledger

    federation = open_federation(folder)
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        found = check(federation, ledger, tuple(heads or ()))
    if as_json:
        import json

        from semisilo.common.config import to_dict

        typer.echo(json.dumps(to_dict(found), indent=2, ensure_ascii=False))
    else:
        compared = f", {counted(found.silo_heads, 'head')} of silos compared" if heads else ""
        typer.echo(f"{counted(found.events, 'event')}, signed up to event {found.signed}{compared}: "
                   f"{counted(len(found.problems), 'problem') if found.problems else 'all as it was written'}.")
        for note in found.notes:
            typer.echo(f"  note: {printable(note, limit=1000)}")
        for problem in found.problems:
            typer.echo(f"  WRONG: {printable(problem, limit=1000)}", err=True)
    if found.problems:
        raise typer.Exit(1)


def audit(folder: Folder = Path(),
          as_format: Annotated[Literal["csv", "json"], typer.Option(
              "--format", help="csv for a spreadsheet; json keeps all that a check of the chain needs.")] = "csv",
          study: Annotated[str, typer.Option("--study", metavar="STUDY", autocompletion=complete_studies,
                                             help="Only events of this study.")] = "",
          since: Annotated[str, typer.Option("--since", metavar="WHEN", help='Only events since then: "7d", "12h", or '
                                             'a date such as "2026-11-21" (local time).')] = "",
          out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to FILE; standard output "
                                                                                       "by default, and for -.")
                      ] = None) -> None:
    """Write the audit trail: what happened when, and who did it. Times are UTC, with the zone.

    \b
    Examples:
      coordinator audit --since 30d -o audit.csv
      coordinator audit --format json -o audit.json     for silo disclosures --check --coordinator-export
    """
    import sys
    import time

    from semisilo.common.storage.durable import writing_text
    from semisilo.common.text.command_line import check_out_file, since_unix
    from semisilo.coordinator.federation.audit_export import export_trail
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.ledger.ledger import Ledger

    federation, now = open_federation(folder), time.time()
    out = None if out == Path("-") else out
    begin = since_unix(since, now) if since else 0.0  # before an earlier FILE is overwritten
    if out is not None:
        check_out_file(out, "--out")
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(contextlib.closing(Ledger(federation.ledger)))
        if study:
            ledger.study(study)
        target = sys.stdout if out is None else stack.enter_context(writing_text(out))
        target.writelines(export_trail(federation.name, ledger, form=as_format, study=study, now_unix=now,
                                       since_unix=begin))
    if out is not None:
        typer.echo(f"The audit trail is in {out}.")


def card(study: Annotated[str, typer.Argument(metavar="STUDY", autocompletion=complete_studies,
                                                help="Name of the study.")],
         folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Show the card of a study and who has signed it; exit status 1 when a signature is wrong.

    A study card says what the study asks of every silo from its first round to its last. Silos sign it before their
    first task, and refuse tasks that say something else. A study that changes has a new card, to be signed anew.

    \b
    Examples:
      coordinator card blood-cells
      coordinator card blood-cells --json
    """
    import json

    from semisilo.common.config import to_dict
    from semisilo.common.text.command_line import tell
    from semisilo.common.text.describe import counted, describe_moment
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.federation.study_cards import StudyCards
    from semisilo.coordinator.ledger.ledger import Ledger
    from semisilo.coordinator.ledger.oversight.study_cards import latest_card, signatures

    federation = open_federation(folder)
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        ledger.study(study)
        found = latest_card(ledger, study)
        if found is None:
            tell(as_json, {"study": study, "digest": None, "card": None, "wrong": [], "signatures": []},
                 f"Study {study} has no card yet: it is made when the study begins.")
            return
        digest = found.digest()
        signed = signatures(ledger, study, digest)
        wrong = StudyCards(ledger, federation=federation.name).wrong(study, digest)
    if as_json:
        typer.echo(json.dumps({"study": study, "digest": digest, "card": to_dict(found), "wrong": wrong, "signatures": [
            to_dict(each) for each in signed]}, indent=2, ensure_ascii=False))
    else:
        typer.echo(json.dumps(to_dict(found), indent=2, ensure_ascii=False))
        typer.echo(f"digest {digest}, signed by {counted(len(signed), 'silo')}")
        for each in signed:
            typer.echo(f"  {each.silo}: {'WRONG' if each.silo in wrong else 'right'}, {describe_moment(each.unix)}, key"
                       f" {each.identity.hex()[:16]}...")
    if wrong:
        raise typer.Exit(1)


def operator(action: Annotated[Literal["add", "list", "remove"], typer.Argument(metavar="ACTION",
                                                                            help="add, list or remove.")],
             name: Annotated[str, typer.Argument(metavar="NAME", help="Who, for example alice.")] = "",
             folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Give operators tokens of their own for the page, so that the audit trail says who did what.

    add prints the token once; the ledger keeps a hash of it. remove ends it at once. The page's own token goes on
    working, and stands in the audit trail as "page token": keep it for emergencies.

    \b
    Examples:
      coordinator operator add alice
      coordinator operator list
      coordinator operator remove alice
    """
    from semisilo.common.errors import UsageError
    from semisilo.common.text.command_line import tell
    from semisilo.common.text.describe import describe_moment
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.federation.folder import open_federation
    from semisilo.coordinator.ledger.oversight.operators import add_operator, operators, remove_operator

    if bool(name) != (action != "list"):
        raise UsageError("add and remove need a name, list takes none.",
                         remedy="For example: coordinator operator add alice")
    with acting_ledger(open_federation(folder)) as ledger:
        if action == "add":
            token = add_operator(ledger, name)
            tell(as_json, {"operator": name, "token": token}, token)
            if not as_json:
                typer.echo(f"This token of {name} is shown only now. It goes into the page: \"Sign in\", at the top"
                           " right.", err=True)
        elif action == "remove":
            remove_operator(ledger, name)
            tell(as_json, {"operator": name, "state": "removed"}, f"The token of {name} no longer works.")
        else:
            found = operators(ledger)
            tell(as_json, {"operators": [{"name": each.name, "added_unix": each.added_unix} for each in found]},
                 "\n".join(f"{each.name}  since {describe_moment(each.added_unix)}" for each in found)
                 or "No operator has a token of their own yet: coordinator operator add NAME")
