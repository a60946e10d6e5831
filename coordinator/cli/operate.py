"""Commands with which an operator steers a study, and the one for the operator page."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semisilo.common.text.command_line import JsonOption, tell
from semisilo.coordinator.cli.confirm import sure
from semisilo.coordinator.cli.options import Folder, RunningStudyName, SiloName, complete_studies

if TYPE_CHECKING:
    from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `coordinator`."""
    for command in (pause, resume, stop, extend, rollback, note, set_aside, take_back, page):
        app.command()(command)


def pause(study: RunningStudyName = "", folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Pause a study: silos get no new task until it is resumed; answers are still taken.

    What the coordinator computes at the moment is finished first. The deadline of the round stands still. A pause
    survives restarts.

    Example: coordinator pause
    """
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        row = operate.pause(ledger, study, origin="command")
    tell(as_json, {"study": row.name, "state": str(row.state)},
         f"Study {row.name} is paused. Continue with: coordinator resume {row.name}")


def resume(study: RunningStudyName = "", folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Go on with a paused study; its deadline moves on by the length of the pause. Example: coordinator resume"""
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        row = operate.resume(ledger, study, origin="command")
    tell(as_json, {"study": row.name, "state": str(row.state)}, f"Study {row.name} goes on: {row.state}.")


def stop(study: RunningStudyName = "", folder: Folder = Path(),
         yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
         as_json: JsonOption = False) -> None:
    """End a study: silos give up within seconds; the model handed over so far is written and stays.

    `coordinator queue STUDY` goes on from the last committed round later: the round that is open now is given up, and
    done again then. Behind masks (secure aggregation) it is not, and counts as one of the study's rounds, since a silo
    masks an update of a round once.

    Examples: coordinator stop; coordinator stop first --yes
    """
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        row = operate.running_study(ledger, study)
        if not yes:
            sure("coordinator stop", f"Stop study {row.name} ({row.state})? The open round is given up.",
                 before="it ends a study", otherwise="Not stopped.")
        row = operate.stop(ledger, row.name, origin="command")
    tell(as_json, {"study": row.name, "state": str(row.state)},
         f"Study {row.name} is stopped. The model that it hands over: "
         f"{folder.resolve() / 'studies' / row.name / 'model.safetensors'} (coordinator serve writes it)")


def note(study: Annotated[str, typer.Argument(metavar="STUDY", help="Which study.", autocompletion=complete_studies)],
         text: Annotated[str, typer.Argument(metavar="TEXT", help="One line, at most 1000 characters.")],
         folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Put a note beside a study; page, report and audit trail show it, with your name and the time, for good.

    Example: coordinator note first "hospital-a has a new scanner since 3 May"
    """
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        name = operate.note(ledger, study, text, origin="command")
    tell(as_json, {"study": name, "note": text.strip()}, f"Noted beside study {name}.")


def extend(duration: Annotated[str, typer.Argument(metavar="DURATION", help='How much longer silos have, for example '
                                                                            '"30m" or "2h".')],
           study: RunningStudyName = "", folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Move the deadline of the open phase on, and the round's limit where it would come before.

    Example: coordinator extend 30m
    """
    import time

    from semisilo.common.config import parse_duration
    from semisilo.common.text.describe import describe_seconds
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        phase = operate.extend(ledger, parse_duration(duration, where="DURATION"), study, origin="command")
    tell(as_json, {"study": phase.study, "round": phase.round, "phase": phase.name,
                   "deadline_unix": phase.deadline_unix, "limit_unix": phase.limit_unix},
         f"Round {phase.round} of {phase.study}: phase {phase.name} ends in "
         f"{describe_seconds(phase.deadline_unix - time.time())}.")


def rollback(study: Annotated[str, typer.Argument(metavar="STUDY", autocompletion=complete_studies,
                                                   help="Name of the study.")],
             to: Annotated[int, typer.Option("--to", metavar="ROUND", help="The round that becomes the last one.")],
             reason: Annotated[str, typer.Option(help="Why, for the audit trail, page and report.")] = "",
             folder: Folder = Path(), yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
             as_json: JsonOption = False) -> None:
    """Go back to an earlier round of a study that is paused or over, as when a silo has spoilt those after it.

    The study is queued, and `coordinator serve` trains on from that round. The rounds after it no longer count, neither
    for model, numbers, page, report and export nor for what silos remember; they can still be read, with who has gone
    back, when and why. What they have cost stays in the study's cost. Rounds whose files are gone cannot be gone back
    to: the line then says which can.

    \b
    Examples:
      coordinator pause first
      coordinator rollback first --to 12 --reason "hospital-b sent noise"
      coordinator set-aside hospital-b --reason "noise since round 13"
    """
    from semisilo.common.process.account import account
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.federation import operate
    from semisilo.coordinator.federation.folder import open_federation

    federation = open_federation(folder)
    with acting_ledger(federation) as ledger:
        row = ledger.study(study)
        last = ledger.last_round(row.name)
        if not yes:
            rounds = f"rounds {to + 1} to {last.number}" if last is not None and last.number > to else "later rounds"
            sure("coordinator rollback", f"Go back to round {to} of study {row.name} ({row.state})? Its {rounds} no"
                 " longer count.", before="a study goes back", otherwise="Not gone back.")
        found = operate.rollback(ledger, row.name, to, study_folder=federation.studies / row.name, reason=reason,
                                 operator=account(), origin="command")
    exports = operate.exports_of_gone_rounds(federation.studies / row.name, to)
    stay = f" Exports of rounds that are gone stay in {federation.studies / row.name}: {', '.join(exports)}." \
        if exports else ""
    tell(as_json, {"study": study, "state": "queued", "round": found.to_round, "exports_of_gone_rounds": exports,
                   "gone": [each.number for each in found.rounds], "reason": found.reason},
         f"Study {study} {found.text}. It is queued: coordinator serve trains on from there.{stay}")


def set_aside(silo: SiloName, reason: Annotated[str, typer.Option(help="Why; the silo reads it.")] = "",
              folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Leave a silo out until it is taken back: it keeps its certificate and may call, but is asked nothing.

    In effect at once: a task that it works on is closed, and no round waits for it or counts it. Updates that were
    folded before stay in the model; `coordinator rollback` goes back to a round before them.

    Example: coordinator set-aside hospital-b --reason "its updates stand out since round 13"
    """
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        operate.set_aside(ledger, silo, reason=reason, origin="command")
    tell(as_json, {"silo": silo, "state": "set aside", "reason": reason},
         f"Silo {silo} is set aside. Let it take part again: coordinator take-back {silo}")


def take_back(silo: SiloName, folder: Folder = Path(), as_json: JsonOption = False) -> None:
    """Let a silo take part again that was set aside, from the next phase on. Example: coordinator take-back hospital-b
    """
    from semisilo.coordinator.federation import operate

    with _ledger(folder) as ledger:
        operate.take_back(ledger, silo, origin="command")
    tell(as_json, {"silo": silo, "state": "joined"}, f"Silo {silo} takes part again.")


def page(study: Annotated[str, typer.Argument(metavar="STUDY", help="Show this study here, without coordinator "
                                                                    "serve.")] = "",
         folder: Folder = Path(),
         token: Annotated[bool, typer.Option("--token", help="Print the operator's token, which unlocks the page's "
                                                             "actions.")] = False,
         listen: Annotated[str, typer.Option(help="With STUDY: host:port to show it on; any free port here by "
                                                  "default.")] = "127.0.0.1:0",
         as_json: JsonOption = False) -> None:
    """Say where the operator page is; with STUDY, show a study on a page that only reads, until Ctrl-C.

    `coordinator serve` shows its page at http://127.0.0.1:8080 (table [page] of federation.toml). A finished study can
    be shown without it, also from the folder of a simulation.

    \b
    Examples:
      coordinator page
      coordinator page --token
      coordinator page first --folder runs/study
    """
    from semisilo.coordinator.cli.page import print_token, say_where, show

    if token:
        print_token(folder, as_json=as_json)
    elif study:
        show(folder, study, listen=listen, as_json=as_json)
    else:
        say_where(folder, as_json=as_json)


def _ledger(folder: Path) -> contextlib.AbstractContextManager[Ledger]:
    from semisilo.coordinator.cli.acting import acting_ledger
    from semisilo.coordinator.federation.folder import open_federation

    return acting_ledger(open_federation(folder))
