"""One simulated silo: what its folder keeps, and how it answers a task; by the steps of a real one
(`semisilo.silo.agent.answer`).

Payload files are linked into its folder instead of being sent, and updates into the coordinator's spool; the task
service checks and counts them as it does for real silos. Killed anywhere, a silo does the same task again or answers
with what it had made durable (`semisilo.silo.site.memory`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from semisilo.common.errors import SemisiloError, StorageDamaged
from semisilo.common.learning.seeds import derive_seed
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import OnProgress
from semisilo.common.secure_aggregation.conversion import question_from_hex
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.ledger.costs import has_downloads
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.tasks.task_service import Hello, TaskService
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from semisilo.silo.agent.answer import ReadyAnswer, Site, abstention_request, answer_task, least_announced
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.disclosures import DisclosureLog
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.memory import SiloMemory
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger
from semisilo.silo.site.stores import collect_tensors, open_cache

__all__ = ["SimulatedSilo", "Workplace", "link_or_copy"]


class Workplace(Protocol):
    """Where silos train."""

    @property
    def room(self) -> int:
        """How many silos may train at a time."""

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        """Does what `semisilo.silo.compute.operations.Operations.train` does, with the images of the silo whose index
        among all silos, from 0, is the source of the request's choice; files end up in the silo's folders.

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

    def __init__(self, name: str, index: int, folder: Path, *, hello: Hello, policy: Policy, task_service: TaskService,
                 ledger: Ledger, payloads: PayloadStore, spool: PayloadStore, model_files: Path) -> None:
        """
        Args:
            index: among all silos, from 0.
            folder: its own folder.
            hello: what it says of itself; the tensors that it holds are filled in.
            policy: what it permits.
            payloads: the coordinator's, which files are linked from.
            spool: the coordinator's, which updates are linked into.
            model_files: where the file lies that builds the network, if one does: the study's folder.
        """
        self.name = name
        self.home = SiloHome(folder)
        self.memory = SiloMemory(self.home.memory, outgoing=self.home.outgoing)
        cache = open_cache(self.home.cache)
        self._site = Site(policy=policy, choice=JoinChoice(source=str(index)), memory=self.memory,
                          cache_folder=cache.folder, disclosures=DisclosureLog(self.home.disclosures),
                          privacy_folder=self.home.privacy, model_files=model_files, in_threads=False,
                          announced_least=lambda: least_announced(hello.labelled_count, hello.unlabelled_count))
        self._cache = cache
        self._tensors = LinkedTensors(cache)
        self._hello = hello
        self._task_service = task_service
        self._ledger = ledger
        self._coordinators = TensorCache(payloads)
        self._spool = spool

    def hello(self) -> Hello:
        """What the silo says when it asks for a task."""
        return replace(self._hello, held=frozenset(self._tensors.digests()))

    def check(self, study: str, folded: int) -> None:
        """Whether the files are those that the ledger relies on. To be called before a simulation goes on.

        Args:
            folded: the last round of which the coordinator has folded an update of this silo; 0 for none.
        Raises: StorageDamaged when something is lost, for example because the machine stopped: other bits would follow.
        """
        if self.memory.is_sound(study, folded):
            return
        raise StorageDamaged(f"{self.home.memory}: what the silo kept after round {folded} is lost.",
                             remedy="The machine must have stopped. Start the simulation anew, in another folder.")

    def settle(self, study: str, folded: int, *, round: int) -> None:
        """Keeps what later rounds need and no more. A real silo finds out with its next task which of its updates was
        folded; of thousands of silos most have none for long, and each would keep an update as large as the model.

        Args:
            folded: the last round of which the coordinator has folded an update of this silo; 0 for none.
            round: the newest round; an answer in it stays as long as it is not decided.
        """
        self.memory.resolve(study, folded, round=round)
        for store in (self.memory.outgoing, self._cache):
            store.drop_spares()

    async def prepare(self, task: TaskSpec, workplace: Workplace, *,
                      on_progress: OnProgress | None = None) -> ReadyAnswer:
        """Does a task up to the moment in which its answer can be sent; one that was done before a kill is not done
        again.

        Raises: SemisiloError where a real silo would refuse the task.
        """
        if task.dp is not None:
            self._keep_secret(task)
        return await answer_task(task, self._site, _LinkedSteps(self, workplace, on_progress),
                                 masking=_without_masks(task))

    def _keep_secret(self, task: TaskSpec) -> None:
        """What the noise follows from: of the study's seed, so that a simulation can be repeated. A real silo draws it
        from the system's generator, and tells nobody."""
        ledger = PrivacyLedger(self.home.privacy)
        if not ledger.secret_name():
            text = f"{derive_seed(task.seed, 'noise_secret', silo=self.name)}"
            ledger.keep_secret(hashlib.sha256(text.encode()).digest())

    def fetch(self, task: TaskSpec) -> dict[str, Path]:
        """Takes in the tensor groups of a task that are not here, as links to the coordinator's own files; the payload
        files of those that it does not keep by themselves, by digest, are read where they lie."""
        wanted = [each for each in task.payloads if not (each.tensors and self._tensors.find(each.tensors))]
        self._count(task, wanted)
        payloads = {}
        for payload in wanted:
            path = self._task_service.payload_for(self.name, task.task_id, payload.digest)
            own = self._coordinators.find(payload.tensors) if payload.tensors else None
            if own is None:
                payloads[payload.digest] = path
            else:
                self._tensors.take(payload.tensors, own)
        collect_tensors(self._tensors, task.payloads)
        return payloads

    def _count(self, task: TaskSpec, wanted: list[PayloadRef]) -> None:
        """What a real silo would have been sent; once, also when the task is done again after a kill."""
        if not has_downloads(self._ledger, study=task.study, round=task.round, phase=task.phase, silo=self.name):
            with self._ledger.transaction(lasting=False):
                for payload in wanted:
                    self._task_service.downloaded(self.name, task.task_id, payload.digest, payload.size_bytes)

    async def deliver(self, answer: ReadyAnswer) -> None:
        """Hands an answer to the task service. Raises: SemisiloError when it is not accepted."""
        task, pending, payload = answer.task, answer.pending, answer.pending.payload
        if payload is None:
            said = abstention_request(task.task_id, pending).abstention
            self._task_service.abstain(self.name, task.task_id, said.reason, pending.metrics)
            return
        link_or_copy(self.memory.outgoing.path(payload.digest), self._spool.path(payload.digest))
        declaration = UpdateDeclaration(
            digest=payload.digest, size_bytes=payload.size_bytes, groups=answer.manifest,
            example_count=pending.num_examples, metrics=pending.metrics, training_seconds=pending.seconds)
        updates = self._task_service.updates
        verdict = await updates.begin(self.name, task.task_id, pending.update_id, declaration)
        try:
            if verdict.state == "send":
                await updates.accept(self.name, updates.awaited(self.name, pending.update_id), None)
        except SemisiloError:
            self.memory.refused(task.task_id)
            raise
        if verdict.state == "refused":
            self.memory.refused(task.task_id)


@dataclass(frozen=True, slots=True)
class _LinkedSteps:
    """`semisilo.silo.agent.answer.TaskSteps` of a simulated silo: payloads are links, and no day has a budget."""

    silo: SimulatedSilo
    workplace: Workplace
    on_progress: OnProgress | None

    @property
    def upload_rate(self) -> float:
        """There is no line."""
        return 0.0

    def ready_before(self) -> None:
        """Nobody watches a single silo."""

    async def fetch(self, task: TaskSpec) -> dict[str, Path]:
        """See `SimulatedSilo.fetch`."""
        return self.silo.fetch(task)

    async def train(self, request: Train) -> Trained:
        """See `Workplace.train`."""
        return await self.workplace.train(request, on_progress=self.on_progress)

    def check_room(self, size_bytes: int) -> None:
        """There always is."""


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


def _without_masks(task: TaskSpec) -> Masking | None:
    """The form in which a study with secure aggregation adds updates up: the integers are those of real silos, and so
    is their sum, but nobody is there to hide them from."""
    if not task.secure:
        return None
    question = question_from_hex(task.secure)
    assert question.form is not None
    return Masking(form=question.form, phase=question.phase, threshold=question.threshold, seeds=())
