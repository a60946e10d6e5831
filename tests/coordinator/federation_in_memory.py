"""A coordinator without network and torch for engine tests: the real ledger, task service, spool and engine, and a
compute whose "training" is arithmetic on text, so that equal inputs give equal digests and any difference shows."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadPayload, StudyNotOpen
from semisilo.common.measures.intervals import Interval
from semisilo.common.methods.contract import GroupLayout, Meaning, PayloadRef, Phase, TaskSpec, TensorSpec
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.process.compute import OnProgress
from semisilo.common.process.messages import Handler, Request, answer_from_json, as_json, handlers_of, run_operation
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute.messages import (
    Aggregate,
    Aggregated,
    Baseline,
    BaselineFound,
    BaselineProgress,
    CheckedUpdate,
    CheckUpdate,
    Compare,
    Compared,
    Evaluate,
    Evaluated,
    Export,
    Exported,
    OpenedStudy,
    OpenStudy,
    Phases,
    PhasesOfRound,
    Prepare,
    Prepared,
    Tasks,
    WrittenTask,
    WrittenTasks,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import FrozenStudy, LabelledOnlyResult
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.coordinator.tasks.open_tasks import BeginAnswer
from semisilo.coordinator.tasks.task_service import Hello, Standby, TaskService
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration

AnswerT = TypeVar("AnswerT")

LAYOUT = (TensorSpec("weight", (4,), "float32"),)
BASE = hashlib.sha256(b"base").hexdigest()


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is tidied."""


@dataclass
class ArithmeticCompute:
    """`Compute` whose state files hold text; `before` may raise Killed to cut an operation off."""

    states: Path
    payloads: PayloadStore
    phases: tuple[Phase, ...] = (Phase("train"),)
    before: Callable[[str, Any], None] = lambda operation, request: None
    after: Callable[[str, Any], None] = lambda operation, request: None
    calls: list[str] = field(default_factory=list)
    opened: str = ""
    """The study that was opened last."""
    num_labelled: int = 4
    slices_left: int = 1
    """Of labels alone."""
    round_0_steps: int = 0
    """Steps of labels alone where round 0 starts from them."""
    tensors: bool = False
    """Whether payloads name their tensors, so that silos are sent what they lack only. The digest of the tensors is
    that of the payload which stands alone."""
    references: list[str] = field(default_factory=list)
    """What a payload may be coded against, the newest first."""

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        operation = request.operation()
        self.calls.append(operation)
        self.before(operation, request)
        answer = run_operation(handlers_of(self), operation, as_json(request))
        self.after(operation, request)
        await asyncio.sleep(0)
        return answer_from_json(request, as_json(answer))

    async def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def handlers(self) -> tuple[Handler, ...]:
        return (OpenStudy.handled_by(self._open_study), Baseline.handled_by(self._baseline),
                Prepare.handled_by(self._prepare), Phases.handled_by(self._phases), Tasks.handled_by(self._tasks),
                CheckUpdate.handled_by(self._check_update), Aggregate.handled_by(self._aggregate),
                Evaluate.handled_by(self._evaluate), Compare.handled_by(self._compare),
                Export.handled_by(self._export))

    def _open_study(self, request: OpenStudy) -> OpenedStudy:
        self.opened = request.name
        return OpenedStudy(
            frozen=FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
                               num_labelled=self.num_labelled, num_validation=0, num_test=4, num_parameters=4,
                               dense_bytes=16),
            numerics=NumericsRecord(device="cpu", torch="0", cpu_capability="", threads=1, deterministic=True),
            round_0_steps=self.round_0_steps)

    def _baseline(self, request: Baseline) -> BaselineFound:
        self.slices_left -= 1
        if self.slices_left > 0:
            return BaselineFound(done=False, result=None, progress=BaselineProgress(
                epochs=3, planned=request.epochs or 400, fraction=0.25, seconds_left=60.0 * self.slices_left))
        return BaselineFound(done=True, result=LabelledOnlyResult(
            metrics={"accuracy": 0.5}, epochs=request.epochs or 400, asked=request.epochs or 400, lr=0.1, batch_size=10,
            steps=self.round_0_steps or 1, loss=0.25 if self.round_0_steps else 0.0, num_labelled=self.num_labelled,
            history=(), model_digest="ab" * 32 if self.round_0_steps else ""))

    def _prepare(self, request: Prepare) -> Prepared:
        text = f"{request.labels_alone} {request.loss}" if request.labels_alone else "initial"
        return Prepared(state=self._write(text), metrics={"accuracy": 0.5})

    def _phases(self, request: Phases) -> PhasesOfRound:
        return PhasesOfRound(phases=self.phases)

    def _tasks(self, request: Tasks) -> WrittenTasks:
        self._check_open(request.study or self.opened)
        text = f"model of {self._read(request.state)}".encode()
        return WrittenTasks(
            tasks={silo: WrittenTask(settings={"round_lr": 0.1},
                                     payloads=(self._payload(text, request.held.get(silo, ())),),
                                     brings_model=request.phase.name == "train")
                   for silo in request.silos},
            expects={"model": GroupLayout(Meaning.DIFFERENCE, BASE, LAYOUT)})

    def _payload(self, text: bytes, held: Collection[str]) -> PayloadRef:
        tensors = hashlib.sha256(text).hexdigest()
        named = PayloadRef("", 0, ("model",), tensors=tensors if self.tensors else "")
        if self.tensors and tensors in held:
            return named
        base = next((digest for digest in self.references if digest in held), "") if self.tensors else ""
        if self.tensors and tensors not in self.references:
            self.references.insert(0, tensors)
        if base:
            text = f"{tensors} against {base}".encode()
        file = self.payloads.temporary()
        file.write_bytes(text)
        return replace(named, digest=self.payloads.add_file(file), size_bytes=len(text), reference=base)

    def _check_update(self, request: CheckUpdate) -> CheckedUpdate:
        self._check_open(request.study)
        if request.update.path.read_bytes().startswith(b"bad"):
            raise BadPayload("Tensor 'weight' has a value that is not finite.")
        return CheckedUpdate()

    def _aggregate(self, request: Aggregate) -> Aggregated:
        silos = [update.header.silo for update in request.updates]
        assert silos == sorted(silos)
        parts = [f"{u.header.silo}:{u.header.num_examples}:{u.path.read_text()}" for u in request.updates]
        content = "|".join([self._read(request.state), request.phase.name, *parts])
        text = hashlib.sha256(content.encode()).hexdigest()
        kept: dict[str, str | None] = {
            u.header.silo: self._write(f"kept {u.header.silo} {u.kept} {text}") for u in request.updates}
        return Aggregated(state=self._write(text), kept=kept, metrics={})

    def _evaluate(self, request: Evaluate) -> Evaluated:
        return Evaluated(metrics={"accuracy": int(request.state[:4], 16) / 65535})

    def _compare(self, request: Compare) -> Compared:
        return Compared(patients=0, intervals={"accuracy": Interval(-0.25, 0.25)})

    def _export(self, request: Export) -> Exported:
        request.path.write_text(self._read(request.state))
        return Exported(path=request.path)

    def _check_open(self, study: str) -> None:
        if study != self.opened:
            raise StudyNotOpen(f"The study {study} is not open.")

    def _write(self, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.states.mkdir(parents=True, exist_ok=True)
        (self.states / f"{digest}.safetensors").write_text(text)
        return digest

    def _read(self, digest: str) -> str:
        return (self.states / f"{digest}.safetensors").read_text()


class NoAccounts:
    """An accountant that writes nothing."""

    async def settle(self, *, study: str, round: int, phase: str) -> None:
        pass


def study_config(**participation: Any) -> dict[str, Any]:
    """A study of 3 rounds that starts with two silos."""
    return to_dict(config_from_dict({
        "study": {"rounds": 3, "start_with": 2, "seed": 7},
        "data": {"labelled": "digits", "test": "digits", "image": {"size": 8, "channels": 1}},
        "method": {"name": "semifl"},
        "participation": {"round_timeout": "5s", "round_limit": "20s"} | participation}, where="test"))


class Coordinator:
    """One life of a coordinator process over a folder."""

    def __init__(self, folder: Path, *, phases: tuple[Phase, ...] | None = None,
                 clock: Callable[[], float] | None = None, steady: Callable[[], float] | None = None,
                 spool_bytes: int = 0, waits: bool = False) -> None:
        import time

        self.folder = folder
        self.ledger = Ledger(folder / "ledger.sqlite", waits=waits)
        self.roster = LedgerRoster(self.ledger)
        self.runtime = RuntimeState()
        self.payloads = PayloadStore(folder / "payloads")
        self.spool = PayloadStore(folder / "spool", limit_bytes=spool_bytes)
        self.compute = ArithmeticCompute(folder / "studies" / "s" / "states", self.payloads)
        if phases is not None:
            self.compute.phases = phases
        clock = clock or time.time
        self.task_service = TaskService(ledger=self.ledger, roster=self.roster, runtime=self.runtime,
                                        payloads=self.payloads, spool=self.spool, compute=self.compute, clock=clock)
        self.hearing = Hearing(roster=self.roster, runtime=self.runtime, clock=clock)
        self.engine = Engine(ledger=self.ledger, roster=self.roster, runtime=self.runtime, compute=self.compute,
                             payloads=self.payloads, spool=self.spool, accountant=NoAccounts(), clock=clock,
                             hearing=self.hearing, steady=steady,
                             folders=EngineFolders(studies=folder / "studies", payloads=folder / "payloads"))

    def enroll(self, *silos: str) -> None:
        """Lets silos in as if they had used invitations."""
        for number, silo in enumerate(silos, start=len(self.roster.silos()) + 1):
            token = bytes([number]) * 32
            self.roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
            self.roster.use_invitation(token, key_fingerprint=token, certificate_der=b"", serial=number,
                                       not_after_unix=4e9)

    async def ask(self, silo: str, *, timeout_seconds: float = 5.0, held: Collection[str] = ()) -> TaskSpec | Standby:
        """AwaitTask as a silo calls it that holds these tensors."""
        hello = Hello(version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10, held=frozenset(held))
        return await self.task_service.await_task(silo, hello, timeout_seconds=timeout_seconds)

    async def begin(self, task: TaskSpec, content: bytes, *, update_id: str | None = None,
                    **changes: Any) -> BeginAnswer:
        """BeginUpdate for an update with that content."""
        declaration = UpdateDeclaration(
            digest=hashlib.sha256(content).hexdigest(), size_bytes=len(content), example_count=10,
            metrics={"loss": 1.0}, groups=(GroupManifest("model", Meaning.DIFFERENCE, BASE, LAYOUT, 34),),
            training_seconds=0.1)
        return await self.task_service.updates.begin(task.silo, task.task_id, update_id or id_of(task, content),
                                                    replace(declaration, **changes))

    async def deliver(self, task: TaskSpec, content: bytes) -> BeginAnswer:
        """A whole update: BeginUpdate, the bytes, the check."""
        answer = await self.begin(task, content)
        if answer.state == "send":
            partial, update = await self.task_service.updates.upload(task.silo, id_of(task, content))
            with partial:
                rest = content[answer.resume_offset:]
                if rest:
                    partial.append(rest, offset=answer.resume_offset, crc32=zlib.crc32(rest))
                await self.task_service.updates.accept(task.silo, update, partial)
        return answer

    async def silo(self, name: str, *, forgets: Callable[[], bool] = lambda: False) -> None:
        """A silo that answers every task with content that follows from the task, until the study is over.

        Args:
            forgets: asked before every poll; whether the silo has lost the tensors that it held.
        """
        held: set[str] = set()
        while True:
            if forgets():
                held.clear()
            answer = await self.ask(name, held=held)
            if isinstance(answer, Standby):
                if answer.reason == "no_study" and answer.text:
                    return
                continue
            for payload in answer.payloads:
                if payload.tensors and payload.tensors not in held:
                    assert self.task_service.payload_for(name, answer.task_id, payload.digest).is_file()
                    assert not payload.reference or payload.reference in held, "what cannot be read is not given"
            held |= {payload.tensors for payload in answer.payloads if payload.tensors}
            await self.deliver(answer, content_of(answer))

    def close(self) -> None:
        self.ledger.close()


def payload_of_blocks(store: PayloadStore, elements: int = 1000) -> PayloadRef:
    """A payload file as a strategy writes it: one tensor of noise, in one block, as it lies in memory."""
    bits = np.random.default_rng(0).integers(0, 2**32, elements, dtype=np.uint32)
    return write_payload(store, {"model": EncodedInput([TensorInput(TensorSpec("w", bits.shape, "float32"),
                                                                    lambda: bits)])})


def content_of(task: TaskSpec) -> bytes:
    """What a silo sends for a task: a function of the task alone, as training is, whatever the task is called."""
    model = ",".join(payload.tensors or payload.digest for payload in task.payloads)
    return f"update {task.round} {task.phase} {task.silo} {model} {task.last_folded_round}".encode().ljust(100)


def id_of(task: TaskSpec, content: bytes) -> str:
    """The silo's update_id."""
    return hashlib.sha256(task.task_id.encode() + content).hexdigest()[:32]


def round_trip(spec: TaskSpec) -> TaskSpec:
    """A task as the ledger keeps it."""
    return from_dict(TaskSpec, to_dict(spec))
