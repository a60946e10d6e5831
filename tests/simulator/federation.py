"""A federation on simulated machines: starts the processes of both sides, starts them again when they died, and runs a
schedule to the end of its study.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import hashlib
import logging
import math
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.audit import chain, signature
from semisilo.common.config import to_dict
from semisilo.common.errors import SemisiloError, SystemTrouble, UsageError
from semisilo.common.methods.contract import Phase
from semisilo.common.payload import reader
from semisilo.common.process.child import ComputeDied
from semisilo.common.rpc import convert
from semisilo.common.rpc.meter import MessageMeter
from semisilo.common.secure_aggregation import keys
from semisilo.common.system_errors import explained
from semisilo.coordinator.federation import operate
from semisilo.coordinator.federation.audit_key import HeadSigner
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.ledger import database as ledger_database
from semisilo.coordinator.ledger.cleanup import open_payloads, open_spool
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import note_start
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.masked_sums import MaskedSums
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.shared_model import SharedModels
from semisilo.coordinator.rpc import call as call_module
from semisilo.coordinator.rpc import round_service, silo_calls
from semisilo.coordinator.rpc.caller import CallerCertificate
from semisilo.coordinator.rpc.metering import RoundMeter
from semisilo.coordinator.rpc.round_service import RoundServicer
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.coordinator.secure_aggregation import sum as sums
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.coordinator.tasks.task_service import TaskService
from semisilo.silo.agent.agent import Agent
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.traffic import Carried
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.policy import Policy, Require
from semisilo.silo.study_cards.book import CardBook
from tests.simulator import disk as disk_module
from tests.simulator.database import Database, databases
from tests.simulator.identity import AUTHORITY, audit_key
from tests.simulator.loop import BEGINNING, Killed, SeededLoop, TooLong
from tests.simulator.machine import Life, Machine, PointOfDeath, Relapse
from tests.simulator.network import Channel, Network, Server
from tests.simulator.schedule import COORDINATOR, SILOS, Schedule, Stretch, StudyRollback
from tests.simulator.system import simulated, use_small_pieces
from tests.simulator.training import CoordinatorWork, SiloWork, SimulatedCompute, use_vector_files

__all__ = ["Outcome", "SimulatedFederation", "run_schedule", "warm_up", "warm_up_for"]

_STUDIES = ("s", "t")
_LONGEST_SECONDS = 2.5 * 86400.0
_MOST_TURNS = 60_000
_FAREWELL_SECONDS = 200.0
"""So long silos may take to hear that the study is over."""
_SETTLE_SECONDS = 10.0
_MOST_REQUEUED = 12
"""By then a study that is queued again whenever it fails has failed without a reason."""
_ENOUGH = 5
"""Violations: a process that ends again and again would fill the rest of the run."""
_FOLDER = Path(f"/~{COORDINATOR}")
_POLICY, _ASKING = Policy(), Policy(require=Require(approval=True))
_AGAIN_SECONDS = 7.0
"""Until an operator whose command has failed gives it again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    """The one that was run to the end."""
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    """Every message, death and start, in order."""
    seconds: float
    """Virtual."""
    turns: int
    messages: int
    events: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256("\n".join((*self.trace, *self.violations)).encode()).hexdigest()[:16]


def _study_config(schedule: Schedule, number: int) -> Any:
    return config_from_dict({
        "study": {"rounds": schedule.rounds, "start_with": len(schedule.silos), "seed": 7 + number,
                  "labelled_only_baseline": False},
        "data": {"test": "digits", "classes": ["a", "b"], "image": {"size": 8, "channels": 1, "mean": [0.5],
                                                                    "std": [0.5]}},
        "method": {"name": "fedavg" if schedule.masked else "scaffold", "scenario": "labels-at-silo"},
        "privacy": {"secure_aggregation": schedule.masked},
        "participation": {"quorum": schedule.quorum,
                          "round_timeout": "40s" if schedule.quorum < len(schedule.silos) else "30m"},
    }, where="simulator")


_templates: dict[tuple[object, ...], bytes] = {}


def _prepare_host() -> None:
    use_vector_files()
    logging.getLogger("semisilo").setLevel(logging.ERROR)
    call_module.caller_silo = silo_calls.caller_silo = lambda context, federation: CallerCertificate(  # as TLS does
        silo=context.silo, serial=SILOS.index(context.silo) + 1, not_before_unix=0.0, not_after_unix=4e9)
    call_module._LOOK_SECONDS = 5.0  # nobody is revoked here
    # What coroutines of dead processes say while they are collected is nobody's business.
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore", RuntimeWarning)
    for name in ("agree", "_private", "_identity", "public_of"):  # the same silos agree on the same keys, run after run
        _remember(keys, name)
    sums.agree = keys.agree
    _remember(reader, "_groups_in")  # files of equal numbers have equal manifests
    for name in ("image_from_proto", "augmentation_from_proto", "model_from_proto"):
        _remember_message(convert, name)
    _remember(chain, "link")  # what was written is checked twice at the end
    ledger_database.link = chain.link
    audit_key_of = signature._audit_key  # five silos check the same heads, and so do the invariants
    signature._audit_key = functools.lru_cache(maxsize=16)(  # type: ignore[assignment]
        lambda certificate, authority: _RememberingKey(audit_key_of(certificate, authority)))
    gc.freeze()


class _RememberingKey:
    """A public key that checks the same signature once."""

    def __init__(self, key: ed25519.Ed25519PublicKey) -> None:
        self.verify = functools.lru_cache(maxsize=4096)(key.verify)


def _remember(module: ModuleType, name: str) -> None:
    setattr(module, name, functools.lru_cache(maxsize=4096)(getattr(module, name)))


def _remember_message(module: ModuleType, name: str) -> None:
    """Of a function of one message."""
    read = getattr(module, name)

    @functools.lru_cache(maxsize=4096)
    def known(kind: Any, data: bytes) -> Any:
        return read(kind.FromString(data))

    setattr(module, name, lambda message: known(type(message), message.SerializeToString(deterministic=True)))


class _NoConnections:
    """There are no sockets to count on."""

    supported = True

    def reading(self) -> Any:
        return iter(())

    def totals(self) -> dict[Any, Any]:
        return {}

    def latest(self, peer: str) -> None:
        return None

    def look_for_new(self) -> None:
        pass

    def ended(self) -> set[Any]:
        return set()

    def delivery_rate(self, peer: str) -> float:
        return 0.0


class _NoTraffic:
    """`semisilo.silo.link.traffic.Traffic` without sockets."""

    def __init__(self) -> None:
        self.messages = MessageMeter()

    def total(self) -> Carried:
        return Carried()


class _NoDisplay:
    def event(self, text: str) -> None:
        pass

    state = event

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        pass

    def done(self) -> None:
        pass

    close = done


class _Unforeseen(logging.Handler):
    """Errors that the product logs with a traceback are those that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], Killed):
            self.found.append(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")


class SimulatedFederation:
    """One coordinator and five silos."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.draw = random.Random(schedule.stretches[0].seed)
        self.loop = SeededLoop(self.draw)
        self.network = Network(self.loop, self.draw)
        self._outside = contextvars.copy_context()
        """Of no process."""
        self.trace: list[str] = []
        self.network.trace = self.trace.append
        self.violations: list[str] = []
        self.machines = {name: Machine(name, index, self.loop, self.draw, self._died,
                                       on_error=self._failed)
                         for index, name in enumerate((COORDINATOR, *schedule.silos))}
        self.network.coordinator = self.machines[COORDINATOR]
        for silo in schedule.silos:
            self.network.add_line(silo)
        self.ended: set[str] = set()
        """Silos that have heard that the study is over."""
        self.completed_at: float | None = None
        self.requeued = 0
        """How often an operator has queued a study again."""
        self.coordinator_deaths = 0
        self._clocks_at_start: dict[str, float | None] = {}
        self.studies = {name: _study_config(schedule, number)
                        for number, name in enumerate(_STUDIES[:schedule.studies])}
        self.database: Database

    # Processes --------------------------------------------------------------------------------------------------------

    def _died(self, machine: Machine, death: PointOfDeath) -> None:
        self.trace.append(f"{self.loop.time():.6f} {machine.name} dies: {death}")
        if machine.name == COORDINATOR:
            self.coordinator_deaths += 1
            self.completed_at = None
            self.network.server = None
        else:
            self.ended.discard(machine.name)
        self.network.machine_died(machine, power=death.power)
        self.loop.call_later(death.down_seconds, self._start, machine, death.then, context=self._outside)

    def _failed(self, machine: Machine, kind: str) -> None:
        self.trace.append(f"{self.loop.time():.6f} {machine.name} has an error of the system: {kind}")

    def _start(self, machine: Machine, relapse: Relapse | None = None) -> None:
        if machine.life is not None and machine.life.alive:
            return
        self.trace.append(f"{self.loop.time():.6f} {machine.name} starts")
        if relapse is not None:
            self.machines[relapse.machine].expect_death(relapse.death)
        if machine.name in self._clocks_at_start and machine.life is not None:
            seconds = self._clocks_at_start.pop(machine.name)
            machine.clock_ahead = 0.0 if seconds is None else machine.clock_ahead + seconds
            self.trace.append(f"{self.loop.time():.6f} the clock of {machine.name} is set, to"
                              f" {machine.clock_ahead:.0f} s ahead")
        life = machine.begin()
        work = self._coordinator(life) if machine.name == COORDINATOR else self._silo(machine.name, life)
        task = life.start(work)
        task.add_done_callback(lambda done: self._stopped(machine, life, done), context=life.context)

    def _stopped(self, machine: Machine, life: Life, done: asyncio.Task[Any]) -> None:
        """A process has ended by itself."""
        if not life.alive or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.ended.add(machine.name)
            return
        starting = not life.serves and (isinstance(error, SystemTrouble) or explained(error) is not None)
        counting = isinstance(error, ComputeDied) and machine.name != COORDINATOR  # its images, before it calls
        if not (starting or counting):
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.violations.append(f"{machine.name} has ended: {error!r} at {Path(where.filename).name}:{where.lineno}")
        machine.kill(PointOfDeath(kind="itself", number=0, down_seconds=10.0))

    async def _coordinator(self, life: Life) -> None:
        """As `semisilo.coordinator.serve` wires it."""
        ledger = Ledger(_FOLDER / "ledger.sqlite")
        roster, runtime = LedgerRoster(ledger), RuntimeState()
        compute = self._compute(life.machine, lambda: CoordinatorWork(
            tuple(Phase(name) for name in ("train", "refine")[:self.schedule.phases]),
            to_dict(self.studies["s"].method.settings)))
        meter = RoundMeter(ledger, port=1, connections=lambda port: _NoConnections())  # type: ignore[arg-type, return-value]
        payloads = open_payloads(_FOLDER / "payloads")
        spool = open_spool(_FOLDER / "spool", limit_bytes=100_000)
        payloads.clean()
        spool.clean(keep_partials=ledger.awaited_updates())
        import time

        task_service = TaskService(ledger=ledger, roster=roster, runtime=runtime, payloads=payloads, spool=spool,
                                   compute=compute, clock=lambda: time.time())
        engine = Engine(ledger=ledger, roster=roster, runtime=runtime, compute=compute, payloads=payloads, spool=spool,
                        accountant=meter, clock=lambda: time.time(), steady=lambda: time.monotonic(),
                        folders=EngineFolders(studies=_FOLDER / "studies", payloads=_FOLDER / "payloads"),
                        sums=MaskedSums(ledger, roster, federation="f"))
        heads = HeadSigner(ledger, audit_key())
        with contextlib.suppress(SystemTrouble):
            note_start(ledger)
        server = Server(life)
        RoundServicer(task_service=task_service, roster=roster, runtime=runtime, meter=meter,
                      cards=StudyCards(ledger, federation="f", clock=lambda: time.time()),
                      models=SharedModels(ledger, _FOLDER / "studies"), federation="f", max_uploads=3,
                      audit_head=heads.current,
                      clock=lambda: time.time()).add_to(  # type: ignore[arg-type]
                          server, SiloCalls("f", clock=lambda: time.monotonic()))
        await compute.start()
        self.network.server = server
        life.serves = True

        async def settle() -> None:
            while True:
                collecting = runtime.reason is StandbyReason.COLLECTING
                with contextlib.suppress(SemisiloError):
                    await meter.settle(study=runtime.study, round=runtime.round,
                                       phase=runtime.phase if collecting else "standby")
                await asyncio.sleep(_SETTLE_SECONDS)

        async def run_studies() -> None:
            while True:
                study = await engine.run_next()
                if study is None:
                    runtime.set(reason=StandbyReason.NO_STUDY, activity="")
                with contextlib.suppress(SystemTrouble):  # the simulator's own look
                    if study is None and all(row.state is StudyState.COMPLETED for row in ledger.studies()):
                        self.completed_at = self.loop.time() if self.completed_at is None else self.completed_at
                if study is None:
                    await runtime.wait(60.0)

        async def queue_again() -> None:
            """Somebody who queues again what has failed or was stopped."""
            while True:
                for row in ledger.studies():
                    if row.state in (StudyState.FAILED, StudyState.STOPPED):
                        with contextlib.suppress(SystemTrouble):
                            ledger.requeue_study(row.name, row.config)
                            self.trace.append(f"{self.loop.time():.6f} study {row.name} is queued again")
                            self.requeued += 1
                            if self.requeued == _MOST_REQUEUED:
                                self.violations.append(f"study {row.name} fails again and again: {row.reason}")
                await asyncio.sleep(self.schedule.requeue_seconds)

        self.settle_last = meter.settle
        several = [queue_again()] if self.schedule.studies > 1 else []
        await asyncio.gather(settle(), run_studies(), *several)

    async def _silo(self, name: str, life: Life) -> None:
        """As `semisilo.silo.join` wires it."""
        import time

        home, display, traffic = SiloHome(Path(f"/~{name}")), _NoDisplay(), _NoTraffic()
        agent: Agent
        link = Link(lambda: Channel(self.network, name), silo=name, settings=LinkSettings(),  # type: ignore[arg-type, return-value]
                    messages=traffic.messages, on_trouble=lambda error, failures: agent.trouble(error, failures),
                    on_contact=lambda: agent.contact(), on_through=lambda: agent.through())

        async def renew() -> None:
            pass

        agent = Agent(home=home, silo=name, address="hub:1", federation="f",
                      policy=_ASKING if name in self.schedule.approvals else _POLICY,
                      heads=HeadRecord(home.heads, AUTHORITY), choice=JoinChoice(source=f"/~{name}/images"), link=link,
                      compute=self._compute(life.machine, SiloWork), display=display, traffic=traffic,  # type: ignore[arg-type]
                      renew=renew, exit_when_finished=not self.schedule.lasts, poll_seconds=50.0,
                      clock=lambda: time.time())
        self._watch_memory(name, link, agent)
        life.serves = True
        await agent.run()

    def _watch_memory(self, silo: str, link: Link, agent: Agent) -> None:
        """Before it asks for another task, a silo has dropped what an update left that nobody wanted."""
        upload, await_task, unwanted = link.upload, link.await_task, set[str]()

        async def watched_upload(request: Any, *args: Any, **options: Any) -> Any:
            verdict = await upload(request, *args, **options)
            if not verdict.accepted:
                unwanted.add(request.task_id)
            return verdict

        async def watched_await(hello: Any) -> Any:
            for kept in agent._memory._index.studies.values():
                if kept.pending is not None and kept.pending.task_id in unwanted:
                    self.violations.append(f"{silo}: its memory holds what the refused update of"
                                           f" {kept.pending.task_id} has left")
            unwanted.clear()
            answer = await await_task(hello)
            if self.schedule.lasts and self.completed_at is not None and not answer.HasField("task"):
                self.ended.add(silo)  # it has heard of it, and calls on and on: another study might come
            return answer

        link.upload, link.await_task = watched_upload, watched_await  # type: ignore[method-assign]

    def _compute(self, machine: Machine, build: Any) -> SimulatedCompute:
        def count() -> int:
            machine.counted["operation"] += 1
            return machine.counted["operation"]

        return SimulatedCompute(build, self.draw, slow_seconds=self.schedule.slow_seconds, counted=count,
                                deaths=machine.compute_deaths, failures=machine.compute_failures)

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self, branch: Callable[[int], Schedule] | None = None) -> None:
        """To the end of the study, and until its silos have heard of it. What goes wrong is among the violations.

        Args:
            branch: asked when a stretch is about to begin, by its number from 0, for the schedule to go on with: one
                with the same stretches before that one.
        """
        for silo in self.schedule.silos:
            self.machines[silo].disk.mkdir(f"/~{silo}/images")
        for folder in ("studies", *(f"studies/{study}" for study in self.studies)):
            self.machines[COORDINATOR].disk.mkdir(f"/~{COORDINATOR}/{folder}")
        self._begin_ledger()
        for machine in self.machines.values():
            machine.disk.sync_all()
            machine.counted.clear()
        if (error := self.schedule.file_error) is not None:
            self.machines[error.machine].expect(error)
        for machine in self.machines.values():
            self.loop.call_later(self.draw.random() * 2.0, self._start, machine)
        for silo, seconds in self.schedule.approvals.items():
            self.loop.call_later(seconds, self._approve, silo, seconds)
        self._begin_stretch(self.schedule.stretches[0])
        try:
            for number in range(1, len(self.schedule.stretches)):
                self._go_on(self.schedule.stretches[number].at_turn)
                if self._is_over():
                    break
                if branch is not None and not self.violations:
                    self.schedule = branch(number)
                self._begin_stretch(self.schedule.stretches[number])
            self._go_on()
        except TooLong as error:
            self.violations.append(f"{error}; {self._where()}")
        if self.completed_at is None and not self.violations:
            self.violations.append(f"the study has not ended; {self._where()}")
        for machine in self.machines.values():  # nothing befalls those who look at what is left
            machine.file_error = None
            machine.deaths.clear()
            machine.aims.clear()
            machine.awaited.clear()
        self.violations += self.loop.complaints
        self.violations += self.network.complaints

    def _begin_ledger(self) -> None:
        schedule = self.schedule
        key = (schedule.phases, schedule.masked, schedule.quorum, schedule.rounds, schedule.silos, schedule.studies)
        machine = self.machines[COORDINATOR]
        if key in _templates:
            machine.disk.close(machine.disk.open(f"/~{COORDINATOR}/ledger.sqlite", os.O_CREAT | os.O_EXCL))
        else:
            databases[COORDINATOR] = Database(machine, may_lose_power=False)
            life = machine.begin()
            life.context.run(self._enroll)
            _templates[key] = databases[COORDINATOR].content()
            machine.life = None
            machine.on_kill.clear()
            machine.on_power_loss.clear()
        self.database = databases[COORDINATOR] = Database(
            machine, _templates[key], may_lose_power=len(schedule.stretches) > 1 or schedule.loses_power(COORDINATOR))

    def _enroll(self) -> None:
        ledger = Ledger(_FOLDER / "ledger.sqlite")
        roster = LedgerRoster(ledger)
        for number, silo in enumerate(self.schedule.silos, start=1):
            token = bytes([number]) * 32
            roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
            roster.use_invitation(token, key_fingerprint=token, certificate_der=b"", serial=number, not_after_unix=4e9)
        for name, config in self.studies.items():
            ledger.queue_study(name, to_dict(config))

    def _go_on(self, turn: float = math.inf) -> None:
        """Until the study is over, or so many callbacks have been run. Raises: TooLong."""
        loop = self.loop
        loop.run(lambda: loop.turns >= turn or ((self.completed_at is not None or bool(self.violations))
                                                and self._is_over()),
                 seconds=BEGINNING + _LONGEST_SECONDS - loop.time(), turns=_MOST_TURNS - loop.turns)

    def _begin_stretch(self, stretch: Stretch) -> None:
        """What it has in store is to come from now on."""
        def set_clock(machine: Machine, seconds: float) -> None:
            self.trace.append(f"{self.loop.time():.6f} the clock of {machine.name} is set by {seconds:.0f} s")
            machine.clock_ahead += seconds

        def fill(machine: Machine, full: bool) -> None:
            machine.disk.full = full

        self.database.settle()
        if stretch.at_turn:
            self.draw.seed(stretch.seed)
            self.trace.append(f"{self.loop.time():.6f} {stretch.seed} begins")
        for fault in stretch.line_faults:
            self.network.expect(fault)
        for name, machine in self.machines.items():
            for death in stretch.deaths.get(name, ()):
                machine.expect_death(death)
            for aim in stretch.aims.get(name, ()):
                machine.aim(aim)
        for each in stretch.compute_deaths:
            machine = self.machines[each.machine]
            machine.expect_compute_death(each.number)
        hub = self.machines[COORDINATOR]
        hub.compute_failures |= {hub.counted["operation"] + number for number in stretch.failures}
        for stop in stretch.stops:
            self.loop.call_later(stop.at_seconds, self._stop_study)
        for back in stretch.rollbacks:
            self.loop.call_later(back.at_seconds, self._pause_study, back)
        self._clocks_at_start |= {each.machine: each.by_seconds for each in stretch.clocks_at_start}
        for step in stretch.clock_steps:
            self.loop.call_later(step.at_seconds, set_clock, self.machines[step.machine], step.by_seconds)
        for disk in stretch.full_disks:
            self.loop.call_later(disk.at_seconds, fill, self.machines[disk.machine], True)
            self.loop.call_later(disk.at_seconds + disk.for_seconds, fill, self.machines[disk.machine], False)

    def _stop_study(self) -> None:
        """`coordinator stop`, in a process of its own."""
        hub = self.machines[COORDINATOR]
        if hub.life is None or not hub.life.alive:
            return

        def stop() -> None:
            with contextlib.suppress(UsageError, SystemTrouble):
                operate.stop(Ledger(_FOLDER / "ledger.sqlite"), origin="command")
                self.trace.append(f"{self.loop.time():.6f} an operator stops the study")

        with contextlib.suppress(Killed):
            hub.life.context.copy().run(stop)

    def _as_process(self, name: str, work: Callable[[], None]) -> bool:
        """Does work in a process of its own on a machine that is up; whether it came to its end."""
        machine = self.machines[name]
        if machine.life is None or not machine.life.alive:
            return False
        try:
            machine.life.context.copy().run(work)
        except (Killed, SystemTrouble, OSError):  # it died with the machine; or the system refuses something there
            return False
        return True

    def _pause_study(self, back: StudyRollback) -> None:
        """`coordinator pause`, where the study runs; then `_roll_back`."""
        def pause() -> None:
            ledger = Ledger(_FOLDER / "ledger.sqlite")
            over = ledger.study_state("s") is StudyState.COMPLETED
            with contextlib.suppress(UsageError):
                if not over:
                    operate.pause(ledger, "s", origin="command")
                self.trace.append(f"{self.loop.time():.6f} an operator {'looks at' if over else 'pauses'} the study")

        self._as_process(COORDINATOR, pause)  # may have worked though its process died
        self.loop.call_later(back.looks_seconds, self._roll_back, back, context=self._outside)

    def _roll_back(self, back: StudyRollback) -> None:
        """`coordinator rollback`, or `resume` where the study cannot go back; until one of them has worked."""
        done = False

        def go_back() -> None:
            import time

            nonlocal done
            ledger, folder = Ledger(_FOLDER / "ledger.sqlite"), _FOLDER / "studies" / "s"
            if ledger.study_state("s") not in (StudyState.PAUSED, StudyState.COMPLETED):
                done = True  # it was not paused; or the command before this one has worked, and died behind it
                return
            rounds = operate.returnable_rounds(ledger, "s", study_folder=folder)
            if rounds:
                to_round = rounds[min(len(rounds) - 1, int(back.share * len(rounds)))]
                self.completed_at = None
                self.ended.clear()
                operate.rollback(ledger, "s", to_round, study_folder=folder, origin="command")
                self.trace.append(f"{self.loop.time():.6f} an operator has the study go back to round {to_round}")
            elif ledger.study_state("s") is StudyState.PAUSED:
                operate.resume(ledger, "s", origin="command", clock=lambda: time.time())
            done = True

        self._as_process(COORDINATOR, go_back)
        if not done:
            self.loop.call_later(_AGAIN_SECONDS, self._roll_back, back, context=self._outside)

    def _approve(self, silo: str, seconds: float) -> None:
        """`silo approve`, where the card waits for it; and again, as long as the run lasts."""
        def approve() -> None:
            import time

            book = CardBook(SiloHome(Path(f"/~{silo}")).cards)
            entry = book.find("s")
            if entry is not None and entry.state == "waiting":
                book.decide(entry, approved=True, by="mona", now_unix=time.time())
                self.trace.append(f"{self.loop.time():.6f} a person at {silo} approves the study")

        self._as_process(silo, approve)
        self.loop.call_later(seconds, self._approve, silo, seconds, context=self._outside)

    def _is_over(self) -> bool:
        if self.violations and (len(self.violations) >= _ENOUGH or self.requeued >= _MOST_REQUEUED):
            return True
        if self.completed_at is None:
            return False
        return len(self.ended) == len(self.schedule.silos) or self.loop.time() > self.completed_at + _FAREWELL_SECONDS

    def _where(self) -> str:
        rows = self.database.raw.execute("SELECT number, state FROM round ORDER BY number").fetchall()
        states = self.database.raw.execute("SELECT silo, state FROM task WHERE state = 'open'").fetchall()
        study = self.database.raw.execute("SELECT state, reason FROM study").fetchall()
        return f"study {[tuple(row) for row in study]}, rounds {[tuple(row) for row in rows]}, open " \
               f"{[row[0] for row in states]}, silos that ended {sorted(self.ended)}"


_prepared = _warm = False
_warm_for: set[tuple[int, bool, int]] = set()
"""Kinds of studies: phases, masks, how many."""
_last: list[SimulatedFederation] = []
"""The one that a copy of this process has run: to take it apart would only cost time."""
_since_collected = 0
_COLLECT_EVERY = 50
"""Runs whose remains are collected at once; not while one runs, for that would run `finally` blocks of its dead."""


def warm_up() -> None:
    """Makes once what every schedule needs, before this process is copied: whatever is imported or read at its first
    use. Has no effect on what a schedule does."""
    global _warm
    if not _warm:
        _warm = True
        for masked in (False, True):
            with contextlib.suppress(Exception):  # a bug that is planted: whoever runs schedules is told
                run_schedule(Schedule(seed=0, rounds=1, phases=2, masked=masked))
        contextvars.Context().run(gc.collect)
        gc.freeze()


def warm_up_for(schedule: Schedule) -> None:
    """Runs a study of that kind without faults, once for all families of it: its silos train the same numbers, so the
    copies find most payloads encoded and decoded. Pays where many schedules of the kind are run."""
    key = schedule.phases, schedule.masked, schedule.studies
    if key not in _warm_for:
        _warm_for.add(key)
        with contextlib.suppress(Exception):  # as in `warm_up`
            run_schedule(replace(schedule, stretches=(Stretch(),)))
        contextvars.Context().run(gc.collect)
        gc.freeze()


def run_schedule(schedule: Schedule, branch: Callable[[int], Schedule] | None = None) -> Outcome:
    """Runs a schedule and checks what must hold; see `SimulatedFederation.run` for `branch`."""
    global _prepared, _since_collected
    from tests.simulator.invariants import broken_invariants

    if not _prepared:
        _prepared = True
        _prepare_host()
    disk_module.reset_numbers()
    unforeseen = _Unforeseen()
    logger = logging.getLogger("semisilo")
    logger.addHandler(unforeseen)
    logger.propagate = False
    gc.disable()
    federation = SimulatedFederation(schedule)
    try:
        with simulated(list(federation.machines.values()), federation.draw):
            use_small_pieces(schedule.chunk_bytes)
            round_service._REPORT_SECONDS = schedule.report_seconds
            federation.run(branch)
            federation.violations += unforeseen.found
            if federation.completed_at is not None:
                federation.violations += broken_invariants(federation)
        return Outcome(
            schedule=federation.schedule, violations=tuple(federation.violations), trace=tuple(federation.trace),
            seconds=federation.loop.time(), turns=federation.loop.turns, messages=federation.network.messages,
            events={name: dict(machine.counted) for name, machine in federation.machines.items()})
    finally:
        logger.removeHandler(unforeseen)
        if branch is None:  # else the process ends with it
            federation.database.raw.close()
        else:
            _last.append(federation)
        _since_collected += 1
        if _since_collected >= _COLLECT_EVERY:
            _since_collected = 0
            contextvars.Context().run(gc.collect)  # `finally` blocks of its dead write into whatever context is there
