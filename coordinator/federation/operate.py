"""What an operator may do while a federation runs: pause, resume, stop, extend, go back to an earlier round, note;
invite, revoke, set aside, take back.

Commands and the page call the same functions. They write the ledger; `coordinator serve` notices within a second. Every
action is in the audit trail with its origin: "command" or "page"; "coordinator" is a study that has paused by itself.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from semisilo.common.config import parse_duration
from semisilo.common.errors import UsageError
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.common.text.logs import printable
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import Rollback, kept_after, oldest_return, roll_back
from semisilo.coordinator.ledger.progress import best_committed, handed_over_then, round_heads
from semisilo.coordinator.ledger.records import MODEL_FILE, PhaseRow, RoundHead, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, RoundState, StudyState, TaskState

__all__ = [
    "MOST_NOTE_CHARACTERS",
    "MadeInvitation",
    "Origin",
    "exports_of_gone_rounds",
    "extend",
    "invite",
    "note",
    "offered_returns",
    "pause",
    "resume",
    "returnable_rounds",
    "revoke",
    "rollback",
    "running_study",
    "set_aside",
    "stop",
    "take_back",
]

_LOG = logging.getLogger("semisilo.coordinator")
Origin = Literal["command", "page"]
_SHORTEST_INVITATION_SECONDS = 60.0
MOST_NOTE_CHARACTERS = 1000
_LONGEST_SECONDS = 30 * 86400.0
_EXPORT = re.compile(r"export-round-(\d+)")
_BEGUN = (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeInvitation:
    """An invitation that was just made."""

    silo: str
    line: str
    """To be sent to the silo; it is kept nowhere."""
    expires_unix: float


def running_study(ledger: Ledger, name: str = "") -> StudyRow:
    """The study of that name; without one, the study that has begun and is not over.

    Raises: UnknownName; UsageError when no study runs.
    """
    if name:
        return ledger.study(name)
    begun = [row for row in ledger.studies() if row.state in (*_BEGUN, StudyState.PAUSED)]
    if not begun:
        raise UsageError("No study is running.", remedy="Name one; see: coordinator status.")
    return begun[0]


def pause(ledger: Ledger, name: str = "", *, origin: Origin) -> StudyRow:
    """Pauses a study: the step under way is finished, no silo gets a task, answers are still taken, and the deadline of
    the open phase stands still.

    Raises: UnknownName; UsageError when the study has not begun, is paused or is over.
    """
    with ledger.acting(origin), ledger.transaction():
        row = running_study(ledger, name)
        if row.state is StudyState.PAUSED:
            raise UsageError(f"Study '{row.name}' is paused already.", remedy="Continue with: coordinator resume.")
        if row.state is StudyState.QUEUED:
            raise UsageError(f"Study '{row.name}' has not begun yet.",
                             remedy=f"It can be taken out of the queue: coordinator stop {row.name}.")
        _check_not_over(row)
        ledger.set_study_state(row.name, StudyState.PAUSED)
        return ledger.study(row.name)


def resume(ledger: Ledger, name: str = "", *, origin: Origin, clock: Callable[[], float] = time.time) -> StudyRow:
    """Goes on with a paused study; the deadline of the open phase moves on by the length of the pause.

    Raises: UnknownName; UsageError when the study is not paused.
    """
    with ledger.acting(origin), ledger.transaction():
        row = running_study(ledger, name)
        since = ledger.paused_since(row.name)
        if since is None:
            raise UsageError(f"Study '{row.name}' is not paused: it is {row.state}.",
                             remedy=f"Queue it again: coordinator queue {row.name}."
                             if row.state in (StudyState.STOPPED, StudyState.FAILED) else "")
        unix, before = since
        # Negative where the clock was set back meanwhile: what is left of the phase is counted from now all the same.
        phase, seconds = _open_phase(ledger, row.name), clock() - unix
        if phase is not None:
            ledger.move_deadline(phase, deadline_unix=phase.deadline_unix + seconds,
                                 limit_unix=phase.limit_unix + seconds)
        ledger.set_study_state(row.name, before)
        return ledger.study(row.name)


def stop(ledger: Ledger, name: str = "", *, origin: Origin) -> StudyRow:
    """Ends a study for good: open tasks are cancelled, silos give up within seconds, and `serve` writes the model of
    the last committed round to model.safetensors.

    Raises: UnknownName; UsageError when the study is over.
    """
    with ledger.acting(origin), ledger.transaction():
        row = running_study(ledger, name)
        _check_not_over(row)
        ledger.set_study_state(row.name, StudyState.STOPPED, reason="stopped by the operator")
        last = ledger.last_round(row.name)
        if row.state is StudyState.QUEUED and last is not None and last.state not in ENDED_ROUND:
            ledger.cancel_round(last)  # nobody works on it, and its updates take room until it is over
        for task in ledger.tasks(row.name, last.number, last.phase) if last is not None else ():
            if task.state is TaskState.OPEN:
                ledger.close_task(task, TaskState.CANCELLED, reason="the study was stopped")
        return ledger.study(row.name)


def note(ledger: Ledger, study: str, text: str, *, origin: Origin) -> str:
    """Puts a note of an operator beside a study, for good: who reads the page, the report or the audit trail reads it.

    Args:
        text: one line, at most `MOST_NOTE_CHARACTERS`.
    Returns: the study's name.
    Raises: UnknownName; UsageError for an empty or long text.
    """
    line = printable(text.strip(), limit=2 * MOST_NOTE_CHARACTERS)
    if not line:
        raise UsageError("A note needs a text.", remedy='For example: coordinator note first "new scanner in May".')
    if len(line) > MOST_NOTE_CHARACTERS:
        raise UsageError(f"A note has at most {MOST_NOTE_CHARACTERS} characters; this one has {len(line)}.",
                         remedy="Write it shorter, or as several notes.")
    with ledger.acting(origin), ledger.transaction():
        name = ledger.study(study).name
        ledger.event("study_note", study=name, text=line)
    return name


def extend(ledger: Ledger, seconds: float, name: str = "", *, origin: Origin,
           clock: Callable[[], float] = time.time) -> PhaseRow:
    """Moves the deadline of the open phase on, and the round's limit where that would come before.

    A deadline that has passed is moved on from now.
    Raises: UnknownName; UsageError when no phase is open, or for a time that is not between 1 s and 30 days.
    """
    if not (math.isfinite(seconds) and 1 <= seconds <= _LONGEST_SECONDS):
        raise UsageError("A deadline can be moved on by at least 1 s and at most 30 days.", remedy='For example "30m".')
    with ledger.acting(origin), ledger.transaction():
        row = running_study(ledger, name)
        phase = _open_phase(ledger, row.name)
        if phase is None or row.state in ENDED_STUDY:
            raise UsageError(f"No silo works for study '{row.name}' now, so there is no deadline.",
                             remedy="See what it does: coordinator status.")
        since = ledger.paused_since(row.name)
        now = since[0] if since is not None else clock()  # while a study is paused its clock stands still
        deadline = max(phase.deadline_unix, now) + seconds
        ledger.move_deadline(phase, deadline_unix=deadline, limit_unix=max(phase.limit_unix, deadline))
        return ledger.phase(row.name, phase.round, phase.number)


def invite(federation: Federation, ledger: Ledger, silo: str, *, life: str = "", origin: Origin) -> MadeInvitation:
    """Makes the line that lets a silo in.

    Args:
        life: how long it can be used, for example "2h"; the setting `invitation_life` when empty.
    Raises: UsageError for a name or a life that is not allowed; BadConfiguration.
    """
    from semisilo.coordinator.federation.invitations import authority_of

    now = time.time()
    seconds = parse_duration(life or federation.config.limits.invitation_life, where="--life")
    if seconds < _SHORTEST_INVITATION_SECONDS:
        raise UsageError(f"An invitation lasts at least one minute; {life or 'invitation_life'} is too short to be sent"
                         " and used.", remedy='Give it a longer life, for example "24h".')
    if seconds > _LONGEST_SECONDS:
        raise UsageError("An invitation lasts at most 30 days.", remedy='Give it a shorter life, for example "24h".')
    address = federation.config.address
    with ledger.acting(origin):
        line = authority_of(federation, LedgerRoster(ledger)).invite(
            silo, address=address.public, enrollment_address=address.enrollment_address, now=now, life_seconds=seconds)
    return MadeInvitation(silo=silo, line=line, expires_unix=now + seconds)


def check_known(ledger: Ledger, silo: str) -> None:
    """Raises: UnknownName for one that is neither in the roster nor invited, with the names there are."""
    LedgerRoster(ledger).check_known(silo)


def revoke(ledger: Ledger, silo: str, *, origin: Origin) -> None:
    """Ends a silo's membership, or withdraws its invitation.

    Raises: UnknownName.
    """
    with ledger.acting(origin):
        LedgerRoster(ledger).revoke(silo)


def set_aside(ledger: Ledger, silo: str, *, reason: str = "", origin: Origin) -> None:
    """Leaves a silo out until `take_back`: it may call, is asked nothing, and counts for no quorum.

    Args:
        reason: for the silo and the audit trail; one line.
    Raises: UnknownName; UsageError when it is set aside already.
    """
    with ledger.acting(origin):
        LedgerRoster(ledger).set_aside(silo, reason=_line(reason))


def take_back(ledger: Ledger, silo: str, *, origin: Origin) -> None:
    """Lets a silo take part again, from the next phase on.

    Raises: UnknownName; UsageError when it is not set aside.
    """
    with ledger.acting(origin):
        LedgerRoster(ledger).take_back(silo)


# Going back -----------------------------------------------------------------------------------------------------------


def returnable_rounds(ledger: Ledger, study: str, *, study_folder: Path) -> list[int]:
    """The rounds that a study can go back to: committed, with a later one, and all that they left is still on the disk;
    so is the model that the study would hand over then, which may be of a round before."""
    heads, frozen = round_heads(ledger, study), ledger.study(study).frozen
    states, oldest, then = study_folder / "states", oldest_return(ledger, study), handed_over_then(heads)
    keeps_best = frozen is not None and frozen.keeps_best

    def is_whole(row: RoundHead) -> bool:
        kept = {digest for _, digest in kept_after(ledger, study, row.number).values() if digest is not None}
        best = best_committed(each for each in heads if each.number <= row.number) if keeps_best else None
        needed = {row.state_digest, then[row.number].state_digest, *kept} | (
            set() if best is None else {best.state_digest})
        return all((states / f"{digest}{STATE_ENDING}").is_file() for digest in needed)

    return [row.number for row in heads[:-1]
            if row.state is RoundState.COMPLETED and row.number >= oldest and is_whole(row)]


def offered_returns(ledger: Ledger, row: StudyRow, *, study_folder: Path) -> list[int]:
    """The rounds that `rollback` takes as the study stands now; none while it runs, and behind masks."""
    if row.state not in (*ENDED_STUDY, StudyState.PAUSED) or _is_masked(row):
        return []
    return returnable_rounds(ledger, row.name, study_folder=study_folder)


def rollback(ledger: Ledger, study: str, to_round: int, *, study_folder: Path, reason: str = "", operator: str = "",
             origin: Origin) -> Rollback:
    """Makes a committed round the last one of a study again, and queues the study: `serve` trains on from there.

    The rounds after it stay in the ledger as history. The file of the model that was handed over goes, for it may be of
    one of them; where it cannot be removed, or the power fails first, `serve` does so.

    Args:
        study_folder: where its files are.
        reason: for the audit trail; one line.
        operator: the account of who asks for it.
    Raises: UnknownName; UsageError while the study runs, and, with the rounds there are, when it cannot go back to that
        one.
    """
    with ledger.acting(origin), ledger.transaction():
        row = ledger.study(study)
        if row.state not in (*ENDED_STUDY, StudyState.PAUSED):
            raise UsageError(f"Study '{study}' is {row.state}: it can go back while it is paused or over.",
                             remedy=f"First: coordinator pause {study}.")
        if _is_masked(row):
            raise UsageError(f"Study '{study}' has secure aggregation: its silos mask an update of a round once, so no"
                             " round can be done again.",
                             remedy="Queue a new study that starts from a round of it: [model] weights.")
        rounds = returnable_rounds(ledger, study, study_folder=study_folder)
        if to_round not in rounds:
            listed = ", ".join(map(str, rounds)) or "none"
            raise UsageError(f"Study '{study}' {_why_not(round_heads(ledger, study), to_round)}.",
                             remedy=f"It can go back to: {listed}. [study] keep_every says how many are kept.")
        found_rollback = roll_back(ledger, study, to_round, operator=operator, reason=_line(reason))
    model = study_folder / MODEL_FILE
    try:
        model.unlink(missing_ok=True)
    except OSError as error:  # the study has gone back all the same
        _LOG.warning("%s: of an earlier end of the study, cannot be removed: %s; coordinator serve tries it again",
                     model, error.strerror or error)
    return found_rollback


def exports_of_gone_rounds(study_folder: Path, to_round: int) -> list[str]:
    """Names of the folders in a study's to which a round behind `to_round` was exported, by their round; they stay."""
    found = {int(match[1]): each.name for each in study_folder.glob("export-round-*")
             if (match := _EXPORT.fullmatch(each.name)) and int(match[1]) > to_round}
    return [found[number] for number in sorted(found)]


def _why_not(rounds: list[RoundHead], to_round: int) -> str:
    found = next((row for row in rounds if row.number == to_round), None)
    if found is None:
        return f"has no round {to_round}"
    if found.state is not RoundState.COMPLETED:
        return f"has not committed round {to_round}: it is {found.state}"
    if to_round == rounds[-1].number:
        return f"stands at round {to_round} already"
    return f"can no longer go back to round {to_round}: its files are gone"


def _is_masked(row: StudyRow) -> bool:
    return bool((row.config.get("privacy") or {}).get("secure_aggregation"))


def _line(reason: str) -> str:
    return printable(reason.strip(), limit=200)


def _check_not_over(row: StudyRow) -> None:
    if row.state in ENDED_STUDY:
        raise UsageError(f"Study '{row.name}' is {row.state}.", remedy="See: coordinator status.")


def _open_phase(ledger: Ledger, study: str) -> PhaseRow | None:
    """The phase in which silos work; None when there is none."""
    last = ledger.last_round(study)
    if last is None or last.state is not RoundState.COLLECTING:
        return None
    return ledger.phase(study, last.number, last.phase)
