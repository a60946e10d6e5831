"""A study in which nobody trains: when round after round every silo refuses, it pauses until an operator has looked.

A refusal is an answer, so that one silo's trouble never holds up the others; but rounds with nothing else bring nothing
to anyone. Everything here follows from the ledger alone: a coordinator that was restarted decides the same.
"""

from __future__ import annotations

import logging

from coordinator.ledger import Ledger
from coordinator.states import RoundState, StudyState, TaskState

__all__ = ["PATIENCE_ROUNDS", "has_updates", "pause_when_refused", "refused_rounds"]

_LOG = logging.getLogger("semisilo.coordinator")

PATIENCE_ROUNDS = 3
"""So many rounds in a row with nothing but refusals are what a study goes through before it pauses."""


def pause_when_refused(ledger: Ledger, study: str) -> bool:
    """Pauses a running study that has gone through `PATIENCE_ROUNDS` rounds of nothing but refusals; whether it has."""
    with ledger.acting("coordinator"), ledger.transaction():
        found = refused_rounds(ledger, study) if ledger.study_state(study) is StudyState.RUNNING else ""
        if found:
            ledger.set_study_state(study, StudyState.PAUSED,
                                   reason=f"{found}. Mend it there, then: coordinator resume")
    if found:
        _LOG.error("study %s is paused: %s", study, ledger.study(study).reason)
    return bool(found)


def refused_rounds(ledger: Ledger, study: str) -> str:
    """What the last rounds have come to, with the last refusal, when they had nothing but refusals; else ''.

    Counted are rounds that are over, since the study was last resumed or queued.
    """
    rows = ledger.query("SELECT number FROM round WHERE study = ? AND number > 0 AND state IN (?, ?)"
                        " ORDER BY number DESC LIMIT ?", study, RoundState.COMPLETED, RoundState.FAILED,
                        PATIENCE_ROUNDS)
    numbers = [int(row["number"]) for row in rows]
    answers = [_answers(ledger, study, number) for number in numbers]
    if len(numbers) < PATIENCE_ROUNDS or not all(map(_only_refusals, answers)) \
            or _closed(ledger, study, numbers[-1]) < _begun_again(ledger, study):
        return ""
    last = ledger.query("SELECT silo, reason FROM task WHERE study = ? AND round = ? AND state = ?"
                        " ORDER BY closed_unix DESC, silo DESC LIMIT 1", study, numbers[0], TaskState.REFUSED)[0]
    who = "every silo refused" if all(each == {TaskState.REFUSED} for each in answers) \
        else "no silo trained, and some refused"
    return (f"in {PATIENCE_ROUNDS} rounds {who}; last:"
            f" {last['reason'].rstrip('. ') or 'no reason given'} ({last['silo']})")


def has_updates(ledger: Ledger, study: str) -> bool:
    """Whether any committed round of a study has taken in an update."""
    return bool(ledger.query("SELECT 1 FROM task JOIN round ON round.study = task.study AND round.number = task.round"
                             " WHERE task.study = ? AND task.state = ? AND round.state = ? LIMIT 1", study,
                             TaskState.UPDATED, RoundState.COMPLETED))


def _answers(ledger: Ledger, study: str, number: int) -> set[TaskState]:
    return {TaskState(row["state"]) for row in ledger.query(
        "SELECT DISTINCT state FROM task WHERE study = ? AND round = ?", study, number)}


def _only_refusals(answers: set[TaskState]) -> bool:
    """Whether somebody refused and nobody gave another answer; silos that were late or left have given none."""
    return TaskState.REFUSED in answers and not answers & {TaskState.UPDATED, TaskState.ABSTAINED}


def _closed(ledger: Ledger, study: str, round: int) -> int:
    """The number of the event that ended a round."""
    return int(ledger.query("SELECT max(number) AS number FROM event WHERE study = ? AND kind IN (?, ?)"
                            " AND json_extract(detail_json, '$.round') = ?", study,
                            f"round_{RoundState.COMPLETED}", f"round_{RoundState.FAILED}", round)[0]["number"])


def _begun_again(ledger: Ledger, study: str) -> int:
    """The number of the event with which the study was last resumed or queued."""
    return int(ledger.query(
        "SELECT coalesce(max(number), 0) AS number FROM event WHERE study = ? AND (kind IN ('study_queued',"
        " 'study_requeued') OR kind IN (?, ?, ?) AND json_extract(detail_json, '$.before') = ?)", study,
        f"study_{StudyState.PREPARING}", f"study_{StudyState.WAITING}", f"study_{StudyState.RUNNING}",
        StudyState.PAUSED)[0]["number"])
