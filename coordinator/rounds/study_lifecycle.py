"""How studies pause, go on and end.

An operator pauses, resumes and stops studies through the ledger; the engine asks between its steps and in every wait. A
study in which round after round every silo refuses pauses by itself until an operator has looked: a refusal is an
answer, so that one silo's trouble never holds up the others, but rounds with nothing else bring nothing to anyone. And
a study that has ended leaves the model of its last committed round. All of this follows from the ledger alone: a
coordinator that was restarted decides the same.
"""

from __future__ import annotations

import logging
from pathlib import Path

from semisilo.common.errors import DiskFull, SemisiloError
from semisilo.coordinator.compute.messages import Export
from semisilo.coordinator.ledger.cleanup import Cleanup
from semisilo.coordinator.ledger.events import (
    begun_again_event,
    is_model_noted,
    last_ended_rounds,
    note_model_not_written,
    note_model_written,
    round_ended_event,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import answer_states, last_refusal
from semisilo.coordinator.rounds.compute_client import ComputeSteps
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.studies.study_file import config_from_dict

__all__ = ["PATIENCE_ROUNDS", "OperatorRequests", "StudyLifecycle", "pause_when_refused", "refused_rounds"]

_LOG = logging.getLogger("semisilo.coordinator")

PATIENCE_ROUNDS = 3
"""So many rounds in a row with nothing but refusals are what a study goes through before it pauses."""


class OperatorRequests:
    """What the operator has said last, as `coordinator pause`, `resume` and `stop` leave it in the ledger."""

    def __init__(self, *, ledger: Ledger, runtime: RuntimeState) -> None:
        self._ledger = ledger
        self._runtime = runtime

    def is_stopped(self, name: str) -> bool:
        """Whether the operator has stopped a study."""
        return self._ledger.study_state(name) is StudyState.STOPPED

    async def wait_while_paused(self, name: str) -> None:
        """Returns as soon as a study is not paused, and until then lets everyone see that it is."""
        if self._ledger.study_state(name) is not StudyState.PAUSED:
            return
        runtime = self._runtime
        before = (runtime.reason, runtime.text, runtime.activity)
        _LOG.info("study %s is paused; go on with: coordinator resume", name)
        # Every silo reads this text, so what one of them has given as its reason is not in it.
        runtime.set(reason=StandbyReason.PAUSED, text="paused", activity="")
        while self._ledger.study_state(name) is StudyState.PAUSED:
            await runtime.wait(1.0)
        runtime.set(reason=before[0], text=before[1], activity=before[2])
        _LOG.info("study %s is %s", name, self._ledger.study_state(name))


# Pausing by itself ----------------------------------------------------------------------------------------------------


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
    numbers = last_ended_rounds(ledger, study, PATIENCE_ROUNDS)
    answers = [answer_states(ledger, study, number) for number in numbers]
    if len(numbers) < PATIENCE_ROUNDS or not all(map(_only_refusals, answers)) \
            or round_ended_event(ledger, study, numbers[-1]) < begun_again_event(ledger, study):
        return ""
    last = last_refusal(ledger, study, numbers[0])
    assert last is not None  # somebody has refused in each of these rounds
    who = "every silo refused" if all(each == {TaskState.REFUSED} for each in answers) \
        else "no silo trained, and some refused"
    return (f"in {PATIENCE_ROUNDS} rounds {who}; last:"
            f" {last.reason.rstrip('. ') or 'no reason given'} ({last.silo})")


def _only_refusals(answers: frozenset[TaskState]) -> bool:
    """Whether somebody refused and nobody gave another answer; silos that were late or left have given none."""
    return TaskState.REFUSED in answers and not answers & {TaskState.UPDATED, TaskState.ABSTAINED}


# Ending ---------------------------------------------------------------------------------------------------------------


class StudyLifecycle:
    """Ends studies, so that one which has committed a round leaves a model for others to use."""

    def __init__(self, *, ledger: Ledger, runtime: RuntimeState, steps: ComputeSteps, cleanup: Cleanup,
                 studies: Path) -> None:
        """
        Args:
            studies: the folder in which every study has one.
        """
        self._ledger = ledger
        self._runtime = runtime
        self._steps = steps
        self._cleanup = cleanup
        self._studies = studies

    async def write_model(self, name: str) -> None:
        """Writes the model of the last committed round, for others to use; the study must be the one that is open."""
        digest = self._ledger.committed_digest(name)
        model = self._studies / name / "model.safetensors"
        await self._steps.call(Export(state=digest, path=model), activity="writing the model")
        note_model_written(self._ledger, name, digest)

    async def tidy_up(self) -> None:
        """Ends the open round of studies that the operator has stopped, perhaps while nobody served, and writes the
        model of their last committed round.

        Raises: DiskFull, with nothing lost. A model that cannot be written for another reason is reported, once.
        """
        for row in self._ledger.studies():
            if row.state is StudyState.STOPPED:
                self._cancel_open_round(row.name)
                digest = self._ledger.committed_digest(row.name)
                if digest and not is_model_noted(self._ledger, row.name, digest):
                    await self._write_model_of_stopped(row, digest)
                if self._runtime.study == row.name and self._runtime.reason is not StandbyReason.NO_STUDY:
                    _LOG.info("study %s is stopped", row.name)
                    self._runtime.set(reason=StandbyReason.NO_STUDY, text=f"study {row.name} was stopped", activity="",
                                      phase="")

    def _cancel_open_round(self, name: str) -> None:
        row = self._ledger.last_round(name)
        if row is None or row.state in ENDED_ROUND:
            return
        with self._ledger.transaction():
            for task in self._ledger.tasks(name, row.number, row.phase):
                if task.state is TaskState.OPEN:
                    self._ledger.close_task(task, TaskState.CANCELLED, reason="the study was stopped")
            self._ledger.set_round_state(name, row.number, RoundState.CANCELLED)
        self._cleanup.remove_updates(name, row.number)

    async def _write_model_of_stopped(self, row: StudyRow, digest: str) -> None:
        try:
            if self._steps.opened != row.name:  # it was stopped while nobody served
                await self._steps.open_study(row, config_from_dict(row.config, where=f"study {row.name}"))
            await self.write_model(row.name)
        except DiskFull:
            raise
        except SemisiloError as error:
            _LOG.error("study %s is stopped, but its model could not be written: %s", row.name, error.line())
            note_model_not_written(self._ledger, row.name, digest, reason=error.line())
