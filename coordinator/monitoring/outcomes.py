"""What came of the tasks of a round, in one vocabulary: the words are those of `TaskState`, everywhere.

| outcome | when |
|---|---|
| updated | the silo's update was accepted |
| abstained | the silo had nothing to send, for a reason that the method knows |
| refused | its policy or data did not allow it, its training failed, or its update was not accepted |
| expired | the phase closed without an answer |
| cancelled | the silo was revoked or left, or the round was given up |

A round whose updates are added up behind masks has steps besides, to which a silo has "answered"; that is no outcome
either, for the round goes on. It is all that a round shows of a silo whose masked update was not added up, for example
since too few others came: it has refused nothing, and the model has nothing of it. "Late" is no outcome: it is a silo
that may still answer after the deadline (`semisilo.coordinator.monitoring.silo_state`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from semisilo.coordinator.ledger.states import TaskState

__all__ = ["OUTCOMES", "OUTCOME_STYLES", "counts_of", "outcomes_of", "waiting_for"]

OUTCOMES = (TaskState.UPDATED, TaskState.ABSTAINED, TaskState.REFUSED, TaskState.EXPIRED, TaskState.CANCELLED)
"""All outcomes, in the order of tables."""
OUTCOME_STYLES: Mapping[TaskState, str] = {
    TaskState.OPEN: "", TaskState.UPDATED: "green", TaskState.ABSTAINED: "yellow", TaskState.ANSWERED: "",
    TaskState.REFUSED: "red", TaskState.EXPIRED: "red", TaskState.CANCELLED: "red"}
"""Colours on a terminal."""

# The answer of a silo to a round of several phases is the first of these that any of its tasks has.
_NOTABLE = (TaskState.EXPIRED, TaskState.CANCELLED, TaskState.REFUSED, TaskState.ABSTAINED, TaskState.OPEN,
            TaskState.UPDATED, TaskState.ANSWERED)


def outcomes_of(tasks: Iterable[tuple[str, TaskState]]) -> dict[str, TaskState]:
    """Silo -> its answer to a round: of the (silo, state) of its tasks in all phases, the one that stands out most."""
    result: dict[str, TaskState] = {}
    for silo, state in tasks:
        before = result.get(silo)
        if before is None or _NOTABLE.index(state) < _NOTABLE.index(before):
            result[silo] = state
    return result


def counts_of(outcomes: Mapping[str, TaskState]) -> dict[str, int]:
    """Word -> silos, of the answers that there are, by word."""
    return {str(state): count for state, count in sorted(Counter(outcomes.values()).items())}


def waiting_for(outcomes: Mapping[str, TaskState]) -> tuple[str, ...]:
    """Silos that have not answered yet, in byte order of names."""
    return tuple(sorted((silo for silo, state in outcomes.items() if state is TaskState.OPEN), key=str.encode))
