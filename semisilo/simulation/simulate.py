"""Runs a study with simulated silos: the coordinator's own engine, desk and ledger, and every silo, in one process.

The folder of a simulation is that of a federation (`ledger.sqlite, payloads/, spool/, studies/`) with the folders of
the silos beside it. Killed at any instant, the same call goes on and gives the same bits.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common import __version__
from common.compute import InlineCompute, OnProgress
from common.config import canonical_json, to_dict
from common.durable import without_waiting, write_durably
from common.errors import ComputeFailed, SemisiloError, UsageError
from common.exchange import TaskSpec
from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.desk import Desk, Hello
from coordinator.engine import Engine, EngineFolders
from coordinator.ledger import Ledger
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.stores import open_payloads, open_spool
from semisilo.simulation.availability import AvailableRoster, drops_out
from semisilo.simulation.clock import PhaseClock
from semisilo.simulation.dealing import Dealt, deal_study
from semisilo.simulation.parts import write_coordinator
from semisilo.simulation.result import SimulationResult, read_result
from semisilo.simulation.settings import SimulatedStudy, load_simulated_study
from semisilo.simulation.silos import SimulatedSilo, Workplace
from silo.memory import PendingUpdate

__all__ = ["EngineName", "SimulationFolder", "SimulationWatcher", "run", "simulate"]

EngineName = Literal["process", "ray"]

_LOG = logging.getLogger("semisilo.simulation")
_RECORD = "simulation.json"
_FORMAT = 1
_ENDED = (StudyState.COMPLETED, StudyState.FAILED, StudyState.STOPPED)


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


@dataclass(frozen=True, slots=True)
class SimulationFolder:
    """The paths in the folder of a simulation."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """The SQLite file, as a coordinator's."""
        return self.folder / "ledger.sqlite"

    @property
    def payloads(self) -> Path:
        """What silos are sent."""
        return self.folder / "payloads"

    @property
    def spool(self) -> Path:
        """Updates until their round is committed."""
        return self.folder / "spool"

    @property
    def studies(self) -> Path:
        """One folder, that of the study."""
        return self.folder / "studies"

    @property
    def silos(self) -> Path:
        """One folder per silo."""
        return self.folder / "silos"

    @property
    def record(self) -> Path:
        """What is simulated here, so that it is not gone on with as another one."""
        return self.folder / _RECORD

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a simulation runs here; the kernel lets go of it however the process ends.

        Raises: UsageError when another process has it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{self.folder}: another simulation runs here.",
                                 remedy="Wait for it, or choose another folder.") from None
            yield
        finally:
            os.close(handle)


def run(study: Path | str | Mapping[str, Any], *, out: Path, seed: int | None = None, threads: int | None = None,
        engine: EngineName = "process", device: Literal["auto", "cpu", "cuda"] = "auto",
        watcher: SimulationWatcher | None = None, workers: int | None = None) -> SimulationResult:
    """Simulates a study, or goes on with it; returns what came out. A finished one is not run again.

    Args:
        study: its file (or the folder of `study.toml`), or the tables of one.
        out: folder of this simulation alone; made when missing, and stays.
        seed, threads: take the place of [study] seed and [numerics] threads.
        engine: "process": all in this process; "ray": silos train on a Ray cluster, with the same bits.
        device: "auto" takes an accelerator where there is one.
        workers: with "ray", tasks at a time; None: as many as the cluster has processors or accelerators for.
    Raises: SemisiloError for what is wrong with settings, images or the folder; StudyFailed.
    """
    _check_device(device)
    chosen = load_simulated_study(Path(study) if isinstance(study, str) else study, seed=seed, threads=threads)
    with without_waiting(), _torch_left_as_it_was():
        return _in_a_loop(lambda: simulate(chosen, SimulationFolder(Path(out).absolute()), engine=engine,
                                           device="" if device == "auto" else device,
                                           watcher=watcher or SimulationWatcher(), workers=workers))


def _check_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("There is no accelerator that torch can use.", remedy="Choose --device cpu.")


@contextmanager
def _torch_left_as_it_was() -> Iterator[None]:
    """Operations set torch's numerics for their process and draw from its generator; here that is the caller's own."""
    import torch

    flags = [(torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark"),
             (torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32"),
             (torch.utils.deterministic, "fill_uninitialized_memory")]
    before = [(owner, name, getattr(owner, name)) for owner, name in flags]
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    generator, dtype = torch.get_rng_state(), torch.get_default_dtype()
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        torch.set_rng_state(generator)
        torch.set_default_dtype(dtype)


def _in_a_loop(call: Callable[[], Coroutine[Any, Any, SimulationResult]]) -> SimulationResult:
    """Runs a coroutine to its end; in a thread of its own where this one has an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="semisilo-simulation") as executor:
        return executor.submit(lambda: asyncio.run(call())).result()


async def simulate(study: SimulatedStudy, folder: SimulationFolder, *, engine: EngineName, device: str,
                   watcher: SimulationWatcher, workers: int | None = None) -> SimulationResult:
    """See `run`."""
    with folder.lock():
        watcher.step("dealing images to silos")
        dealt = deal_study(study)
        _record(folder, study, dealt)
        ledger = Ledger(folder.ledger, waits=False)
        try:
            simulation = _Simulation(dealt, folder, ledger, engine=engine, device=device, watcher=watcher,
                                     workers=workers)
            await simulation.run()
            watcher.finished(ledger, study.name)
            return read_result(ledger, study.name, folder.folder)
        finally:
            watcher.done()
            ledger.close()


def _record(folder: SimulationFolder, study: SimulatedStudy, dealt: Dealt) -> None:
    """Notes what is simulated here, and writes the coordinator's part. Raises: UsageError when it is something else."""
    now = {"format": _FORMAT, "study": study.name, "config": to_dict(dealt.config),
           "simulation": to_dict(study.simulation), "digest": dealt.digest()}
    if folder.record.exists():
        before = json.loads(folder.record.read_bytes())
        changed = [key for key in now if canonical_json(before.get(key)) != canonical_json(now[key])]
        if changed:
            raise UsageError(f"{folder.folder} holds a simulation with another {' and another '.join(changed)}.",
                             remedy="Choose another folder with --out, or remove that one.")
    elif any(path.name != "lock" for path in folder.folder.iterdir()):
        raise UsageError(f"{folder.folder} is not empty, and holds no simulation.", remedy="Choose another --out.")
    else:
        write_durably(folder.record, canonical_json(now).encode() + b"\n")
    if not (folder.studies / study.name / "study.toml").exists():  # written last
        write_coordinator(dealt, folder.studies / study.name)


class _Accountant:
    """There is no wire here, so nothing to be measured on it."""

    def settle(self, *, study: str, round: int, phase: str) -> None:
        """See `coordinator.engine.Accountant`."""


class _Simulation:
    """The parts of a running simulation."""

    def __init__(self, dealt: Dealt, folder: SimulationFolder, ledger: Ledger, *, engine: EngineName, device: str,
                 watcher: SimulationWatcher, workers: int | None) -> None:
        from coordinator.work import Operations  # torch, only now

        self._dealt = dealt
        self._study = dealt.study.name
        self._ledger = ledger
        self._watcher = watcher
        self._settings = dealt.study.simulation
        self._seed = dealt.config.study.seed
        self._clock = PhaseClock()
        self._bulletin = Bulletin()
        self._roster = AvailableRoster(ledger, study=self._study, settings=self._settings, seed=self._seed)
        self._compute = InlineCompute(lambda progress: Operations(progress, device=device))
        payloads = open_payloads(folder.payloads)
        spool = open_spool(folder.spool, limit_bytes=0)
        payloads.clean()
        spool.clean(keep_partials=())
        self._desk = Desk(ledger=ledger, roster=self._roster, bulletin=self._bulletin, payloads=payloads, spool=spool,
                          compute=self._compute, clock=self._clock)
        self._engine = Engine(
            ledger=ledger, roster=self._roster, bulletin=self._bulletin, compute=self._compute, payloads=payloads,
            spool=spool, accountant=_Accountant(), clock=self._clock,
            folders=EngineFolders(studies=folder.studies, payloads=folder.payloads))
        method = dealt.config.method.name
        self._silos = {
            name: SimulatedSilo(
                name, place, folder.silos / name, desk=self._desk, ledger=ledger, payloads=payloads, spool=spool,
                hello=Hello(version=__version__, methods=(method,), labelled_count=len(dealt.labelled_of(place)),
                            unlabelled_count=len(dealt.split.silos[place])))
            for place, name in enumerate(dealt.silos)}
        self._engine_name: EngineName = engine
        self._device = device
        self._workers = workers

    async def run(self) -> None:
        """Runs the study to its end. Raises: SemisiloError when it fails."""
        self._queue()
        if self._ledger.study(self._study).state is StudyState.COMPLETED:
            return
        for silo in self._silos.values():
            silo.check(self._study)
            await self._desk.await_task(silo.name, silo.hello(), timeout_seconds=0.0)  # so it joins
        workplace = _workplace(self._dealt, engine=self._engine_name, device=self._device, workers=self._workers)
        engine = asyncio.ensure_future(self._run_engine())
        working = asyncio.ensure_future(self._work(workplace))
        showing = asyncio.ensure_future(self._show())
        try:
            await asyncio.wait({engine, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in (working, engine):
                if task.done():
                    task.result()
        finally:
            for task in (engine, working, showing):
                task.cancel()
            await asyncio.gather(engine, working, showing, return_exceptions=True)
            await workplace.close()
            await self._compute.close()
        row = self._ledger.study(self._study)
        if row.state is not StudyState.COMPLETED:
            raise SemisiloError(row.reason or f"The study {row.name} is {row.state}.")

    def _queue(self) -> None:
        """Queues the study, and lets the silos in."""
        known = {row.name: row for row in self._ledger.studies()}
        config = to_dict(self._dealt.config)
        if self._study not in known:
            self._ledger.queue_study(self._study, config)
        elif known[self._study].state in (StudyState.FAILED, StudyState.STOPPED):
            self._ledger.requeue_study(self._study, config)
        self._roster.admit(self._dealt.silos)

    async def _run_engine(self) -> None:
        while self._ledger.study(self._study).state not in _ENDED:
            await self._engine.run_next()

    # Silos ------------------------------------------------------------------------------------------------------------

    async def _work(self, workplace: Workplace) -> None:
        """Answers every phase that the engine opens."""
        while True:
            asked = self._open_tasks()
            if asked:
                await self._phase(asked, workplace)
            else:
                await self._bulletin.wait_for_call(60.0)

    def _open_tasks(self) -> list[str]:
        """The silos whose answer the open phase waits for, in silo order; none between phases."""
        if self._bulletin.reason is not StandbyReason.NOT_SAMPLED:
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
            await self._answer_all([self._silos[silo] for silo in there], workplace)
            if len(there) < len(asked):
                phase = self._ledger.phase(self._study, last.number, last.phase)
                states = self._ledger.task_states(self._study, last.number, last.phase)
                answered = sum(state in (TaskState.UPDATED, TaskState.ABSTAINED, TaskState.REFUSED)
                               for state in states.values())
                self._clock.jump(phase.deadline_unix if answered >= phase.quorum else phase.limit_unix)
                self._bulletin.notify()
            while self._open_tasks() and self._ledger.last_round(self._study) == last:
                await self._bulletin.wait(60.0)
        finally:
            self._clock.release()

    async def _answer_all(self, silos: list[SimulatedSilo], workplace: Workplace) -> None:
        """As many silos train at a time as the workplace has room for; they answer in silo order."""
        room = asyncio.Semaphore(workplace.room)
        training = [asyncio.ensure_future(self._train(silo, workplace, room)) for silo in silos]
        try:
            for silo, each in zip(silos, training, strict=True):
                prepared = await each
                if prepared is None:
                    continue
                task, pending = prepared
                try:
                    await silo.deliver(task, pending)
                except SemisiloError as error:
                    self._refuse(silo, task, error)
                self._tell(f"{silo.name} has answered", 1.0)
        finally:
            for each in training:
                each.cancel()
            await asyncio.gather(*training, return_exceptions=True)

    async def _train(self, silo: SimulatedSilo, workplace: Workplace,
                     room: asyncio.Semaphore) -> tuple[TaskSpec, PendingUpdate] | None:
        """The silo's task and its answer; None when it has refused, or has no task any more."""
        async with room:
            task = await self._desk.await_task(silo.name, silo.hello(), timeout_seconds=0.0)
            if not isinstance(task, TaskSpec):
                return None
            try:
                return task, await silo.prepare(task, workplace, on_progress=self._heard(silo.name, task))
            except ComputeFailed as error:
                if error.__cause__ is not None and not isinstance(error.__cause__, SemisiloError):
                    raise  # a mistake in the program, not of this silo
                self._refuse(silo, task, error)
            except SemisiloError as error:
                self._refuse(silo, task, error)
            return None

    def _refuse(self, silo: SimulatedSilo, task: TaskSpec, error: SemisiloError) -> None:
        """As a real silo does."""
        _LOG.warning("round %d: %s refuses: %s", task.round, silo.name, error.line())
        self._desk.refuse(silo.name, task.task_id, error.code, error.text)

    # Display ----------------------------------------------------------------------------------------------------------

    def _heard(self, silo: str, task: TaskSpec) -> OnProgress:
        def heard(fraction: float, text: str) -> None:
            self._bulletin.heard(silo, task_id=task.task_id, stage="training", fraction=fraction, text=text)
            self._tell(f"{silo}: {text}" if text else silo, fraction)

        return heard

    async def _show(self) -> None:
        """What the coordinator does, now and then."""
        while True:
            await asyncio.sleep(0.2)
            if self._bulletin.reason is StandbyReason.COORDINATOR_WORKING:
                self._tell(self._bulletin.activity, self._bulletin.fraction)

    def _tell(self, text: str, fraction: float) -> None:
        self._watcher.progress(self._ledger, self._study, text, fraction)


def _workplace(dealt: Dealt, *, engine: EngineName, device: str, workers: int | None) -> Workplace:
    name = dealt.config.model.name
    factories = [name] if ":" in name else []
    images = [dealt.silo_images(place) for place in range(len(dealt.silos))]
    if engine == "ray":
        from semisilo.simulation.ray_engine import RayWorkplace

        return RayWorkplace(images, factories=factories, device=device, workers=workers,
                            threads=dealt.config.numerics.threads)
    from semisilo.simulation.workplace import InlineWorkplace

    return InlineWorkplace(images, factories=factories, device=device)
