"""A coordinator without network and torch for engine tests: the real ledger, desk, spool and engine, and a compute
whose "training" is arithmetic on text, so that equal inputs give equal digests and any difference shows."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config import from_dict, to_dict
from common.data.form import ImageForm
from common.errors import BadPayload
from common.exchange import GroupLayout, Meaning, TaskSpec, TensorSpec
from common.manifest import GroupManifest
from common.store import PayloadStore
from coordinator.bulletin import Bulletin
from coordinator.desk import Announcement, BeginAnswer, Desk, Hello, Standby
from coordinator.engine import Engine, EngineFolders
from coordinator.ledger import Ledger
from coordinator.roster import LedgerRoster
from coordinator.study import FrozenStudy, config_from_dict

LAYOUT = (TensorSpec("weight", (4,), "float32"),)
BASE = hashlib.sha256(b"base").hexdigest()


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is tidied."""


@dataclass
class ArithmeticCompute:
    """`Compute` whose state files hold text; `before` may raise Killed to cut an operation off."""

    states: Path
    payloads: PayloadStore
    phases: tuple[dict[str, str], ...] = ({"name": "train", "asks": "sample", "quorum": "study"},)
    before: Callable[[str, dict[str, Any]], None] = lambda operation, arguments: None
    after: Callable[[str, dict[str, Any]], None] = lambda operation, arguments: None
    calls: list[str] = field(default_factory=list)
    num_labelled: int = 4
    tensors: bool = False
    """Whether payloads name their tensors, so that silos are sent what they lack only. The digest of the tensors is
    that of the payload which stands alone."""
    references: list[str] = field(default_factory=list)
    """What a payload may be coded against, the newest first."""

    async def call(self, operation: str, arguments: dict[str, Any], *, on_progress: Any = None) -> dict[str, Any]:
        self.calls.append(operation)
        self.before(operation, arguments)
        answer: dict[str, Any] = getattr(self, f"_{operation}")(**arguments)
        self.after(operation, arguments)
        await asyncio.sleep(0)
        return answer

    async def close(self) -> None:
        pass

    def _open_study(self, **_: Any) -> dict[str, Any]:
        frozen = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
                             num_labelled=self.num_labelled, num_validation=0, num_test=4, num_parameters=4,
                             dense_bytes=16)
        return {"frozen": to_dict(frozen), "numerics": {"threads": 1}}

    def _baseline(self, epochs: int) -> dict[str, Any]:
        return {"metrics": {"accuracy": 0.5}}

    def _prepare(self) -> dict[str, Any]:
        return {"state": self._write("initial"), "metrics": {"accuracy": 0.5}}

    def _phases(self, state: str, round: int) -> dict[str, Any]:
        return {"phases": list(self.phases)}

    def _tasks(self, state: str, round: int, phase: dict[str, str], silos: dict[str, str | None],
               held: dict[str, list[str]], link_bytes_per_second: float) -> dict[str, Any]:
        text = f"model of {self._read(state)}".encode()
        layout = GroupLayout(Meaning.DIFFERENCE, BASE, LAYOUT)
        return {"tasks": {silo: {"settings": {"round_lr": 0.1}, "payloads": [self._payload(text, held.get(silo, []))]}
                          for silo in silos},
                "expects": {"model": to_dict(layout)}}

    def _payload(self, text: bytes, held: list[str]) -> dict[str, Any]:
        tensors = hashlib.sha256(text).hexdigest()
        named = {"groups": ["model"], "tensors": tensors if self.tensors else "", "reference": ""}
        if self.tensors and tensors in held:
            return {"digest": "", "size_bytes": 0, **named}
        base = next((digest for digest in self.references if digest in held), "") if self.tensors else ""
        if self.tensors and tensors not in self.references:
            self.references.insert(0, tensors)
        if base:
            text = f"{tensors} against {base}".encode()
        file = self.payloads.temporary()
        file.write_bytes(text)
        return {**named, "digest": self.payloads.add_file(file), "size_bytes": len(text), "reference": base}

    def _check_update(self, state: str, round: int, phase: dict[str, str], path: str, metrics: dict[str, float],
                      silo: str, kept: str | None) -> dict[str, Any]:
        if Path(path).read_bytes().startswith(b"bad"):
            raise BadPayload("Tensor 'weight' has a value that is not finite.")
        return {}

    def _aggregate(self, state: str, round: int, phase: dict[str, str],
                   updates: list[dict[str, Any]]) -> dict[str, Any]:
        assert [u["silo"] for u in updates] == sorted(u["silo"] for u in updates)
        parts = [f"{u['silo']}:{u['num_examples']}:{Path(u['path']).read_text()}" for u in updates]
        text = hashlib.sha256("|".join([self._read(state), phase["name"], *parts]).encode()).hexdigest()
        kept = {u["silo"]: self._write(f"kept {u['silo']} {u['kept']} {text}") for u in updates}
        return {"state": self._write(text), "kept": kept}

    def _evaluate(self, state: str, round: int) -> dict[str, Any]:
        return {"metrics": {"accuracy": int(state[:4], 16) / 65535}}

    def _export(self, state: str, path: str) -> dict[str, Any]:
        Path(path).write_text(self._read(state))
        return {}

    def _write(self, text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.states.mkdir(parents=True, exist_ok=True)
        (self.states / f"{digest}.safetensors").write_text(text)
        return digest

    def _read(self, digest: str) -> str:
        return (self.states / f"{digest}.safetensors").read_text()


class NoAccounts:
    """An accountant that writes nothing."""

    def settle(self, *, study: str, round: int, phase: str) -> None:
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

    def __init__(self, folder: Path, *, phases: tuple[dict[str, str], ...] | None = None,
                 clock: Callable[[], float] | None = None, spool_bytes: int = 0) -> None:
        import time

        self.folder = folder
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.roster = LedgerRoster(self.ledger)
        self.bulletin = Bulletin()
        self.payloads = PayloadStore(folder / "payloads")
        self.spool = PayloadStore(folder / "spool", limit_bytes=spool_bytes)
        self.compute = ArithmeticCompute(folder / "studies" / "s" / "states", self.payloads)
        if phases is not None:
            self.compute.phases = phases
        clock = clock or time.time
        self.desk = Desk(ledger=self.ledger, roster=self.roster, bulletin=self.bulletin, payloads=self.payloads,
                         spool=self.spool, compute=self.compute, clock=clock)
        self.engine = Engine(ledger=self.ledger, roster=self.roster, bulletin=self.bulletin, compute=self.compute,
                             payloads=self.payloads, spool=self.spool, accountant=NoAccounts(), clock=clock,
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
        return await self.desk.await_task(silo, hello, timeout_seconds=timeout_seconds)

    async def begin(self, task: TaskSpec, content: bytes, *, update_id: str | None = None,
                    **changes: Any) -> BeginAnswer:
        """BeginUpdate for an update with that content."""
        from dataclasses import replace

        announcement = Announcement(
            digest=hashlib.sha256(content).hexdigest(), size_bytes=len(content), example_count=10,
            metrics={"loss": 1.0}, groups=(GroupManifest("model", Meaning.DIFFERENCE, BASE, LAYOUT, 34),),
            training_seconds=0.1)
        return await self.desk.begin_update(task.silo, task.task_id, update_id or id_of(task, content),
                                            replace(announcement, **changes))

    async def deliver(self, task: TaskSpec, content: bytes) -> BeginAnswer:
        """A whole update: BeginUpdate, the bytes, the check."""
        answer = await self.begin(task, content)
        if answer.state == "send":
            partial, update = await self.desk.upload(task.silo, id_of(task, content))
            with partial:
                rest = content[answer.resume_offset:]
                if rest:
                    partial.append(rest, offset=answer.resume_offset, crc32=zlib.crc32(rest))
                await self.desk.accept(task.silo, update, partial)
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
                    assert self.desk.payload_for(name, answer.task_id, payload.digest).is_file()
                    assert not payload.reference or payload.reference in held, "what cannot be read is not given"
            held |= {payload.tensors for payload in answer.payloads if payload.tensors}
            await self.deliver(answer, content_of(answer))

    def close(self) -> None:
        self.ledger.close()


def content_of(task: TaskSpec) -> bytes:
    """What a silo sends for a task: a function of the task alone, as training is."""
    model = ",".join(payload.tensors or payload.digest for payload in task.payloads)
    return f"update {task.task_id} {model} {task.last_folded_round}".encode().ljust(100)


def id_of(task: TaskSpec, content: bytes) -> str:
    """The silo's update_id."""
    return hashlib.sha256(task.task_id.encode() + content).hexdigest()[:32]


def round_trip(spec: TaskSpec) -> TaskSpec:
    """A task as the ledger keeps it."""
    return from_dict(TaskSpec, to_dict(spec))
