"""The states of a study, a round and a task, and the transitions that are legal. A state machine is data."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ENDED_ROUND", "ENDED_STUDY", "ROUND_TRANSITIONS", "STUDY_TRANSITIONS", "TASK_TRANSITIONS", "RoundState",
           "StudyState", "TaskState", "check_transition"]


class StudyState(StrEnum):
    """Where a study stands."""

    QUEUED = "queued"
    """Checked and waiting for its turn."""
    PREPARING = "preparing"
    """Round 0: the coordinator trains on its labels before any silo works."""
    WAITING = "waiting"
    """Fewer silos than `start_with` have joined."""
    RUNNING = "running"
    """Rounds are under way."""
    PAUSED = "paused"
    """The operator has paused it, or the coordinator itself where nobody trains (`pause_when_refused`); an open round
    stays open, and answers are still taken."""
    COMPLETED = "completed"
    """All rounds are done."""
    FAILED = "failed"
    """It cannot go on; the reason is in its row."""
    STOPPED = "stopped"
    """The operator has ended it; the model of the last committed round stays."""


class RoundState(StrEnum):
    """Where a round stands. With several phases the first three repeat."""

    PREPARING = "preparing"
    """The strategy writes the tasks of the next phase."""
    COLLECTING = "collecting"
    """Silos work."""
    AGGREGATING = "aggregating"
    """The phase is closed; the accepted updates are folded."""
    EVALUATING = "evaluating"
    """The new model is measured; then the round is committed."""
    COMPLETED = "completed"
    """Committed."""
    FAILED = "failed"
    """The quorum was never reached; the model stays, the updates are discarded."""
    CANCELLED = "cancelled"
    """The study was stopped."""


class TaskState(StrEnum):
    """Where one silo's task stands."""

    OPEN = "open"
    """Written; the silo may ask for it, any number of times."""
    UPDATED = "updated"
    """Its update is complete, checked, on disk and recorded."""
    ABSTAINED = "abstained"
    """The silo had nothing to send, for a reason that the method knows."""
    ANSWERED = "answered"
    """The silo has answered a step of a secure sum that asks for no update."""
    REFUSED = "refused"
    """The silo's policy or data does not allow it, or its training failed; or the coordinator did not accept its
    update, or has left it out when its phase closed."""
    EXPIRED = "expired"
    """The phase closed without an answer."""
    CANCELLED = "cancelled"
    """The silo was revoked or set aside, or the study was stopped."""


_ACTIVE_ROUND = (RoundState.PREPARING, RoundState.COLLECTING, RoundState.AGGREGATING, RoundState.EVALUATING)
_BEGUN_STUDY = (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING)
_ACTIVE_STUDY = (StudyState.QUEUED, StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
ENDED_ROUND = (RoundState.COMPLETED, RoundState.FAILED, RoundState.CANCELLED)
"""No silo works for the round any more; the next one may open."""
ENDED_STUDY = (StudyState.COMPLETED, StudyState.FAILED, StudyState.STOPPED)
"""The study runs again only when the operator queues it again."""

ROUND_TRANSITIONS: frozenset[tuple[RoundState, RoundState]] = frozenset({
    (RoundState.PREPARING, RoundState.COLLECTING),
    (RoundState.PREPARING, RoundState.EVALUATING),  # round 0: no silo works
    (RoundState.COLLECTING, RoundState.AGGREGATING),
    (RoundState.AGGREGATING, RoundState.PREPARING),
    (RoundState.AGGREGATING, RoundState.EVALUATING),
    (RoundState.EVALUATING, RoundState.COMPLETED),
    *((state, RoundState.FAILED) for state in _ACTIVE_ROUND),
    *((state, RoundState.CANCELLED) for state in _ACTIVE_ROUND),
})

STUDY_TRANSITIONS: frozenset[tuple[StudyState, StudyState]] = frozenset({
    (StudyState.QUEUED, StudyState.PREPARING),
    (StudyState.PREPARING, StudyState.WAITING),
    (StudyState.WAITING, StudyState.RUNNING),
    (StudyState.RUNNING, StudyState.COMPLETED),
    *((state, StudyState.PAUSED) for state in _BEGUN_STUDY),
    *((StudyState.PAUSED, state) for state in _BEGUN_STUDY),
    *((state, StudyState.FAILED) for state in _ACTIVE_STUDY),
    *((state, StudyState.STOPPED) for state in _ACTIVE_STUDY),
    (StudyState.FAILED, StudyState.QUEUED),
    (StudyState.STOPPED, StudyState.QUEUED),
    (StudyState.PAUSED, StudyState.QUEUED),  # it goes back to an earlier round, as in the next line
    (StudyState.COMPLETED, StudyState.QUEUED),
})

TASK_TRANSITIONS: frozenset[tuple[TaskState, TaskState]] = frozenset({
    *((TaskState.OPEN, state) for state in TaskState if state is not TaskState.OPEN),
    (TaskState.UPDATED, TaskState.REFUSED),  # left out at the end of its phase
})


def check_transition(transitions: frozenset[tuple[StrEnum, StrEnum]], before: StrEnum, after: StrEnum) -> None:
    """Asserts that a transition is legal: an illegal one is a mistake of ours, never of a user."""
    if (before, after) not in transitions:
        raise AssertionError(f"{type(before).__name__}: {before} -> {after} is not a legal transition")
