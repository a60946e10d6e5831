"""The round engine: a durable state machine over the ledger. Killed at any instant, it resumes with the same bits.

Every step is a deterministic function of files that the ledger names, so a step that was cut off is simply done again.
The engine itself holds no tensors: the compute process does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from semisilo.common.config import to_dict
from semisilo.common.errors import SecureSumFailed, SemisiloError, SystemTrouble
from semisilo.common.learning.outliers import stand_out
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.methods.contract import ModelSettings, Phase, SumStep, TaskSpec, task_id_of
from semisilo.common.methods.parts.privacy import contribution_of
from semisilo.common.methods.parts.secure_sum import keeps_weights, totals_of
from semisilo.common.methods.spec import MEASURING
from semisilo.common.process.compute import Compute
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.describe import counted, describe_seconds
from semisilo.coordinator.compute.messages import (
    Aggregate,
    Aggregated,
    Evaluate,
    MaskedSum,
    Phases,
    Prepare,
    SpooledUpdate,
    Tasks,
    WrittenTask,
    WrittenTasks,
)
from semisilo.coordinator.ledger.cleanup import Cleanup
from semisilo.coordinator.ledger.ledger import Ledger, RoundGone
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice, has_notice
from semisilo.coordinator.ledger.oversight.rollback import count_rollbacks
from semisilo.coordinator.ledger.oversight.study_cards import note_card
from semisilo.coordinator.ledger.progress import handed_over, prefers_labels_alone, round_heads
from semisilo.coordinator.ledger.records import LabelledOnlyResult, PhaseRow, RoundRow, StudyRow, TaskRow, task_column
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, RoundState, StudyState
from semisilo.coordinator.ledger.tasks import first_update, has_taken_part
from semisilo.coordinator.rounds.clock_steps import ClockSteps
from semisilo.coordinator.rounds.compute_client import ComputeSteps, RunningStudy
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.labels_alone import LabelsAloneWork
from semisilo.coordinator.rounds.runtime import FEW_SILOS, RuntimeState, StandbyReason
from semisilo.coordinator.rounds.sampling import Availability
from semisilo.coordinator.rounds.secure_sums import STEP_SECONDS, Sums, elements_of, masked_layout, method_phase
from semisilo.coordinator.rounds.study_lifecycle import (
    OperatorRequests,
    StudyLifecycle,
    pause_when_refused,
    stopped_early,
)
from semisilo.coordinator.strategies.parts.count_cap import capped_counts, far_above
from semisilo.coordinator.studies.card import card_of
from semisilo.coordinator.studies.model_choice import choice_of, next_command
from semisilo.coordinator.studies.participation import participation_of
from semisilo.coordinator.studies.study_file import config_from_dict

__all__ = ["Accountant", "Engine", "EngineFolders"]

_LOG = logging.getLogger("semisilo.coordinator")
_PAUSE_SECONDS_PER_SILO = 0.00025
"""While more silos than a few are waited for, the next look at their answers waits so long for each of them: a
thousand answers cost a few dozen looks at a thousand rows, and the last few silos end the phase at once."""


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""After an error of the system the study is tried again: the pauses double, since a trial may compute much before it
meets the same error, and none is longer, so that it goes on soon after somebody has fixed it."""
_TASKS_AT_ONCE = 50
"""So many tasks are put together in one turn of the event loop, which takes a few milliseconds."""


class Accountant(Protocol):
    """Writes what the wire has carried since the last call to the ledger."""

    async def settle(self, *, study: str, round: int, phase: str) -> None:
        """Attributes the bytes since the last call to a phase of a round; "standby" between phases."""


@dataclass(frozen=True, slots=True)
class EngineFolders:
    """Where the files are that the ledger names."""

    studies: Path
    payloads: Path
    images: Path | None = None
    """Decoded images that are too many for memory; None where they must not lie on a disk."""


class Engine:
    """Runs queued studies one after another."""

    def __init__(self, *, ledger: Ledger, roster: LedgerRoster, runtime: RuntimeState, compute: Compute,
                 payloads: PayloadStore, spool: PayloadStore, folders: EngineFolders, accountant: Accountant,
                 slowest_link: Callable[[Collection[str]], float] = lambda silos: 0.0, hearing: Hearing | None = None,
                 beside_rounds: bool = True, operated: bool = True, clock: Callable[[], float] = time.time,
                 steady: Callable[[], float] | None = None, sums: Sums | None = None,
                 labels_alone: Callable[[RunningStudy], LabelledOnlyResult | None] | None = None) -> None:
        """
        Args:
            labels_alone: gives the line of labels alone where it was trained elsewhere; see `LabelsAloneWork`.
            sums: adds updates up where the study wants that; None without masks.
            slowest_link: of the given silos, in bytes per second down; 0 when none was measured.
            hearing: who knows which members are silent; None for one that takes the default time.
            operated: whether somebody is there who would resume a study that has paused by itself, or fix what the
                operating system refuses.
            beside_rounds: whether labels alone are trained while silos work, or only after the last round.
            steady: a clock that nobody sets, beside `clock`; None where nobody sets that either. See `ClockSteps`.
        """
        self._ledger = ledger
        self._roster = roster
        self._runtime = runtime
        self._spool = spool
        self._accountant = accountant
        self._slowest_link = slowest_link
        self._clock = clock
        self._clock_steps = ClockSteps(clock, steady=steady)
        self._operated = operated
        self._hearing = hearing or Hearing(roster=roster, runtime=runtime, clock=clock)
        self._steps = ComputeSteps(compute=compute, ledger=ledger, runtime=runtime, studies=folders.studies,
                                   payloads=folders.payloads, images=folders.images)
        self._operator = OperatorRequests(ledger=ledger, runtime=runtime)
        self._sums = sums or Sums(ledger, roster)
        self._labels_alone = LabelsAloneWork(ledger=ledger, runtime=runtime, steps=self._steps,
                                             operator=self._operator, studies=folders.studies,
                                             beside_rounds=beside_rounds, given=labels_alone)
        self._availability = Availability(roster=roster, runtime=runtime, operator=self._operator,
                                          hearing=self._hearing, clock=clock, wait=self._labels_alone.wait,
                                          on_wait=self._well, operated=operated)
        self._cleanup = Cleanup(ledger=ledger, payloads=payloads, spool=spool, studies=folders.studies)
        self._lifecycle = StudyLifecycle(ledger=ledger, runtime=runtime, steps=self._steps, cleanup=self._cleanup,
                                         studies=folders.studies)
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._card = ""  # digest of the card of the study that runs
        self._resumed = True  # the first phase found open after a start, or an error of the system, was left alone
        self._seen: tuple[PhaseRow, float] | None = None
        """The open phase, and the time of the last look at its answers; None where there was none in this run."""

    def has_work(self) -> bool:
        """Whether a study waits in the queue or has not ended."""
        return any(row.state not in ENDED_STUDY for row in self._ledger.studies())

    async def run_next(self) -> StudyRow | None:
        """Runs the study that has begun, or else the first of the queue; None when there is none.

        A study that cannot go on is marked FAILED with its reason, also where that is an error of the program, of which
        the log has the traceback: the studies behind it run all the same. An error of the system is no such reason:
        the study waits, says so, and goes on by itself once it is well.
        Raises: SystemTrouble where nobody operates it, with nothing lost; MemoryError, which says nothing of the study.
        """
        self._seen = None
        while True:
            try:
                return await self._run_next()
            except SYSTEM_ERRORS as error:
                trouble = explained(error)
                if trouble is None or not self._operated:
                    raise trouble or error from error
            await self._put_off(trouble)

    async def _put_off(self, trouble: SystemTrouble) -> None:
        if self._runtime.trouble != trouble.line():
            idle = self._runtime.reason is StandbyReason.NO_STUDY
            who = "the coordinator" if idle or not self._runtime.study else f"study {self._runtime.study}"
            _LOG.error("%s waits: %s It continues automatically.", who, trouble.line())
        self._runtime.trouble = trouble.line()
        await asyncio.sleep(self._pause_seconds)
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)

    def _well(self) -> None:
        """A step of the study has succeeded, or it waits for silos alone. Not what every try begins with, such as to
        open the study: its pauses would not grow."""
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        if self._runtime.trouble:
            self._runtime.trouble = ""
            _LOG.info("the system works again: the study continues")

    async def _run_next(self) -> StudyRow | None:
        trouble = await self._lifecycle.tidy_up()
        study = self._ledger.next_study()
        if study is None:
            if trouble is not None:
                raise trouble
            self._well()
            return None
        try:
            await self._run(study)
        except SystemTrouble:
            raise
        except RoundGone:  # while a step of the round was under way; what it gave is of no use
            _LOG.info("study %s begins again, or goes back to an earlier round", study.name)
        except SemisiloError as error:
            if self._operated:  # else whoever runs the study is told by its reason
                _LOG.error("study %s failed: %s Then queue it again: coordinator queue %s", study.name, error.line(),
                           study.name)
            self._failed(study.name, error.line())
        except Exception as error:
            if isinstance(error, MemoryError) or explained(error) is not None:
                raise  # says nothing of the study
            text = f"an error that nobody foresaw, {type(error).__name__}: {error}"
            _LOG.exception("study %s failed: %s. Please report it with the lines below.%s", study.name, text,
                           f" To continue from its last round: coordinator queue {study.name}" if self._operated
                           else "")
            self._failed(study.name, f"{text}. The coordinator's log has where." if self._operated else f"{text}.")
        self._labels_alone.leave()
        self._well()
        await self._lifecycle.tidy_up()
        return self._ledger.study(study.name)

    def _failed(self, name: str, reason: str) -> None:
        with self._ledger.transaction():
            if self._ledger.study_state(name) is not StudyState.STOPPED:
                self._ledger.set_study_state(name, StudyState.FAILED, reason=reason)
        self._runtime.set(reason=StandbyReason.NO_STUDY, text=f"study {name} failed", activity="")

    async def _run(self, row: StudyRow) -> None:
        name = row.name
        self._resumed = True
        if self._ledger.move_study(name, StudyState.QUEUED, StudyState.PREPARING):
            row = self._ledger.study(name)  # until now an operator could give it other settings
        config = config_from_dict(row.config, where=f"study {name}")
        self._sums.begin(config.privacy, seed=config.study.seed)
        self._runtime.set(study=name, round=0, rounds=config.study.rounds, phase="",
                          reason=StandbyReason.COORDINATOR_WORKING, activity="reading images", text="")
        await self._operator.wait_while_paused(name)
        if self._operator.is_stopped(name):
            return
        study = await self._steps.open_study(row, config)
        self._card = note_card(self._ledger, card_of(name, config, study.frozen), now_unix=self._clock())
        self._labels_alone.begin(study)
        if self._ledger.committed_digest(name) == "":
            await self._prepare(study)
            self._well()
        else:
            await self._lifecycle.take_cancelled_back(name)
            last = self._ledger.last_round(name)
            if last is not None and last.state in ENDED_ROUND:
                # A coordinator that was killed after a commit has not removed what that round needed; after the last
                # round no other would.
                await self._cleanup.remove_unneeded(name, keep_every=config.study.keep_every)
        if not await self._wait_for_silos(study):
            return
        for number in range(1, config.study.rounds + 1):
            last = self._ledger.last_round(name)
            assert last is not None
            if number < last.number or (number == last.number and last.state in ENDED_ROUND):
                continue
            if number > last.number:
                # Before patience: what silos refuse is for an operator to look at, and no end of the study.
                pause_when_refused(self._ledger, name, start_with=config.study.start_with if self._operated else 0,
                                   also_unasked=self._operated and not self._is_behind_sums(name, last.number))
            await self._operator.wait_while_paused(name)
            if self._operator.is_stopped(name):
                return
            if number > last.number and (early := stopped_early(self._ledger, name, config.study,
                                                                study.frozen.study_measure)):
                _LOG.info("study %s %s", name, early)
                break
            await self._round(study, number)
        while True:
            await self._operator.wait_while_paused(name)
            if self._operator.is_stopped(name):
                return
            await self._lifecycle.write_model(name)
            await self._labels_alone.finish()
            heads = round_heads(self._ledger, name)
            if prefers_labels_alone(self._ledger.study(name), handed_over(heads), heads):
                await self._lifecycle.write_model(name)
            await self._lifecycle.compare_with_labels_alone(name)
            early = stopped_early(self._ledger, name, config.study, study.frozen.study_measure)
            if self._ledger.move_study(name, StudyState.RUNNING, StudyState.COMPLETED, reason=early):
                break
        self._cleanup.remove_spares()
        row = self._ledger.study(name)
        choice = choice_of(row, round_heads(self._ledger, name), first_update=first_update(self._ledger, name))
        _LOG.info("study %s is complete: it %s. %s Next: %s", name,
                  participation_of(self._ledger, row).text or "ran on no silo", choice.conclusion,
                  next_command(row, choice))
        self._runtime.set(reason=StandbyReason.NO_STUDY, text=f"study {name} is complete", activity="", phase="")

    # Round 0 ----------------------------------------------------------------------------------------------------------

    async def _prepare(self, study: RunningStudy) -> None:
        if self._ledger.last_round(study.name) is None:
            self._clock_steps.look()
            self._ledger.open_round(study.name, 0, start_digest="", sample=(), phases=())
        await self._operator.wait_while_paused(study.name)
        if self._operator.is_stopped(study.name):
            return
        alone: LabelledOnlyResult | None = None
        if study.round_0_steps:
            alone = await self._labels_alone.for_round_0(study)
            if self._operator.is_stopped(study.name):
                return
        if alone is None:
            request, doing = Prepare(), "training on labels" if study.frozen.num_labelled else "the first model"
        else:
            request, doing = Prepare(labels_alone=alone.model_digest, loss=alone.loss), "the model of labels alone"
        prepared = await self._steps.call(request, activity=f"round 0: {doing}")
        self._move_round_with_clock(study.name, 0)
        with self._ledger.transaction():
            self._ledger.set_round_state(study.name, 0, RoundState.EVALUATING, state_digest=prepared.state,
                                         metrics=prepared.metrics)
            self._ledger.commit_round(study.name, 0, metrics=prepared.metrics, confusion=prepared.confusion)
        await self._accountant.settle(study=study.name, round=0, phase="standby")
        self._log_round(study, 0, prepared.metrics)

    async def _wait_for_silos(self, study: RunningStudy) -> bool:
        """Until as many silos have joined as the study starts with, and as a secure sum takes; False when the operator
        stops it before.

        One that has had its first round needs a single one: some of those that it began with may be set aside by now.
        One without a round left, which failed or was stopped at its very end, needs none.
        """
        last = self._ledger.last_round(study.name)
        begun = (last is not None and last.number > 0) or count_rollbacks(self._ledger, study.name) > 0
        wanted = 1 if begun else max(study.config.study.start_with, study.config.privacy.fewest_silos)
        if (last is not None and last.state in ENDED_ROUND and last.number >= study.config.study.rounds) \
                or stopped_early(self._ledger, study.name, study.config.study, study.frozen.study_measure):
            wanted = 0
        while True:
            await self._operator.wait_while_paused(study.name)
            if self._operator.is_stopped(study.name):
                return False
            self._ledger.move_study(study.name, StudyState.PREPARING, StudyState.WAITING)
            if self._ledger.study_state(study.name) is StudyState.RUNNING:
                return True
            if not await self._availability.wait_for_start(study, wanted):
                return False
            self._ledger.move_study(study.name, StudyState.WAITING, StudyState.RUNNING)

    # Rounds -----------------------------------------------------------------------------------------------------------

    async def _round(self, study: RunningStudy, number: int) -> None:
        row = self._ledger.last_round(study.name)
        if row is None or row.number < number:
            self._sums.heed_complaints(study.name, round=number - 1)
            members, size = await self._availability.wait_for_quorum(study)
            if not members:
                return
            row = await self._open_round(study, number, members, size)
        self._runtime.set(round=number)
        while row.state not in ENDED_ROUND:
            await self._wait_while_paused(study)
            if self._operator.is_stopped(study.name):
                return
            try:
                if row.state is RoundState.PREPARING:
                    await self._open_phase(study, row)
                elif row.state is RoundState.COLLECTING:
                    await self._collect(study, row)
                elif row.state is RoundState.AGGREGATING:
                    await self._aggregate(study, row)
                else:
                    await self._commit(study, row)
            except SecureSumFailed as error:
                await self._fail_round(study, row, error.text)
            row = self._ledger.round(study.name, number)
            self._well()

    async def _open_round(self, study: RunningStudy, number: int, members: list[str], size: int) -> RoundRow:
        start = self._ledger.committed_digest(study.name)
        planned = await self._steps.call(Phases(state=start, round=number, silos=self._count_silos(study)),
                                         activity="opening the round")
        generator = numpy_generator(study.config.study.seed, "sample", round=number)
        chosen = generator.choice(len(members), size=size, replace=False)
        sample = sorted((members[index] for index in chosen), key=str.encode)
        self._clock_steps.look()  # what was before the round is not of it
        row = self._ledger.open_round(study.name, number, start_digest=planned.state or start, sample=sample,
                                      phases=self._sums.phases(planned.phases))
        self._note_large_counts(row)
        return row

    def _count_silos(self, study: RunningStudy) -> int:
        """How many silos the study is made of: members that permit its method and that are heard, or have answered a
        task of it. What a method keeps of all silos must not be divided by those that will never give any."""
        silent = {member.name for member in self._roster.members_heard() if member.silent_unix is not None}
        return sum(silo not in silent or has_taken_part(self._ledger, study.name, silo)
                   for silo in self._roster.members_permitting(study.config.method.name))

    def _note_large_counts(self, row: RoundRow) -> None:
        """Tells the operator, once in a study, of silos that announce far more images than the others of a round: what
        they announce first is no jump."""
        counts = self._roster.announced_by(frozenset(row.sample))
        for silo, middle in far_above(counts).items():
            if has_notice(self._ledger, NoticeKind.COUNT_LARGE, silo=silo, study=row.study):
                continue
            text = (f"it announces {counts[silo]} images, and half of the others of the round {middle} at most: where"
                    " counts are weights, its update may weigh so")
            _LOG.warning("%s, round %d: %s: %s", row.study, row.number, silo, text)
            with self._ledger.transaction():
                add_notice(self._ledger, NoticeKind.COUNT_LARGE, study=row.study, round=row.number, silo=silo,
                           text=text)

    async def _open_phase(self, study: RunningStudy, row: RoundRow) -> None:
        phase = row.phases[row.phase]
        self._runtime.set(reason=StandbyReason.COORDINATOR_WORKING, phase=phase.name)
        asked, quorum = self._asked(study, row, phase)
        states = self._ledger.silo_states(study.name, asked, round=row.number)
        written, questions = WrittenTasks(tasks={}, expects={}), dict[str, str]()
        if phase.step in ("", "mask"):
            written = await self._steps.call(Tasks(
                state=row.state_digest, round=row.number, phase=method_phase(phase),
                silos={silo: kept for silo, (_, kept) in states.items()},
                held={silo: tuple(sorted(self._runtime.held.get(silo, ()))) for silo in asked},
                link_bytes_per_second=self._slowest_link(asked)), activity="writing tasks")
        if phase.step:
            written, questions = self._step_tasks(study, row, phase, asked, written)
            asked = [silo for silo in asked if silo in questions]
        self._move_round_with_clock(row.study, row.number)  # steps from now on count for the phase's deadline
        now, limit = self._clock(), study.config.participation.limit_seconds
        opened = PhaseRow(study=study.name, round=row.number, number=row.phase, name=phase.name,
                          quorum=quorum, opened_unix=now, deadline_unix=now + _timeout_seconds(study, phase.step),
                          limit_unix=now + limit, closed_unix=None, expects=written.expects, step=phase.step)
        tasks: list[TaskSpec] = []
        columns: list[str] = []
        # A silo that has answered a task sends the same answer again: it must know another one when it sees it.
        again = count_rollbacks(self._ledger, study.name)
        # Later phases of a round hold what is not committed, and may never be.
        committed = self._ledger.committed_round(study.name) if row.state_digest == row.start_digest else None
        for silo in asked:
            tasks.append(self._task_spec(study, row, phase.name, silo, written.tasks[silo], opened.deadline_unix,
                                         again=again, last_folded=states[silo][0], committed=committed,
                                         secure=questions.get(silo, "")))
            columns.append(task_column(tasks[-1]))
            if len(tasks) % _TASKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._accountant.settle(study=study.name, round=row.number, phase="standby")
        self._ledger.open_phase(opened, tasks, columns=columns)
        self._resumed = False
        self._runtime.silos.clear()
        self._runtime.set(reason=StandbyReason.COLLECTING, activity="")
        _LOG.log(logging.INFO if phase.step in ("", "mask") else logging.DEBUG,
                 "%s, round %d/%d: phase %s opened for %s", study.name, row.number, study.config.study.rounds,
                 phase.name, ", ".join(asked) or "nobody")

    def _task_spec(self, study: RunningStudy, row: RoundRow, phase: str, silo: str, task: WrittenTask,
                   deadline_unix: float, *, again: int, last_folded: int, committed: int | None,
                   secure: str = "") -> TaskSpec:
        model: ModelSettings = study.config.model
        return TaskSpec(
            task_id=task_id_of(study.name, row.number, f"{row.phase}-{phase}", silo, again=again),
            study=study.name, round=row.number, rounds=study.config.study.rounds, phase=phase, silo=silo,
            method=study.config.method.name, settings=task.settings,
            model=model.sent(study.frozen.classes),
            image=study.frozen.image,
            augmentation=study.config.augmentation.decided(study.frozen.left_out_views),
            numerics=study.config.numerics, payloads=task.payloads,
            last_folded_round=last_folded, seed=study.config.study.seed,
            deadline_unix=deadline_unix, uplink=study.config.wire.uplink_form(),
            model_round=committed if task.brings_model else None,
            model_digest=self._ledger.committed_digest(study.name)
            if task.brings_model and committed is not None else "",
            measure=str(study.frozen.study_measure),
            secure=secure, dp=study.config.privacy.dp, card=self._card)

    def _asked(self, study: RunningStudy, row: RoundRow, phase: Phase) -> tuple[list[str], int]:
        """Whom a phase asks, and how many answers it needs."""
        if not self._sums.begins(phase):
            asked = self._sums.asked(row, phase)
            return asked, self._quorum(study, row, phase, len(asked))
        members = self._roster.members()
        there, quorum = frozenset(members), self._quorum(study, row, phase, len(row.sample))
        asked = self._hearing.heard(
            [silo for silo in (row.sample if phase.asks == "sample" else members) if silo in there],
            at_least=max(1, quorum))
        if not phase.step:
            return asked, quorum
        there_is = [silo for silo in asked if not self._has_masked(silo, row)]
        fewest = self._sums.fewest(row, phase, len(there_is))
        if len(there_is) < fewest:
            before = [silo for silo in asked if silo not in there_is]
            also = (f"; {', '.join(before)} masked an update of this round before the coordinator went back to an"
                    " earlier state, and does so once for a round") if before else ""
            raise SecureSumFailed(f"a secure sum takes {fewest} silos, and {len(there_is)} can be asked{also}")
        return there_is, max(quorum, fewest)

    def _has_masked(self, silo: str, row: RoundRow) -> bool:
        """Whether a silo says that it has had part in the sum of a round: in one that this ledger knows nothing of."""
        study, number, last = self._runtime.masked.get(silo, ("", 0, ""))
        ahead = [method_phase(phase).name for phase in row.phases[row.phase:]]
        return study == row.study and (number > row.number or (number == row.number and last in ahead))

    def _is_behind_sums(self, study: str, number: int) -> bool:
        """Whether most members say that they have had part in sums of a round or later ones, as after a backup was
        restored: those rounds fail, and then the study goes on. What a single silo says is not enough."""
        members = self._roster.members()
        ahead = [silo for silo in members if (said := self._runtime.masked.get(silo)) is not None
                 and said[0] == study and said[1] >= number]
        return 2 * len(ahead) > len(members)

    def _step_tasks(self, study: RunningStudy, row: RoundRow, phase: Phase, asked: list[str],
                    written: WrittenTasks) -> tuple[WrittenTasks, dict[str, str]]:
        """What silos are asked in a step of a secure sum, and the message of the step by silo."""
        settings = study.config.method.settings
        with self._ledger.transaction():
            self._sums.open(row, phase, asked)
            if phase.step != "mask":
                questions = self._sums.questions(row, phase, asked)
                plain = WrittenTask(settings=to_dict(settings), payloads=())
                return WrittenTasks(tasks=dict.fromkeys(asked, plain), expects={}), questions
            measures = method_phase(phase).name in MEASURING
            by_size = measures or getattr(settings, "weighting", "uniform") == "size"
            # As in the clear no silo has more than its share, nor as many as may lie together, whatever they announce:
            # the others would weigh next to nothing beside them.
            counts = capped_counts([self._roster.announced(silo) for silo in (
                asked if measures or not keeps_weights(settings) else self._weighed_together(study))],
                study.config.participation.largest_share, together=study.config.robust.capped_together)
            reference = max(counts, default=0) if by_size else 0
            images, contribution = _of_one_step(study, written)
            form = self._sums.form_of_moments(row, phase, asked, tensors=len(written.largest), reference=reference) \
                if measures else self._sums.form(
                    row, phase, asked, largest_weights=written.largest, elements=elements_of(written.expects),
                    reference=reference, totals=totals_of(settings), images=images, contribution=contribution)
            return replace(written, expects=masked_layout(written.expects, form)), self._sums.questions(
                row, phase, asked, form=form)

    def _weighed_together(self, study: RunningStudy) -> list[str]:
        """Silos by whose images those of every round weigh, whoever is asked in it: members that permit the method and
        are not set aside."""
        aside = self._roster.aside()
        return [silo for silo in self._roster.members_permitting(study.config.method.name) if silo not in aside]

    def _quorum(self, study: RunningStudy, row: RoundRow, phase: Phase, num_asked: int | None = None, *,
                back: Set[str] = frozenset()) -> int:
        """Answers that a phase of a round needs: silos that are set aside do not count. At least one, but for phases
        that need none; of a secure sum as many as can take the masks off.

        Args:
            num_asked: silos that are asked in it; None where it is open.
            back: silos that were set aside and have been taken back since it was opened.
        """
        quorum = 0
        if phase.quorum == "study" and phase.step in ("", "keys", "shares", "mask"):
            aside = {*self._roster.aside(), *back}
            there_are = sum(silo not in aside for silo in row.sample) if aside else len(row.sample)
            quorum = max(1, study.config.participation.quorum_of(there_are))
        return max(quorum, self._sums.fewest(row, phase, num_asked)) if phase.step else quorum

    async def _collect(self, study: RunningStudy, row: RoundRow) -> None:
        phase = self._ledger.phase(study.name, row.number, row.phase)
        if self._resumed:
            self._renew_deadline(study, phase)
            self._resumed = False
            phase = self._ledger.phase(study.name, row.number, row.phase)
        told, answered, back, stood = False, 0, frozenset[str](), self._runtime.stood_still_seconds
        waited_for, version = frozenset[str](), -1
        """Silos that had not answered, and the version of the ledger, at the last count."""
        self._runtime.set(reason=StandbyReason.COLLECTING, phase=phase.name, activity="")
        while True:
            self._move_with_clock(phase)
            if self._runtime.stood_still_seconds > stood:
                self._move_by_standstill(phase, self._runtime.stood_still_seconds - stood)
                stood = self._runtime.stood_still_seconds
            await self._wait_while_paused(study, phase)
            if self._operator.is_stopped(study.name):
                await self._book()
                return
            left_out = self._leave_excluded_out(row)
            waiting = self._ledger.open_tasks(study.name, row.number, row.phase)
            silent, now_version = frozenset(waiting), self._ledger.data_version()
            # Every call of a silo brings us here, and to count looks at all tasks: only at those that have ended since,
            # unless others have written too.
            if left_out or now_version != version or not silent <= waited_for:
                answered = self._ledger.count_answers(study.name, row.number, row.phase)
                back = self._taken_back(row)
            elif silent != waited_for:
                ended = waited_for - silent
                answers = self._ledger.count_answers(study.name, row.number, row.phase, of=ended)
                answered += answers
                back = self._taken_back(row) if answers < len(ended) else back
            waited_for, version = silent, now_version
            phase = self._ledger.phase(study.name, row.number, row.phase)
            if phase.quorum > (quorum := self._quorum(study, row, row.phases[row.phase], back=back)):
                phase = self._ledger.lower_quorum(phase, quorum)
            now = self._clock()
            self._seen = phase, now
            if not waiting:
                if answered >= phase.quorum:
                    break
                refused = self._ledger.count_refusals(study.name, row.number, row.phase)
                also = f" ({counted(refused, 'refusal')} beside them)" if refused else ""
                await self._fail_round(study, row, f"{answered} of {phase.quorum} answers{also}, and no other silo is"
                                                   " left to ask")
                return
            if now >= phase.deadline_unix and answered >= phase.quorum:
                _LOG.warning("%s, round %d: closed at its deadline without %s", study.name, row.number,
                             ", ".join(waiting))
                break
            if answered >= phase.quorum and all(self._roster.back_at(silo, now) >= phase.deadline_unix
                                                for silo in waiting):
                _LOG.warning("%s, round %d: closed without %s, away by their own policy until after its deadline",
                             study.name, row.number, ", ".join(waiting))
                break
            if now >= phase.limit_unix:
                await self._fail_round(study, row, f"{answered} of {phase.quorum} answers within round_limit;"
                                                   f" missing: {', '.join(waiting)}")
                return
            if now >= phase.deadline_unix and not told:
                _LOG.warning("%s, round %d: past its deadline with %d of %d answers; waiting on for %s", study.name,
                             row.number, answered, phase.quorum, ", ".join(waiting))
                told = True
            end = phase.deadline_unix if now < phase.deadline_unix else phase.limit_unix
            self._well()
            await self._labels_alone.wait(min(end - now, 60.0) + 0.001)
            if len(waiting) > FEW_SILOS:
                await asyncio.sleep(len(waiting) * _PAUSE_SECONDS_PER_SILO)
        await self._accountant.settle(study=study.name, round=row.number, phase=phase.name)
        self._ledger.close_phase(phase)
        self._runtime.set(reason=StandbyReason.COORDINATOR_WORKING)

    def _renew_deadline(self, study: RunningStudy, phase: PhaseRow) -> None:
        """Of a phase that was left alone: what silos could not deliver meanwhile must not count against them. After a
        start they have as long as in a new one. After an error of the system they have what was left when it came:
        errors that come again and again would hold the phase open for good otherwise."""
        step, now = self._clock_steps.look(), self._clock()
        if self._seen is not None and _limits_of(self._seen[0]) == _limits_of(phase):
            away = now - self._seen[1]
            opened, deadline, limit = phase.opened_unix + step, phase.deadline_unix + away, phase.limit_unix + away
        else:
            ahead = max(0.0, phase.opened_unix - now)  # the clock then was: it would hold the phase open as long
            opened = phase.opened_unix - ahead
            deadline = max(phase.deadline_unix - ahead, now + _timeout_seconds(study, phase.step))
            limit = max(phase.limit_unix - ahead, now + study.config.participation.limit_seconds)
        self._ledger.move_deadline(phase, opened_unix=opened, deadline_unix=deadline, limit_unix=limit)

    def _leave_excluded_out(self, row: RoundRow) -> bool:
        """What silos have sent for the phase that the operator has revoked or set aside since is not folded. Behind
        masks that can be done until the list of survivors is signed: they then count as silos that dropped out.

        Returns: whether there was any.
        """
        excluded = self._roster.excluded()
        if not excluded or row.phases[row.phase].step not in ("", "mask"):
            return False
        found = self._ledger.updated_tasks(row.study, row.number, row.phase, excluded)
        if not found:
            return False
        with self._ledger.transaction():
            for task in found:
                self._ledger.leave_out(task, reason=excluded[task.silo])
        for task in found:
            _LOG.warning("%s, round %d: the update of %s is left out: %s", row.study, row.number, task.silo,
                         excluded[task.silo])
        return True

    def _taken_back(self, row: RoundRow) -> frozenset[str]:
        """Silos that were set aside in the open phase, which ended their tasks for good, and are members again."""
        cancelled = self._ledger.cancelled_silos(row.study, row.number, row.phase)
        return frozenset(cancelled - self._roster.excluded().keys()) if cancelled else frozenset()

    async def _is_still_enough(self, study: RunningStudy, row: RoundRow) -> bool:
        """Whether a closed phase has its quorum without silos that the operator has excluded since; else the round has
        failed."""
        self._leave_excluded_out(row)
        phase = self._ledger.phase(study.name, row.number, row.phase)
        quorum = min(phase.quorum, self._quorum(study, row, row.phases[row.phase], back=self._taken_back(row)))
        answered = self._ledger.count_answers(study.name, row.number, row.phase)
        if answered >= quorum:
            return True
        await self._fail_round(study, row, f"{answered} of {quorum} answers, without those of silos that were revoked"
                                           " or set aside")
        return False

    async def _wait_while_paused(self, study: RunningStudy, phase: PhaseRow | None = None) -> None:
        """
        Args:
            phase: that is open; None where none is.
        """
        if phase is None:
            paused = await self._operator.wait_while_paused(study.name)
        else:
            self._runtime.delivering = True
            try:
                paused = await self._operator.wait_while_paused(study.name, meanwhile=partial(self._book_late, phase))
            finally:
                self._runtime.delivering = False
        if not paused:
            return
        # `resume` has moved the deadline by what the clock says that the pause has lasted.
        step = self._clock_steps.look()
        if step and phase is not None and not self._operator.is_stopped(study.name):
            phase = self._ledger.phase(phase.study, phase.round, phase.number)
            self._ledger.move_deadline(phase, opened_unix=phase.opened_unix + step, deadline_unix=phase.deadline_unix,
                                       limit_unix=phase.limit_unix)

    async def _book_late(self, phase: PhaseRow) -> None:
        """What silos deliver for an open phase while its study is paused belongs to the phase, the last answer too;
        what they ask while none has a task left does not."""
        if self._runtime.delivering and not self._ledger.open_tasks(phase.study, phase.round, phase.number):
            await self._book()
            self._runtime.delivering = False

    async def _book(self) -> None:
        """Books the bytes since the last time to what they belong to, before that is another."""
        account = self._runtime.account()
        await self._accountant.settle(study=account.study, round=account.round, phase=account.phase)

    def _move_with_clock(self, phase: PhaseRow) -> None:
        """Moves the deadline of a phase with the clock, where that was set: silos have the time they were given. When
        it was opened moves as well: a restart finds by it that the clock was ahead."""
        step = self._clock_steps.look()
        if not step:
            return
        phase = self._ledger.phase(phase.study, phase.round, phase.number)
        self._ledger.move_deadline(phase, opened_unix=phase.opened_unix + step,
                                   deadline_unix=phase.deadline_unix + step, limit_unix=phase.limit_unix + step)
        _LOG.warning("this machine's clock was set %s by %s, or the machine has slept: the deadline of round %d"
                     " of %s moves with it", "ahead" if step > 0 else "back", describe_seconds(abs(step)), phase.round,
                     phase.study)

    def _move_round_with_clock(self, study: str, number: int) -> None:
        """The same for a round of which no phase is open: how long it took is not to hang on who sets a clock."""
        step = self._clock_steps.look()
        if step:
            self._ledger.move_round(study, number, step)

    def _move_by_standstill(self, phase: PhaseRow, seconds: float) -> None:
        """Moves the deadline of a phase by the time by which this process woke too late. It may have stood still for up
        to a minute more: a wait that is not over yet does not tell what it was interrupted by.
        """
        phase = self._ledger.phase(phase.study, phase.round, phase.number)
        self._ledger.move_deadline(phase, deadline_unix=phase.deadline_unix + seconds,
                                   limit_unix=phase.limit_unix + seconds)
        _LOG.warning("this process stood still for %s, stopped or held up: the deadline of round %d of %s moves by it",
                     describe_seconds(seconds), phase.round, phase.study)

    async def _fail_round(self, study: RunningStudy, row: RoundRow, reason: str) -> None:
        _LOG.error("%s, round %d failed: %s; the model stays as it was", study.name, row.number, reason)
        await self._book()
        self._ledger.fail_round(row, reason=reason)
        await self._cleanup.remove_updates(study.name, row.number)
        self._runtime.notify()

    async def _aggregate(self, study: RunningStudy, row: RoundRow) -> None:
        self._runtime.set(reason=StandbyReason.COORDINATOR_WORKING)
        if row.phases[row.phase].step:
            await self._sum(study, row)
            return
        if not await self._is_still_enough(study, row):
            return
        accepted = self._ledger.accepted_updates(study.name, row.number, row.phase)
        states = self._ledger.silo_states(study.name, [task.silo for task, _ in accepted], round=row.number)
        updates = tuple(SpooledUpdate(
            header=update.header(task.silo), path=self._spool.path(update.digest),
            kept=states[task.silo][1]) for task, update in accepted)
        folded = await self._steps.call(Aggregate(
            state=row.state_digest, round=row.number, phase=row.phases[row.phase], updates=updates,
            gone=self._roster.gone()), activity=f"aggregating {len(accepted)} updates")
        if not self._roster.excluded().keys().isdisjoint(task.silo for task, _ in accepted):
            return  # since then: once more, without it
        metrics = {**row.metrics, **folded.metrics}
        with self._ledger.transaction(lasting=False):
            self._note_measures(row, {task.silo: task for task, _ in accepted}, folded)
            self._ledger.folded(study.name, row.number, folded.kept)
            self._go_on(row, row.phase + 1, state_digest=folded.state, metrics=metrics)

    def _go_on(self, row: RoundRow, phase: int, *, state_digest: str, metrics: dict[str, float]) -> None:
        """Opens the phase of that number next; behind the last the round is evaluated."""
        more = phase < len(row.phases)
        self._ledger.set_round_state(row.study, row.number, RoundState.PREPARING if more else RoundState.EVALUATING,
                                     metrics=metrics, state_digest=state_digest, phase=phase if more else None)

    async def _sum(self, study: RunningStudy, row: RoundRow) -> None:
        """Behind a step of a secure sum: the next step; behind the last one the sum is given to the strategy."""
        if row.phases[row.phase].step == "mask" and not await self._is_still_enough(study, row):
            return
        ready = self._sums.ready(row)
        if ready is None:
            with self._ledger.transaction(lasting=False):
                self._go_on(row, row.phase + 1, state_digest=row.state_digest, metrics=row.metrics)
            return
        accepted = self._ledger.accepted_updates(study.name, row.number, ready.phase)
        if not ready.groups:
            _LOG.warning("%s, round %d: %s; a sum of fewer than %d is not made, so this round adds nothing of them",
                         study.name, row.number, counted(len(accepted), "masked update"), ready.fewest)
        unmasked = await self._sums.unmasked(row, ready)
        spoilt = self._spoilt_sums(row, [group.silos for group in unmasked])
        groups = tuple(replace(group, least_weight=self._sums.least_weight(ready.form, group.silos))
                       for group in unmasked if group.silos[0] not in spoilt)
        added = frozenset(silo for group in groups for silo in group.silos)
        updates = tuple(SpooledUpdate(
            header=update.header(task.silo), path=self._spool.path(update.digest), kept=None)
            for task, update in accepted if task.silo in added)
        folded = await self._steps.call(Aggregate(
            state=row.state_digest, round=row.number, phase=method_phase(row.phases[row.phase]), updates=updates,
            masked=MaskedSum(form=ready.form, groups=groups)),
            activity=f"adding up {len(updates)} masked updates")
        if not self._roster.excluded().keys().isdisjoint(added):
            return  # since then: once more, without it
        for group in (each for each in groups if each.silos[0] in folded.left_out):
            _LOG.warning("%s, round %d: nothing of %s is added up: %s", study.name, row.number,
                         ", ".join(group.silos), folded.left_out[group.silos[0]])
        added = added.difference(folded.left_out)
        if folded.outcome is not None:
            made = sum(group.silos[0] in added for group in groups)
            _LOG.info("%s, round %d/%d: masked updates of %s added up%s", study.name, row.number,
                      study.config.study.rounds, counted(folded.outcome.silos, "silo"),
                      f" in {counted(made, 'group')}" if study.config.privacy.group_size else "")
        with self._ledger.transaction(lasting=False):
            if folded.outcome is not None:
                self._sums.made(row, folded.outcome)
                self._ledger.folded(study.name, row.number, dict.fromkeys(sorted(added, key=str.encode)))
            for task, _ in accepted:
                if task.silo not in added:
                    self._ledger.leave_out(task, reason=(folded.left_out | spoilt).get(
                        task.silo, "too few masked updates came to add them up"))
            self._go_on(row, ready.after, state_digest=folded.state, metrics={**row.metrics, **folded.metrics})

    def _spoilt_sums(self, row: RoundRow, groups: Sequence[Sequence[str]]) -> dict[str, str]:
        """Silos of sums with somebody in them whom the operator has excluded since the list of survivors was signed ->
        why nothing of these sums is used: masked words cannot be taken out of one.

        Raises: SecureSumFailed where that is so of all sums.
        """
        excluded = self._roster.excluded()
        spoilt: dict[str, str] = {}
        for group in groups:
            for silo in sorted(excluded.keys() & set(group)):
                spoilt |= dict.fromkeys(group, f"{silo}: {excluded[silo]}, and what it has sent behind masks cannot be"
                                               " taken out of the sum")
        if spoilt and len(spoilt) == sum(len(group) for group in groups):
            raise SecureSumFailed(spoilt[groups[0][0]])
        for silo, reason in spoilt.items():
            _LOG.warning("%s, round %d: nothing of %s is added up: %s", row.study, row.number, silo, reason)
        return spoilt

    def _note_measures(self, row: RoundRow, tasks: dict[str, TaskRow], folded: Aggregated) -> None:
        """What was measured of the updates of a phase; whose update was left out, and whose stands out."""
        self._ledger.measured(row.study, row.number, row.phase, folded.measures)
        for silo, reason in folded.left_out.items():
            _LOG.warning("%s, round %d: the update of %s is left out: %s", row.study, row.number, silo, reason)
            self._ledger.leave_out(tasks[silo], reason=reason)
            add_notice(self._ledger, NoticeKind.LEFT_OUT, study=row.study, round=row.number, silo=silo, text=reason)
        standing_out = {silo: [each.text for each in found] for silo, found in stand_out(folded.measures).items()}
        for silo, text in folded.notices.items():
            standing_out.setdefault(silo, []).append(text)
        for silo, texts in standing_out.items():
            text = "; ".join(texts)
            _LOG.warning("%s, round %d: %s stands out: %s", row.study, row.number, silo, text)
            add_notice(self._ledger, NoticeKind.STANDS_OUT, study=row.study, round=row.number, silo=silo, text=text)

    async def _commit(self, study: RunningStudy, row: RoundRow) -> None:
        measured = await self._steps.call(Evaluate(state=row.state_digest, round=row.number), activity="evaluating")
        await self._accountant.settle(study=study.name, round=row.number, phase="standby")
        metrics = {**row.metrics, **measured.metrics}  # of its phases, then of its model
        self._move_round_with_clock(row.study, row.number)
        self._ledger.commit_round(study.name, row.number, metrics=metrics, confusion=measured.confusion)
        await self._cleanup.remove_unneeded(study.name, keep_every=study.config.study.keep_every)
        self._log_round(study, row.number, metrics)

    def _log_round(self, study: RunningStudy, number: int, metrics: dict[str, float]) -> None:
        missing = "no accuracy yet" if study.frozen.num_test else "no test set"
        measure = study.frozen.study_measure
        found = [f"{title} {metrics[name]:.4f}" for title, name in dict.fromkeys((
            (measure.title, measure.metric), ("accuracy", "accuracy"))) if name in metrics]
        if "selection_score" in metrics:
            found.append(f"{measure.title} on validation images {metrics['selection_score']:.4f}")
        _LOG.info("%s, round %d/%d committed: %s", study.name, number, study.config.study.rounds,
                  ", ".join(found) or missing)


def _timeout_seconds(study: RunningStudy, step: SumStep) -> float:
    """From the opening of a phase to its deadline."""
    return min(study.config.participation.timeout_seconds, STEP_SECONDS.get(step, math.inf))


def _limits_of(phase: PhaseRow) -> tuple[str, int, int, float, float]:
    """Other ones are of another phase, or an operator has moved them."""
    return phase.study, phase.round, phase.number, phase.deadline_unix, phase.limit_unix


def _of_one_step(study: RunningStudy, written: WrittenTasks) -> tuple[int, float]:
    """Where silos share the noise of a step: images that it expects, and what one of them moves an update at most."""
    dp, settings = study.config.privacy.dp, study.config.method.settings
    if dp is None or dp.unit != "example" or not dp.honest_silos:
        return 0, 0.0
    lr = next(float(str(task.settings["round_lr"])) for task in written.tasks.values())
    return settings.expected_images, contribution_of(dp, settings, lr=lr)
