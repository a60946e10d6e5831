"""Both sides of a federation in one process, without a network: the real engine, task service, ledger, spool,
operations, memory of silos and caches. Payload files are copied where they would be sent.

A test says who answers in which order, what is lost when, and whether every operation is done by a new process's worth
of objects, and looks at what was sent and at what came out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semisilo.common.config import to_dict
from semisilo.common.data.formats import archive
from semisilo.common.errors import TensorsMissing
from semisilo.common.methods import coordinator_has_labels, silos_have_labels
from semisilo.common.methods.contract import Meaning, TaskSpec
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.payload.reader import read_manifest
from semisilo.common.process.compute import OnProgress
from semisilo.common.process.messages import Operations, Request, answer_from_json, as_json, handlers_of, run_operation
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute.messages import Export
from semisilo.coordinator.compute.operations import Operations as CoordinatorOperations
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.coordinator.tasks.open_tasks import BeginAnswer
from semisilo.coordinator.tasks.task_service import Hello, Standby, TaskService
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from semisilo.silo.agent.answer import Site, answer_task
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.compute.operations import Operations as SiloOperations
from semisilo.silo.site.disclosures import DisclosureLog
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.memory import SiloMemory
from semisilo.silo.site.policy import Permit, Policy
from semisilo.silo.site.stores import collect_tensors, open_cache
from tests.coordinator.federation_in_memory import Killed, NoAccounts

__all__ = ["CLASSES", "NETWORKS", "Federation", "Images", "Killed", "Sent", "Silo", "deliver", "quickly",
           "study_tables", "write_images"]

AnswerT = TypeVar("AnswerT")

STUDY = "s"
CLASSES = ("0", "1", "2")
NETWORKS = {"plain": "tests.both_sides:plain_network", "batch norm": "tests.both_sides:network_with_batch_norm",
            "wide": "tests.both_sides:wide_network"}


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Spares what costs time and shows nothing here. Objects are killed in these tests and the machine is not: what was
    written is there. Files are written in this thread. Images are no state: however many objects ask for those of a
    file, it is read once, and each is given arrays of its own.
    """
    read = archive.npz
    known: dict[tuple[object, ...], archive.Arrays] = {}

    def npz(path: Path, split: str, **asked: Any) -> archive.Arrays:
        key = path, path.stat().st_mtime_ns, split, *asked.values()
        if key not in known:
            known[key] = read(path, split, **asked)
        found = known[key]
        return replace(found, images=None if found.images is None else found.images.copy(),
                       labels_N=None if found.labels_N is None else found.labels_N.copy())

    async def at_once(call: Callable[..., AnswerT], *arguments: Any, **options: Any) -> AnswerT:
        await asyncio.sleep(0)
        return call(*arguments, **options)

    patch.setattr(os, "fsync", lambda handle: None)
    patch.setattr(archive, "npz", npz)
    patch.setattr(asyncio, "to_thread", at_once)


def plain_network(*, num_classes: int, channels: int, size: int) -> torch.nn.Module:
    """Weights and biases only; 68 parameters for each class."""
    nn = torch.nn
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(channels * (size // 2) ** 2, 8), nn.ReLU(),
                         nn.Linear(8, num_classes))


def network_with_batch_norm(*, num_classes: int, channels: int, size: int) -> torch.nn.Module:
    """A convolution with static batch-norm behind it."""
    from semisilo.common.learning.batch_norm import StaticBatchNorm

    nn = torch.nn
    return nn.Sequential(nn.Conv2d(channels, 4, 3, bias=False), StaticBatchNorm(4), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(4 * ((size - 2) // 2) ** 2, num_classes))


def wide_network(*, num_classes: int, channels: int, size: int) -> torch.nn.Module:
    """About 27 000 weights, so that a hundredth of them is small."""
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 400), nn.ReLU(), nn.Linear(400, num_classes))


@dataclass(frozen=True)
class Images:
    """Sources of images, as the study file and `silo join` name them."""

    folder: Path

    def labelled(self, owner: str) -> str:
        return str(self.folder / f"{owner}-labelled.npz")

    def unlabelled(self, owner: str) -> str:
        return str(self.folder / f"{owner}-unlabelled.npz")


def write_images(folder: Path, silos: Sequence[str], *, labelled: int = 4, unlabelled: int = 9) -> Images:
    """Digits of three classes for everyone: different ones, of each class as many."""
    from sklearn.datasets import load_digits  # takes a second that others need not wait

    digits = load_digits(n_class=len(CLASSES))
    pixels = (digits.images * 15).astype(np.uint8)
    by_class = [np.flatnonzero(digits.target == label) for label in range(len(CLASSES))]
    taken = 0

    def take(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        nonlocal taken
        chosen = np.sort(np.concatenate([indices[taken:taken + count] for indices in by_class]))
        taken += count
        return pixels[chosen], digits.target[chosen]

    for owner in ("validation", "test", "coordinator", *silos):
        images, labels = take(labelled)
        np.savez(folder / f"{owner}-labelled.npz", train_images=images, train_labels=labels)
        if owner in silos:
            np.savez(folder / f"{owner}-unlabelled.npz", train_images=take(unlabelled)[0])
    return Images(folder)


def study_tables(images: Images, *, method: Mapping[str, Any], network: str = "plain", silos: int = 3, rounds: int = 2,
                 **tables: Mapping[str, Any]) -> dict[str, Any]:
    """A study file; `method` has its name and scenario, `tables` are laid over the others."""
    data: dict[str, Any] = {"image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.35]}, "classes": list(CLASSES),
                            "test": images.labelled("test"), "validation": images.labelled("validation")}
    if coordinator_has_labels(method["scenario"]):
        data["labelled"] = images.labelled("coordinator")
    study = {"seed": 5, "rounds": rounds, "start_with": silos, "labelled_only_baseline": False}
    found: dict[str, Any] = {
        "study": study, "model": {"name": NETWORKS[network]}, "data": data, "method": dict(method),
        "augmentation": {"policy": "none"}, "participation": {"quorum": 1, "round_timeout": "60s"}}
    for name, table in tables.items():
        found[name] = {**found.get(name, {}), **table}
    return found


class Direct:
    """`Compute` in this thread. Requests and answers go through JSON, as between two processes."""

    def __init__(self, build: Callable[[Callable[[float, str], None]], Operations], *, fresh: bool = False) -> None:
        """`fresh`: every operation is done by new objects, under another state of torch's global generator."""
        self._build = build
        self._fresh = fresh
        self._operations: Operations | None = None
        self._reopening: Request[Any] | None = None
        self.before: Callable[[str, Any], None] = lambda operation, request: None
        """Told the name and the request. May raise Killed."""
        self.after: Callable[[str, Any], None] = lambda operation, answer: None
        """Told the name and the answer."""

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        operation = request.operation()
        self.before(operation, request)
        if self._operations is None or self._fresh:
            if self._fresh:
                # Not torch.manual_seed: without a device it keeps a traceback for each, which takes 10 ms.
                torch.default_generator.manual_seed(random.SystemRandom().randrange(2**60))
            self._operations = self._build(lambda fraction, text: None)
            if self._reopening is not None and type(self._reopening) is not type(request):
                self._run(self._reopening)
        answer = self._run(request)
        self._reopening = request.reopening(answer) or self._reopening
        self.after(operation, answer)
        await asyncio.sleep(0)
        return answer

    def _run(self, request: Request[AnswerT]) -> AnswerT:
        assert self._operations is not None
        answer = run_operation(handlers_of(self._operations), request.operation(), as_json(request))
        return answer_from_json(request, json.loads(json.dumps(to_dict(answer), allow_nan=False)))

    async def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Sent:
    """One tensor group that crossed."""

    task_id: str
    silo: str
    phase: str
    name: str
    meaning: Meaning | None
    """None where the silo held the group, so that nothing was sent."""
    reference: str
    bytes: int
    """Of the group's blocks."""
    dense_bytes: int
    tensors: str
    """Digest of the tensors, where it is known."""


@dataclass
class Silo:
    """One silo, with its folders."""

    name: str
    folder: Path
    choice: JoinChoice
    fresh: bool
    down: list[Sent] = field(default_factory=list)
    up: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = open_cache(self.folder / "cache")
        self.tensors = TensorCache(self.cache)
        self.memory = SiloMemory(self.folder / "memory")
        self.compute = Direct(SiloOperations, fresh=self.fresh)
        self.policy = Policy(permit=Permit(factories=tuple(NETWORKS.values())))
        self.disclosures = DisclosureLog(self.folder / "disclosures.jsonl")
        self.before_declaring: Callable[[TaskSpec, UpdateDeclaration], Coroutine[Any, Any, None]] = _nothing

    def lose_tensors(self) -> None:
        """As when somebody has emptied the cache."""
        self.tensors.collect((), spare=0)

    def held(self) -> frozenset[str]:
        return frozenset(self.tensors.digests())

    async def answer(self, task: TaskSpec, task_service: TaskService) -> None:
        """A task from the policy's check to the acknowledgement, as real silos do it."""
        site = Site(policy=self.policy, choice=self.choice, memory=self.memory, cache_folder=self.cache.folder,
                    disclosures=self.disclosures, privacy_folder=self.folder / "privacy")
        answer = await answer_task(task, site, _Steps(self, task_service))
        pending = answer.pending
        if pending.payload is None:
            task_service.abstain(self.name, task.task_id, pending.abstention, pending.metrics)
            return
        path, groups = self.memory.outgoing.path(pending.payload.digest), answer.manifest
        self.up += [_sent(task, group) for group in groups]
        declaration = UpdateDeclaration(
            digest=pending.payload.digest, size_bytes=pending.payload.size_bytes, groups=groups,
            example_count=pending.num_examples, metrics=pending.metrics, training_seconds=pending.seconds)
        await self.before_declaring(task, declaration)
        await deliver(task_service, task, path.read_bytes(), declaration, pending.update_id)

    def fetch(self, task: TaskSpec, task_service: TaskService) -> dict[str, Path]:
        paths = {}
        for payload in task.payloads:
            if payload.tensors and self.tensors.find(payload.tensors):
                self.down.append(Sent(task.task_id, self.name, task.phase, payload.groups[0], None, "", 0, 0,
                                      payload.tensors))
                continue
            if not payload.digest or (payload.reference and not self.tensors.find(payload.reference)):
                raise TensorsMissing("A tensor group that the task builds on is not here any more.")
            file = self.cache.temporary()
            file.write_bytes(task_service.payload_for(self.name, task.task_id, payload.digest).read_bytes())
            paths[payload.digest] = self.cache.path(self.cache.add_file(file, digest=payload.digest))
            task_service.downloaded(self.name, task.task_id, payload.digest, payload.size_bytes)
            self.down += [_sent(task, group) for group in read_manifest(paths[payload.digest])]
        self.cache.collect(paths)
        collect_tensors(self.tensors, task.payloads)
        return paths


async def _nothing(task: TaskSpec, declaration: UpdateDeclaration) -> None:
    pass


def _sent(task: TaskSpec, group: GroupManifest) -> Sent:
    return Sent(task.task_id, task.silo, task.phase, group.name, group.meaning, group.reference, group.encoded_bytes,
                group.dense_bytes, group.tensors_digest)


@dataclass(frozen=True)
class _Steps:
    """What is done otherwise here: payloads are copied, training runs in this thread."""

    silo: Silo
    task_service: TaskService
    upload_rate: float = 0.0

    def ready_before(self) -> None:
        pass

    async def fetch(self, task: TaskSpec) -> dict[str, Path]:
        return self.silo.fetch(task, self.task_service)

    async def train(self, request: Train) -> Trained:
        return await self.silo.compute.call(request)

    def check_room(self, size_bytes: int) -> None:
        pass


async def deliver(task_service: TaskService, task: TaskSpec, content: bytes, declaration: UpdateDeclaration,
                  update_id: str) -> BeginAnswer:
    """BeginUpdate, the bytes, the check."""
    answer = await task_service.updates.begin(task.silo, task.task_id, update_id, declaration)
    if answer.state == "send":
        partial, update = await task_service.updates.upload(task.silo, update_id)
        with partial:
            if rest := content[answer.resume_offset:]:
                partial.append(rest, offset=answer.resume_offset, crc32=zlib.crc32(rest))
            await task_service.updates.accept(task.silo, update, partial)
    return answer


class Federation:
    """A coordinator and its silos in one folder. Made again over the same folder, it is a restart of both."""

    def __init__(self, folder: Path, tables: Mapping[str, Any], images: Images, silos: Sequence[str], *,
                 fresh: bool = False) -> None:
        """
        Args:
            tables: of the study file.
            fresh: whether every operation of either side is done by new objects.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.ledger.query("PRAGMA synchronous = OFF")
        self.roster = LedgerRoster(self.ledger)
        self.runtime = RuntimeState()
        self.payloads = PayloadStore(folder / "payloads", durable=False)
        self.spool = PayloadStore(folder / "spool", durable=False)
        self.compute = Direct(CoordinatorOperations, fresh=fresh)
        self.task_service = TaskService(ledger=self.ledger, roster=self.roster, runtime=self.runtime,
                                        payloads=self.payloads, spool=self.spool, compute=self.compute)
        self.engine = Engine(hearing=Hearing(roster=self.roster, runtime=self.runtime, clock=time.time,
                                             silent_seconds=math.inf),
                             ledger=self.ledger, roster=self.roster, runtime=self.runtime, compute=self.compute,
                             payloads=self.payloads, spool=self.spool, accountant=NoAccounts(),
                             folders=EngineFolders(studies=folder / "studies", payloads=folder / "payloads"))
        config = config_from_dict({"numerics": {"threads": 1}, **tables}, where="test")  # what is measured may differ
        at_silo = silos_have_labels(config.method.settings.scenario)
        self.silos = {name: Silo(name, folder / name, JoinChoice(
            source=images.unlabelled(name), labelled=images.labelled(name) if at_silo else "",
            test=images.labelled("test")), fresh) for name in silos}
        self.abstains: Callable[[TaskSpec], bool] = lambda task: False
        """Asked for every task: whether the silo answers that it has nothing to send."""
        self.absent: Callable[[str], bool] = lambda silo: False
        """Asked before every poll: whether the silo is not there."""
        self.before_answer: Callable[[Silo, TaskSpec], None] = lambda silo, task: None
        if not self.ledger.studies():
            self._enroll(silos)
            (folder / "studies" / STUDY).mkdir(parents=True)
            self.ledger.queue_study(STUDY, to_dict(config))

    def _enroll(self, silos: Sequence[str]) -> None:
        for number, silo in enumerate(silos, start=1):
            token = bytes([number]) * 32
            self.roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
            self.roster.use_invitation(token, key_fingerprint=token, certificate_der=b"", serial=number,
                                       not_after_unix=4e9)

    def run(self, *, order: Callable[[list[str]], list[str]] = sorted) -> str:
        """Runs the study to its end, silos asking one after another in that order; the digest of the last state."""
        asyncio.run(self._run(order))
        study = self.ledger.study(STUDY)
        assert study.state == "completed", study.reason
        return self.ledger.committed_digest(STUDY)

    async def _run(self, order: Callable[[list[str]], list[str]]) -> None:
        engine = asyncio.ensure_future(self.engine.run_next())
        try:
            while not engine.done():
                called = asyncio.ensure_future(self.runtime.wait_for_call(0.01))
                await asyncio.sleep(0)
                answered = False
                for name in order(list(self.silos)):
                    if not engine.done() and not self.absent(name):
                        answered = await self.poll(name) or answered
                if not answered:
                    await asyncio.wait({engine, called}, return_when=asyncio.FIRST_COMPLETED)
                called.cancel()
            await engine
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)

    async def poll(self, name: str) -> bool:
        """One AwaitTask of a silo, and its answer; whether there was a task."""
        silo = self.silos[name]
        hello = Hello(version="0", methods=(), labelled_count=10_000, unlabelled_count=10_000, held=silo.held())
        task = await self.task_service.await_task(name, hello, timeout_seconds=0)
        if isinstance(task, Standby):
            return False
        if self.abstains(task):
            self.task_service.abstain(name, task.task_id, "no_data", {})
            return True
        self.before_answer(silo, task)
        with contextlib.suppress(TensorsMissing):  # it is put off, and asks again
            await silo.answer(task, self.task_service)
        return True

    # What came out ----------------------------------------------------------------------------------------------------

    def tasks(self) -> list[TaskRow]:
        """All tasks of the study in order."""
        return [task for row in self.ledger.rounds(STUDY) for number in range(len(row.phases))
                for task in self.ledger.tasks(STUDY, row.number, number)]

    def model(self, number: int) -> dict[str, torch.Tensor]:
        """Parameters and batch-norm statistics of the model after a round; only after a run, of the last three."""
        path = self.folder / f"model-{number}.safetensors"
        asyncio.run(self.compute.call(Export(state=self.ledger.round(STUDY, number).state_digest, path=path)))
        return load_file(path)

    def metrics(self, number: int) -> dict[str, float]:
        """Of a round."""
        return self.ledger.round(STUDY, number).metrics

    def remembered(self) -> dict[str, tuple[str, str]]:
        """By silo: digests of what the strategy keeps for it, and of the files of its memory."""
        return {name: (self.ledger.silo_state(STUDY, name)[1] or "",
                       " ".join(sorted(path.name.removesuffix(STATE_ENDING)
                                       for path in silo.memory.folder.glob(f"*{STATE_ENDING}"))))
                for name, silo in self.silos.items()}

    def down(self) -> list[Sent]:
        """Every group that silos were given, in order by silo."""
        return [sent for silo in self.silos.values() for sent in silo.down]

    def up(self) -> list[Sent]:
        """Every group of updates, in order by silo."""
        return [sent for silo in self.silos.values() for sent in silo.up]

    def close(self) -> None:
        self.ledger.close()
