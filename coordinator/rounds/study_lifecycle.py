"""How studies pause, go on and end.

An operator pauses, resumes and stops studies through the ledger; the engine asks between its steps and in every wait. A
study that refusals make worthless, round after round, pauses by itself until an operator has looked: one silo's
trouble does not hold up the others, but a round below its quorum brings nothing to anyone. One whose rounds no longer
get better ends early where it has patience set. And a study that has ended leaves the model of its chosen round. All of
this follows from the ledger alone: a coordinator that was restarted decides the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from semisilo.common.errors import SemisiloError, SystemTrouble
from semisilo.common.measures.gain import PairedGain
from semisilo.common.measures.round_choice import rounds_without_gain
from semisilo.common.measures.study_measure import StudyMeasure
from semisilo.common.process.compute import ComputeAborted
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.describe import counted
from semisilo.coordinator.compute.messages import Compare, Export
from semisilo.coordinator.ledger.cleanup import Cleanup
from semisilo.coordinator.ledger.events import (
    begun_again_event,
    has_gone_back,
    has_paused_itself,
    is_model_noted,
    last_ended_rounds,
    note_model_not_written,
    note_model_written,
    round_ended_event,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import take_cancelled_back
from semisilo.coordinator.ledger.progress import (
    handed_over_beside,
    prefers_labels_alone,
    round_heads,
    scored_rounds,
)
from semisilo.coordinator.ledger.records import MODEL_FILE, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import answer_states, last_refusal, silos_that_refused_all
from semisilo.coordinator.rounds.compute_client import ComputeSteps
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.studies.study_file import StudySettings, config_from_dict

__all__ = ["FIX_THERE", "PATIENCE_ROUNDS", "OperatorRequests", "StudyLifecycle", "model_to_write",
           "pause_when_refused", "refused_rounds", "stopped_early", "unasked_rounds"]

_LOG = logging.getLogger("semisilo.coordinator")

PATIENCE_ROUNDS = 3
"""So many rounds in a row that refusals make worthless are what a study goes through before it pauses."""


class OperatorRequests:
    """What the operator has said last, as `coordinator pause`, `resume` and `stop` leave it in the ledger."""

    def __init__(self, *, ledger: Ledger, runtime: RuntimeState) -> None:
        self._ledger = ledger
        self._runtime = runtime

    def is_stopped(self, name: str) -> bool:
        """Whether the operator has stopped a study that has begun, or sent it back to an earlier round, from where it
        begins again: then it is in the queue."""
        return self._ledger.study_state(name) in (StudyState.STOPPED, StudyState.QUEUED)

    async def wait_while_paused(self, name: str, *, meanwhile: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Returns as soon as a study is not paused, and until then lets everyone see that it is; whether it was.

        Args:
            meanwhile: is called at each look, a second apart at the most, as long as it is paused.
        """
        if self._ledger.study_state(name) is not StudyState.PAUSED:
            return False
        runtime = self._runtime
        before = (runtime.reason, runtime.text, runtime.activity)
        _LOG.info("study %s is paused; continue with: coordinator resume", name)
        # Every silo reads this text, so what one of them has given as its reason is not in it.
        runtime.set(reason=StandbyReason.PAUSED, text="paused", activity="")
        while self._ledger.study_state(name) is StudyState.PAUSED:
            if meanwhile is not None:
                await meanwhile()
            await runtime.wait(1.0)
        runtime.set(reason=before[0], text=before[1], activity=before[2])
        if (state := self._ledger.study_state(name)) is not StudyState.STOPPED:  # that is said once its model is there
            _LOG.info("study %s is %s", name, state)
        return True


# Ending by itself -----------------------------------------------------------------------------------------------------


def model_to_write(ledger: Ledger, study: str) -> Export | None:
    """What is handed over, without its place: the model of the chosen round, or that of labels alone where these score
    higher; None before round 0."""
    row = ledger.study(study)
    rounds = round_heads(ledger, study)
    chosen = handed_over_beside(row, rounds)
    if chosen is None:
        return None
    if row.baseline is not None and prefers_labels_alone(row, chosen, rounds):
        return Export(state=row.baseline.model_digest, labels_alone=True, adjusted=row.baseline.is_adjusted,
                      path=Path())
    return Export(state=chosen.state_digest, path=Path())


def stopped_early(ledger: Ledger, study: str, settings: StudySettings, measure: StudyMeasure) -> str:
    """Why no further round is opened, where [study] patience says so; else ''. From the ledger alone.

    Only committed rounds with a score count: an outage in which every round fails is no reason to end a study.
    """
    rounds = round_heads(ledger, study)
    if not settings.patience or not rounds or rounds[-1].state not in ENDED_ROUND \
            or rounds[-1].number >= settings.rounds:
        return ""
    last = rounds[-1].number
    if rounds_without_gain(scored_rounds(rounds)) < settings.patience:
        return ""
    return (f"stopped after round {last} of {settings.rounds}: {measure.title} on validation images has not risen for"
            f" {counted(settings.patience, 'round')}")


# Pausing by itself ----------------------------------------------------------------------------------------------------


FIX_THERE = " Fix it there, then: coordinator resume"
"""How the reason of such a pause ends."""


def pause_when_refused(ledger: Ledger, study: str, *, start_with: int = 0, also_unasked: bool = True) -> bool:
    """Pauses a running study that has gone through `PATIENCE_ROUNDS` rounds which refusals have made worthless; whether
    it has. See `refused_rounds`.

    Args:
        also_unasked: whether also where the rounds have failed before anybody was asked.
    """
    with ledger.acting("coordinator"), ledger.transaction():
        found = (refused_rounds(ledger, study, start_with=start_with)
                 or (unasked_rounds(ledger, study) if also_unasked else "")) \
            if ledger.study_state(study) is StudyState.RUNNING else ""
        if found:
            ledger.set_study_state(study, StudyState.PAUSED,
                                   reason=f"{found}.{FIX_THERE}")
    if found:
        _LOG.error("study %s is paused: %s", study, ledger.study(study).reason)
    return bool(found)


def refused_rounds(ledger: Ledger, study: str, *, start_with: int = 0) -> str:
    """What the last rounds have come to, with the last refusal, when refusals have made them worthless; else ''.

    That is: nobody gave another answer than a refusal; or too few others were left for the quorum, in each of them; or,
    of the members, fewer than `start_with` have given any other answer. A study pauses once for the last of these:
    whoever resumes it goes on with those that take part. Counted are rounds that are over, since the study was last
    resumed or queued.

    Args:
        start_with: silos that the study is to start with; 0 where that does not matter.
    """
    numbers = _patience_rounds(ledger, study)
    if not numbers:
        return ""
    answers = [answer_states(ledger, study, number) for number in numbers]
    if all(map(_only_refusals, answers)):
        who = "every silo refused" if all(each == {TaskState.REFUSED} for each in answers) \
            else "no silo trained, and some refused"
        return f"in {PATIENCE_ROUNDS} rounds {who}; last: {_last_refusal(ledger, study, numbers[0])}"
    if all(TaskState.REFUSED in each for each in answers) \
            and all(ledger.round(study, number).state is RoundState.FAILED for number in numbers):
        return (f"in {PATIENCE_ROUNDS} rounds silos refused, and too few others were left for the quorum; last:"
                f" {_last_refusal(ledger, study, numbers[0])}")
    if not start_with or has_paused_itself(ledger, study):
        return ""
    refusers = {silo: found for silo, found in silos_that_refused_all(ledger, study).items()
                if found.rounds >= PATIENCE_ROUNDS}
    takes_part = sum(silo not in refusers for silo in LedgerRoster(ledger).members())
    if not refusers or takes_part >= start_with:
        return ""
    silo, last = max(refusers.items(), key=lambda each: each[1].closed_unix)
    return (f"the study is to start with {counted(start_with, 'silo')}, and {len(refusers)} refused every round, so"
            f" that {takes_part} {'takes' if takes_part == 1 else 'take'} part; last: {_reason(last.reason)} ({silo})")


def unasked_rounds(ledger: Ledger, study: str) -> str:
    """What the last rounds have failed for, when each has before a silo was asked anything; else ''. Such rounds take
    no time: without a pause all that a study has left would be gone in a moment."""
    numbers = _patience_rounds(ledger, study)
    rounds = [ledger.round(study, number) for number in numbers]
    if not rounds or any(row.state is not RoundState.FAILED for row in rounds) \
            or any(answer_states(ledger, study, number) for number in numbers):
        return ""
    return (f"{PATIENCE_ROUNDS} rounds in a row failed before a silo was asked anything; last:"
            f" {_reason(rounds[0].reason)}")


def _patience_rounds(ledger: Ledger, study: str) -> list[int]:
    """The last rounds by which a study is paused, the latest first; none while they are fewer."""
    numbers = last_ended_rounds(ledger, study, PATIENCE_ROUNDS)
    if len(numbers) < PATIENCE_ROUNDS \
            or round_ended_event(ledger, study, numbers[-1]) < begun_again_event(ledger, study):
        return []
    return numbers


def _last_refusal(ledger: Ledger, study: str, number: int) -> str:
    last = last_refusal(ledger, study, number)
    assert last is not None  # somebody has refused in that round
    return f"{_reason(last.reason)} ({last.silo})"


def _reason(reason: str) -> str:
    return reason.rstrip(". ") or "no reason given"


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
        self._told: dict[str, str] = {}
        """Stopped study -> what the log last said of the trouble with its model."""
        self._emptied: dict[str, tuple[int, float | None]] = {}
        """Stopped study -> number and end of the cancelled round of which this process has removed the updates."""

    async def write_model(self, name: str) -> None:
        """Writes the model that is handed over, for others to use; the study must be the one that is open, and have
        committed round 0."""
        wanted = model_to_write(self._ledger, name)
        assert wanted is not None
        model = self._studies / name / MODEL_FILE
        await self._steps.call(replace(wanted, path=model), activity="writing the model")
        note_model_written(self._ledger, name, wanted.state)

    async def compare_with_labels_alone(self, name: str) -> None:
        """Writes to the ledger what the round that is handed over is better by than labels alone, with the interval of
        both models' answers to each test image; nothing where either is not there, or labels alone are handed over.

        Without it the interval of the gain is wider, so that a study ends all the same where it cannot be had.
        """
        row, rounds = self._ledger.study(name), round_heads(self._ledger, name)
        chosen = handed_over_beside(row, rounds)
        if chosen is None or row.baseline is None or not row.baseline.model_digest or row.frozen is None \
                or not row.frozen.num_test or prefers_labels_alone(row, chosen, rounds):
            return
        try:
            found = await self._steps.call(Compare(state=chosen.state_digest, labels_alone=row.baseline.model_digest),
                                           activity="comparing with labels alone")
        except (SystemTrouble, ComputeAborted):
            raise
        except SemisiloError as error:
            _LOG.warning("study %s: the two models could not be compared image by image: %s The interval of the gain"
                         " is that of two models with test images of their own.", name, error.line())
            return
        with self._ledger.transaction():
            if found.intervals and self._ledger.study_state(name) is not StudyState.QUEUED:  # else it goes on or back
                self._ledger.set_study_facts(name, paired=PairedGain(
                    round=chosen.number, patients=found.patients, intervals=found.intervals))

    async def tidy_up(self) -> SystemTrouble | None:
        """Ends the open round of studies that the operator has stopped, perhaps while nobody served, and writes the
        model that they hand over; removes that of studies that have gone back, where `rollback` could not. A model that
        cannot be written is reported, once; no other study waits for it.

        Returns: what the system refuses, of the first study where it does; nothing is lost, and the next call tries
        again. None where all is done.
        """
        first: SystemTrouble | None = None
        for row in self._ledger.studies():
            model = self._studies / row.name / MODEL_FILE
            if row.state is not StudyState.STOPPED and model.is_file() and has_gone_back(self._ledger, row.name):
                with contextlib.suppress(OSError):
                    model.unlink()
            if row.state is StudyState.STOPPED:
                try:
                    await self._cancel_open_round(row.name)
                    wanted = model_to_write(self._ledger, row.name)
                    if wanted is not None and not is_model_noted(self._ledger, row.name, wanted.state):
                        await self._write_model_of_stopped(row, wanted.state)
                except SYSTEM_ERRORS as error:
                    if (trouble := explained(error)) is None:
                        raise
                    waiting = self._waiting(row.name, trouble)
                    first = first or waiting
                if self._runtime.study == row.name and self._runtime.reason is not StandbyReason.NO_STUDY:
                    _LOG.info("study %s is stopped", row.name)
                    self._runtime.set(reason=StandbyReason.NO_STUDY, text=f"study {row.name} was stopped", activity="",
                                      phase="")
        return first

    def _waiting(self, name: str, trouble: SystemTrouble) -> SystemTrouble:
        """The same trouble, with the study that it is about; said in the log when it is news."""
        found = type(trouble)(f"The model of the stopped study {name} waits: {trouble.text}", remedy=trouble.remedy)
        self._runtime.set(activity="")
        if self._told.get(name) != found.line():
            self._told[name] = found.line()
            _LOG.error("%s It is tried again.", found.line())
        return found

    async def take_cancelled_back(self, name: str) -> None:
        """Before a study that was stopped goes on: the round that was open then is done again, where it can be."""
        row = self._ledger.last_round(name)
        if row is None or row.state is not RoundState.CANCELLED:
            return
        await self._cleanup.remove_updates(name, row.number)  # of one that was queued again before anybody looked
        if take_cancelled_back(self._ledger, name) is not None:
            _LOG.info("%s: round %d was cancelled when the study was stopped, and is done again", name, row.number)

    async def _cancel_open_round(self, name: str) -> None:
        """Also where the command has cancelled it, of a study that waited in the queue: its updates take room."""
        row = self._ledger.last_round(name)
        if row is None:
            return
        if row.state not in ENDED_ROUND:
            self._ledger.cancel_round(row)
            row = self._ledger.round(name, row.number)
        if row.state is RoundState.CANCELLED and self._emptied.get(name) != (row.number, row.closed_unix):
            await self._cleanup.remove_updates(name, row.number)
            self._emptied[name] = row.number, row.closed_unix

    async def _write_model_of_stopped(self, row: StudyRow, digest: str) -> None:
        try:
            if self._steps.opened != row.name:  # it was stopped while nobody served
                await self._steps.open_study(row, config_from_dict(row.config, where=f"study {row.name}"),
                                             may_have_changed=True)
            await self.compare_with_labels_alone(row.name)  # first: once its model is noted nobody comes back to it
            await self.write_model(row.name)
        except SystemTrouble:
            raise
        except SemisiloError as error:
            _LOG.error("study %s is stopped, but its model could not be written: %s", row.name, error.line())
            (self._studies / row.name / MODEL_FILE).unlink(missing_ok=True)  # of an earlier end of the study
            note_model_not_written(self._ledger, row.name, digest, reason=error.line())
