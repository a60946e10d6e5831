"""One simulated silo: what its folder keeps, and how it answers a task; the steps of a real one, without a wire.

Payload files are linked into its folder instead of being sent, and updates into the coordinator's spool; the desk
checks and counts them as it does for real silos. Killed anywhere, a silo does the same task again or answers with what
it had made durable (`silo.memory`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from common.compute import OnProgress
from common.config import from_dict
from common.errors import SemisiloError, StorageDamaged
from common.exchange import PayloadRef, TaskSpec
from common.payload_reader import read_manifest
from common.store import PayloadStore
from common.tensor_cache import TensorCache
from coordinator.desk import Announcement, Desk, Hello
from coordinator.ledger import Ledger
from silo.home import SiloHome
from silo.memory import PendingUpdate, SiloMemory, update_id_of
from silo.stores import collect_tensors, open_cache

__all__ = ["Job", "SimulatedSilo", "Workplace", "link_or_copy"]

@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A task with all files that its training needs."""

    task: TaskSpec
    place: int
    """The silo's place among all silos, from 0."""
    home: SiloHome
    payloads: Mapping[str, Path]
    """Payload files that the silo has to read, by digest; all other tensor groups of the task are in its cache."""
    memory: Path | None
    residuals: Path | None
    pending_residuals: Path | None


class Workplace(Protocol):
    """Where silos train."""

    @property
    def room(self) -> int:
        """How many silos may train at a time."""

    async def train(self, job: Job, *, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Runs `silo.work.Operations.train` with the silo's images; its result, with the files in the silo's folders.

        Raises: SemisiloError for what a real silo would refuse the task with; any other exception is a mistake of a
            method or of this program.
        """

    async def close(self) -> None:
        """Ends; nothing is left running."""


class LinkedTensors(TensorCache):
    """A silo's tensor groups, most of them other names of the coordinator's files: of these the time of a file does not
    tell when this silo got it, for all silos share it."""

    def __init__(self, store: PayloadStore) -> None:
        super().__init__(store)
        self._taken: dict[str, int] = {}

    def take(self, digest: str, file: Path) -> None:
        """Takes in the coordinator's file of a group, which stays as it is."""
        self.path(digest).unlink(missing_ok=True)
        link_or_copy(file, self.path(digest))
        self._taken[digest] = time.time_ns()

    def digests(self) -> list[str]:
        """See `TensorCache.digests`."""
        found = []
        for digest in super().digests():
            with suppress(FileNotFoundError):
                status = self.path(digest).stat()
                shared = status.st_nlink > 1 and digest in self._taken
                found.append((self._taken[digest] if shared else status.st_mtime_ns, digest))
        return [digest for _, digest in sorted(found, reverse=True)]


class SimulatedSilo:
    """A silo of a simulation."""

    def __init__(self, name: str, place: int, folder: Path, *, hello: Hello, desk: Desk, ledger: Ledger,
                 payloads: PayloadStore, spool: PayloadStore) -> None:
        """
        Args:
            place: among all silos, from 0.
            folder: its own folder.
            hello: what it says of itself; the tensors that it holds are filled in.
            payloads: the coordinator's, which files are linked from.
            spool: the coordinator's, which updates are linked into.
        """
        self.name = name
        self.place = place
        self.home = SiloHome(folder)
        self.memory = SiloMemory(self.home.memory, outgoing=self.home.outgoing)
        self._cache = open_cache(self.home.cache)
        self._tensors = LinkedTensors(self._cache)
        self._hello = hello
        self._desk = desk
        self._ledger = ledger
        self._coordinators = TensorCache(payloads)
        self._spool = spool

    def hello(self) -> Hello:
        """What the silo says when it asks for a task."""
        return replace(self._hello, held=frozenset(self._tensors.digests()))

    def check(self, study: str) -> None:
        """Whether the files are those that the ledger relies on. To be called before a simulation goes on.

        Raises: StorageDamaged when something is lost, for example because the machine stopped: other bits would follow.
        """
        folded, _ = self._ledger.silo_state(study, self.name)
        if self.memory.is_sound(study, folded):
            return
        raise StorageDamaged(f"{self.home.memory}: what the silo kept after round {folded} is lost.",
                             remedy="The machine must have stopped. Start the simulation anew, in another folder.")

    async def prepare(self, task: TaskSpec, workplace: Workplace, *,
                      on_progress: OnProgress | None = None) -> PendingUpdate:
        """Does a task and makes its answer durable; a task that was done before a kill is not done again.

        Raises: SemisiloError where a real silo would refuse the task.
        """
        self.memory.resolve(task.study, task.last_folded_round, round=task.round, task_id=task.task_id)
        pending = self.memory.pending_for(task.task_id)
        return pending or await self._train(task, workplace, on_progress=on_progress)

    async def _train(self, task: TaskSpec, workplace: Workplace, *, on_progress: OnProgress | None) -> PendingUpdate:
        payloads = self._fetch(task)
        memory = self.memory.committed(task.study)
        residuals, pending_residuals = self.memory.residuals(task.study, round=task.round)
        result = await workplace.train(
            Job(task=task, place=self.place, home=self.home, payloads=payloads, memory=memory,
                residuals=residuals, pending_residuals=pending_residuals), on_progress=on_progress)
        payload = from_dict(PayloadRef, result["payload"]) if result["payload"] else None
        content = payload.digest if payload else f"abstention {result['abstention']}"
        return self.memory.record_pending(
            task.study, round=task.round, task_id=task.task_id, update_id=update_id_of(task.task_id, content),
            memory=Path(result["memory"]) if result["memory"] else None,
            residuals=Path(result["residuals"]) if result["residuals"] else None, payload=payload,
            abstention=result["abstention"], num_examples=result["num_examples"], metrics=result["metrics"],
            seconds=result["seconds"])

    def _fetch(self, task: TaskSpec) -> dict[str, Path]:
        """Takes in the tensor groups of a task that are not here, as links to the coordinator's own files; the payload
        files of those that it does not keep by themselves, by digest, are read where they lie."""
        wanted = [each for each in task.payloads if not (each.tensors and self._tensors.find(each.tensors))]
        self._count(task, wanted)
        payloads = {}
        for payload in wanted:
            path = self._desk.payload_for(self.name, task.task_id, payload.digest)
            own = self._coordinators.find(payload.tensors) if payload.tensors else None
            if own is None:
                payloads[payload.digest] = path
            else:
                self._tensors.take(payload.tensors, own)
        collect_tensors(self._tensors, task.payloads)
        return payloads

    def _count(self, task: TaskSpec, wanted: list[PayloadRef]) -> None:
        """What a real silo would have been sent; once, also when the task is done again after a kill."""
        counted = self._ledger.query("SELECT 1 FROM cost WHERE study = ? AND round = ? AND phase = ? AND silo = ?"
                                     " AND direction = 'down' AND kind = 'payload' LIMIT 1",
                                     task.study, task.round, task.phase, self.name)
        if not counted:
            with self._ledger.transaction(lasting=False):
                for payload in wanted:
                    self._desk.downloaded(self.name, task.task_id, payload.digest, payload.size_bytes)

    async def deliver(self, task: TaskSpec, pending: PendingUpdate) -> None:
        """Hands the answer to the desk. Raises: SemisiloError when it is not accepted."""
        if pending.payload is None:
            self._desk.abstain(self.name, task.task_id, pending.abstention[:64] or "no_update", pending.metrics)
            return
        payload = pending.payload
        path = self.memory.outgoing.path(payload.digest)
        link_or_copy(path, self._spool.path(payload.digest))
        announcement = Announcement(
            digest=payload.digest, size_bytes=payload.size_bytes, groups=read_manifest(path),
            example_count=pending.num_examples, metrics=pending.metrics, training_seconds=pending.seconds)
        answer = await self._desk.begin_update(self.name, task.task_id, pending.update_id, announcement)
        try:
            if answer.state == "send":
                await self._desk.accept(self.name, self._desk.awaited(self.name, pending.update_id), None)
        except SemisiloError:
            self.memory.refused(task.task_id)
            raise
        if answer.state == "refused":
            self.memory.refused(task.task_id)


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under another name; a file that is there already stays."""
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:  # not every disk knows links
        half = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(source, half)
        os.replace(half, target)
