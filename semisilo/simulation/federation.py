"""A federation without a wire: the coordinator's own engine, task service and ledger, and every silo, in one place.

The engine opens phases as for real silos; here every silo that was asked and does not drop out answers, and the clock
jumps to the deadline for the others.

Tests: tests/semisilo/simulation/test_simulate.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
from pathlib import Path

from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.errors import ComputeFailed, PluginFailed, SemisiloError
from semisilo.common.learning.seeds import derive_seed
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.models.own.model_file import names_file
from semisilo.common.process.compute import OnProgress
from semisilo.common.storage.durable import write_secret
from semisilo.coordinator.ledger.cleanup import open_payloads, open_spool
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import NOISE_KEY
from semisilo.coordinator.ledger.roster import SimulatedMember
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, RoundState, StudyState, TaskState
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.secure_sums import Sums
from semisilo.coordinator.rounds.study_lifecycle import refused_rounds, unasked_rounds
from semisilo.coordinator.studies.study_file import StudyConfig
from semisilo.coordinator.tasks.task_service import Hello, TaskService
from semisilo.silo.agent.answer import ReadyAnswer
from semisilo.silo.site.policy import Permit, Policy
from semisilo.simulation.availability import AvailableRoster, drops_out
from semisilo.simulation.clock import PhaseClock
from semisilo.simulation.dealing import Dealt
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.shared_line import SharedLine
from semisilo.simulation.silos import SimulatedSilo, Workplace

__all__ = ["SimulatedFederation", "SimulationWatcher"]

_LOG = logging.getLogger("semisilo.simulation")


class SimulationWatcher:
    """Told what happens; this one says nothing."""

    def step(self, text: str) -> None:
        """A line about what is done next."""

    def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
        """What is being done and how far it is; comes after every task and several times a second while one lasts."""

    def finished(self, ledger: Ledger, study: str) -> None:
        """All rounds are over."""

    def done(self) -> None:
        """The simulation is over, or has failed."""


class _Accountant:
    """There is no wire here, so nothing to be measured on it."""

    async def settle(self, *, study: str, round: int, phase: str) -> None:
        """See `semisilo.coordinator.rounds.engine.Accountant`."""


class SimulatedFederation:
    """Coordinator and silos of one study."""

    def __init__(self, dealt: Dealt, folder: SimulationFolder, ledger: Ledger, *, device: str,
                 watcher: SimulationWatcher, labels_alone: Path | None = None) -> None:
        """
        Args:
            device: "cpu" or "cuda"; empty: an accelerator where there is one.
            labels_alone: folder of the simulation whose line of labels alone is taken; None to train it here.
        """
        from semisilo.simulation.measuring import MeasuringCompute  # torch, only now

        self._dealt = dealt
        self._study = dealt.study.name
        self._ledger = ledger
        self._watcher = watcher
        self._settings = dealt.study.simulation
        self._seed = dealt.config.study.seed
        self._clock = PhaseClock()
        self._runtime = RuntimeState()
        self._roster = AvailableRoster(ledger, study=self._study, settings=self._settings, seed=self._seed)
        self._compute = MeasuringCompute(dealt, ledger, device=device)
        payloads = open_payloads(folder.payloads)
        spool = open_spool(folder.spool, limit_bytes=0)
        payloads.clean()
        spool.clean(keep_partials=())
        self._task_service = TaskService(ledger=ledger, roster=self._roster, runtime=self._runtime, payloads=payloads,
                                         spool=spool, compute=self._compute, clock=self._clock, simulated=True)
        self._engine = Engine(
            ledger=ledger, roster=self._roster, runtime=self._runtime, compute=self._compute, payloads=payloads,
            spool=spool, accountant=_Accountant(), beside_rounds=False, operated=False, clock=self._clock,
            hearing=Hearing(roster=self._roster, runtime=self._runtime, clock=self._clock, silent_seconds=math.inf),
            folders=EngineFolders(studies=folder.studies, payloads=folder.payloads),
            sums=Sums(ledger, self._roster),
            labels_alone=None if labels_alone is None else SharedLine(labels_alone, folder.studies))
        self._folder = folder
        self._payloads, self._spool = payloads, spool
        self._policy = _policy_of(dealt.config)
        self._index = {name: index for index, name in enumerate(dealt.silos)}
        self._silos: dict[str, SimulatedSilo] = {}
        """Those that have been asked; a silo has no folder before its first task."""
        self._unsettled: dict[str, int] = {}
        """Silo -> the last round in which it was asked, where it has not heard yet what became of its answer."""

    def _silo(self, name: str) -> SimulatedSilo:
        if name not in self._silos:
            self._silos[name] = SimulatedSilo(
                name, self._index[name], self._folder.silos / name, policy=self._policy,
                task_service=self._task_service, ledger=self._ledger, payloads=self._payloads, spool=self._spool,
                model_files=self._folder.studies / self._study, hello=self._hello(self._index[name]))
        return self._silos[name]

    def _hello(self, index: int) -> Hello:
        return Hello(version=__version__, methods=(self._dealt.config.method.name,),
                     labelled_count=len(self._dealt.labelled_of(index)),
                     unlabelled_count=len(self._dealt.split.silos[index]))

    def open(self) -> bool:
        """Queues the study and lets the silos join; False when the study is complete already.

        Raises: StorageDamaged when files are lost without which other bits would follow.
        """
        self._queue()
        if self._ledger.study(self._study).state is StudyState.COMPLETED:
            return False
        folded = self._ledger.folded_silos(self._study)
        for name in sorted(folded.keys() | _folders_in(self._folder.silos) & self._index.keys(), key=str.encode):
            silo = self._silo(name)
            silo.check(self._study, folded.get(name, 0))
            self._unsettled[name] = 0
            self._runtime.held[name] = silo.hello().held
        return True

    async def run(self, workplace: Workplace) -> None:
        """Runs the study to its end, with silos that train at a workplace. Raises: SemisiloError when it fails."""
        engine = asyncio.ensure_future(self._run_engine())
        working = asyncio.ensure_future(self._work(workplace))
        showing = asyncio.ensure_future(self._show())
        pausing = asyncio.ensure_future(self._fail_when_paused())
        try:
            await asyncio.wait({engine, working, pausing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (working, engine, pausing):
                if task.done():
                    task.result()
        finally:
            for task in (engine, working, showing, pausing):
                task.cancel()
            await asyncio.gather(engine, working, showing, pausing, return_exceptions=True)
            await self._compute.close()
        await self._settle()
        row = self._ledger.study(self._study)
        if row.state is not StudyState.COMPLETED:
            raise SemisiloError(row.reason or f"The study {row.name} is {row.state}.")

    def _keep_secret(self, folder: Path) -> None:
        """Where the study hides whole silos: what the noise follows from, of its seed, so that a simulation can be
        repeated. A real coordinator draws it from the system's generator."""
        dp = self._dealt.config.privacy.dp
        if dp is not None and dp.unit == "silo" and not (folder / NOISE_KEY).exists():
            folder.mkdir(parents=True, exist_ok=True)
            text = f"{derive_seed(self._seed, 'noise_secret')}"
            write_secret(folder / NOISE_KEY, hashlib.sha256(text.encode()).digest())

    def _queue(self) -> None:
        """Queues the study, and lets the silos in."""
        known = {row.name: row for row in self._ledger.studies()}
        config = to_dict(self._dealt.config)
        if self._study not in known:
            self._keep_secret(self._folder.studies / self._study)
            self._ledger.queue_study(self._study, config)
            if line := self._dealt.patients_line():
                self._ledger.event("study_note", study=self._study, text=line, by="simulation")
        elif known[self._study].state in (StudyState.FAILED, StudyState.STOPPED):
            self._ledger.requeue_study(self._study, config)
        hellos = [self._hello(index) for index in range(len(self._index))]
        self._roster.admit([SimulatedMember(name=name, labelled_count=hello.labelled_count,
                                            unlabelled_count=hello.unlabelled_count)
                            for name, hello in zip(self._index, hellos, strict=True)],
                           version=__version__, methods=(self._dealt.config.method.name,))

    async def _run_engine(self) -> None:
        while self._ledger.study(self._study).state not in ENDED_STUDY:
            await self._engine.run_next()

    async def _fail_when_paused(self) -> None:
        """A study pauses by itself where every silo refuses; here nobody would resume it.

        Raises: SemisiloError with the reason; the study has failed then.
        """
        while self._ledger.study_state(self._study) is not StudyState.PAUSED:
            await self._runtime.wait(60.0)
        reason = (refused_rounds(self._ledger, self._study) or unasked_rounds(self._ledger, self._study)
                  or "the study was paused")
        self._ledger.set_study_state(self._study, StudyState.FAILED, reason=f"{reason[:1].upper()}{reason[1:]}.")
        raise SemisiloError(self._ledger.study(self._study).reason)

    # Silos ------------------------------------------------------------------------------------------------------------

    async def _work(self, workplace: Workplace) -> None:
        """Answers every phase that the engine opens."""
        while True:
            asked = self._open_tasks()
            if asked:
                await self._phase(asked, workplace)
            else:
                await self._runtime.wait_for_call(60.0)

    def _open_tasks(self) -> list[str]:
        """The silos whose answer the open phase waits for, in silo order; none between phases."""
        if self._runtime.reason is not StandbyReason.COLLECTING:
            return []
        last = self._ledger.last_round(self._study)
        if last is None or last.state is not RoundState.COLLECTING:
            return []
        states = self._ledger.task_states(self._study, last.number, last.phase)
        return [silo for silo, state in states.items() if state is TaskState.OPEN]

    async def _phase(self, asked: list[str], workplace: Workplace) -> None:
        """Every silo that does not drop out answers; the time passes for the others."""
        last = self._ledger.last_round(self._study)
        assert last is not None
        self._clock.hold()
        try:
            there = [silo for silo in asked
                     if not drops_out(self._settings, silo, seed=self._seed, round=last.number)]
            settling = asyncio.ensure_future(self._settle())
            self._unsettled |= dict.fromkeys(there, last.number)
            try:
                await self._answer_all([self._silo(silo) for silo in there], workplace)
            finally:
                await settling
            if len(there) < len(asked):
                phase = self._ledger.phase(self._study, last.number, last.phase)
                answered = self._ledger.count_answers(self._study, last.number, last.phase)
                self._clock.jump(phase.deadline_unix if answered >= phase.quorum else phase.limit_unix)
                self._runtime.notify()
            while self._open_tasks() and self._ledger.last_round(self._study) == last:
                await self._runtime.wait(60.0)
        finally:
            self._clock.release()

    async def _settle(self) -> None:
        """Silos drop what no later round needs of the rounds that are over."""
        last = self._ledger.last_round(self._study)
        if last is None:
            return
        over = [name for name, number in self._unsettled.items() if number < last.number or last.state in ENDED_ROUND]
        folded = self._ledger.folded_silos(self._study) if over else {}
        for name in over:
            del self._unsettled[name]
            self._silo(name).settle(self._study, folded.get(name, 0), round=last.number)
            await asyncio.sleep(0)  # others are training: their messages come in between

    async def _answer_all(self, silos: list[SimulatedSilo], workplace: Workplace) -> None:
        """As many silos train at a time as the workplace has room for; they answer in silo order."""
        room = asyncio.Semaphore(workplace.room)
        training = [asyncio.ensure_future(self._train(silo, workplace, room)) for silo in silos]
        try:
            for silo, each in zip(silos, training, strict=True):
                answer = await each
                if answer is None:
                    continue
                try:
                    await silo.deliver(answer)
                except SemisiloError as error:
                    self._refuse(silo, answer.task, error)
                self._tell(f"{silo.name} has answered", 1.0)
        finally:
            for each in training:
                each.cancel()
            await asyncio.gather(*training, return_exceptions=True)

    async def _train(self, silo: SimulatedSilo, workplace: Workplace, room: asyncio.Semaphore) -> ReadyAnswer | None:
        """The silo's answer to its task; None when it has refused, or has no task any more."""
        async with room:
            task = await self._task_service.await_task(silo.name, silo.hello(), timeout_seconds=0.0)
            if not isinstance(task, TaskSpec):
                return None
            try:
                return await silo.prepare(task, workplace, on_progress=self._heard(silo.name, task))
            except SemisiloError as error:
                self._refuse(silo, task, error)
                return None

    def _refuse(self, silo: SimulatedSilo, task: TaskSpec, error: SemisiloError) -> None:
        """Refuses a task as a real silo does.

        Raises: the error, where a real silo would come back later (a full disk), which nobody does here; and where it
            is a mistake of the program or of a plug-in, which would be hidden among refusals.
        """
        mistake = error.__cause__ is not None and not isinstance(error.__cause__, SemisiloError)
        if error.retry or isinstance(error, PluginFailed) or (isinstance(error, ComputeFailed) and mistake):
            raise error
        _LOG.warning("round %d: %s refuses: %s", task.round, silo.name, error.line())
        self._task_service.refuse(silo.name, task.task_id, error.code, error.text)

    # Display ----------------------------------------------------------------------------------------------------------

    def _heard(self, silo: str, task: TaskSpec) -> OnProgress:
        def heard(fraction: float, text: str) -> None:
            self._runtime.heard(silo, task_id=task.task_id, stage="training", fraction=fraction, text=text)
            self._tell(f"{silo}: {text}" if text else silo, fraction)

        return heard

    async def _show(self) -> None:
        """What the coordinator does, now and then."""
        while True:
            await asyncio.sleep(0.2)
            if self._runtime.reason is StandbyReason.COORDINATOR_WORKING:
                self._tell(self._runtime.activity, self._runtime.fraction)

    def _tell(self, text: str, fraction: float) -> None:
        self._watcher.progress(self._ledger, self._study, text, fraction)


def _folders_in(folder: Path) -> set[str]:
    """Names of the folders in one that may not be there."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def _policy_of(config: StudyConfig) -> Policy:
    """What simulated silos permit: all that the study asks for. Their operator is the one who wrote it."""
    spec, model = find_method(config.method.name), config.model
    in_file = names_file(model.name)
    return Policy(permit=Permit(methods=(spec.name,), groups=tuple({*spec.receives, *spec.up}), metrics=spec.metrics,
                                factories=(model.name,) if ":" in model.name and not in_file else (),
                                model_files=(model.factory_sha256,) if in_file else ()))
