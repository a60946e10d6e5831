"""A federation without a network whose silos have nothing in common but files: what a simulation must equal.

The coordinator is the real engine, task service and compute; every silo reads its own .npz as `semisilo split` writes
it, copies payloads chunk by chunk into a folder of its own, decodes what it gets by itself, and sends updates chunk by
chunk. Silos answer in an order of their own.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from pathlib import Path

import numpy as np

from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import InlineCompute
from semisilo.common.storage.store import MAX_CHUNK_BYTES
from semisilo.coordinator.compute.operations import Operations as CoordinatorOperations
from semisilo.coordinator.ledger.cleanup import open_payloads, open_spool
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster, SimulatedMember
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.study_file import load_study
from semisilo.coordinator.tasks.task_service import Hello, Standby, TaskService
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from semisilo.silo.agent.answer import ReadyAnswer, Site, answer_task
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.compute.operations import Operations as SiloOperations
from semisilo.silo.site.disclosures import DisclosureLog
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.memory import SiloMemory
from semisilo.silo.site.policy import Permit, Policy
from semisilo.silo.site.stores import collect_tensors, open_cache
from tests.coordinator.federation_in_memory import NoAccounts

__all__ = ["run_parts"]


def run_parts(parts: Path, folder: Path) -> Ledger:
    """Runs the study whose parts are in a folder (`semisilo split`); returns the ledger, where it is called "first"."""
    return asyncio.run(_run(parts, folder))


async def _run(parts: Path, folder: Path) -> Ledger:
    folder.mkdir(parents=True)
    studies = folder / "studies"
    studies.mkdir()
    (studies / "first").symlink_to(parts / "coordinator", target_is_directory=True)
    ledger = Ledger(folder / "ledger.sqlite", waits=False)
    roster, runtime = LedgerRoster(ledger), RuntimeState()
    compute = InlineCompute(lambda progress: CoordinatorOperations(progress, device="cpu"))
    payloads, spool = open_payloads(folder / "payloads"), open_spool(folder / "spool", limit_bytes=0)
    task_service = TaskService(ledger=ledger, roster=roster, runtime=runtime, payloads=payloads, spool=spool,
                               compute=compute)
    engine = Engine(hearing=Hearing(roster=roster, runtime=runtime, clock=time.time, silent_seconds=math.inf),
                    ledger=ledger, roster=roster, runtime=runtime, compute=compute, payloads=payloads, spool=spool,
                    accountant=NoAccounts(), folders=EngineFolders(studies=studies, payloads=folder / "payloads"))
    ledger.queue_study("first", to_dict(load_study(parts / "coordinator" / "study.toml")))
    files = sorted((parts / "silos").glob("*.npz"))
    roster.admit([SimulatedMember(name=file.stem, labelled_count=0, unlabelled_count=0) for file in files],
                 version="", methods=())
    test = parts / "coordinator" / "data" / "test.npz"
    silos = [asyncio.ensure_future(_Silo(file, test, folder / file.stem, task_service).work())
             for file in reversed(files)]
    try:
        row = await engine.run_next()
        assert row is not None
        assert row.state is StudyState.COMPLETED, row.reason
        await asyncio.gather(*silos)
    finally:
        for silo in silos:
            silo.cancel()
        await compute.close()
    return ledger


class _Silo:
    def __init__(self, file: Path, test: Path, folder: Path, task_service: TaskService) -> None:
        self._name = file.stem
        self._file = file
        with np.load(file) as arrays:
            counts = {name: len(arrays[name]) for name in arrays.files if name.endswith("_images")}
        self._labelled = counts.pop("labelled_images", 0)
        self._unlabelled = sum(counts.values())
        self._test = test
        self._home = SiloHome(folder)
        self._memory = SiloMemory(self._home.memory, outgoing=self._home.outgoing)
        self._cache = open_cache(self._home.cache)
        self._tensors = TensorCache(self._cache)
        self._task_service = task_service
        self._compute = InlineCompute(lambda progress: SiloOperations(progress, device="cpu"))

    async def work(self) -> None:
        while True:
            answer = await self._task_service.await_task(self._name, Hello(
                version=__version__, methods=(), labelled_count=self._labelled, unlabelled_count=self._unlabelled,
                held=frozenset(self._tensors.digests())), timeout_seconds=30.0)
            if isinstance(answer, Standby):
                if answer.reason == "no_study" and answer.text:
                    return
                continue
            await self._answer(answer)

    async def _answer(self, task: TaskSpec) -> None:
        spec = find_method(task.method)  # a plug-in's permissions are not what is compared here
        policy = Policy(permit=Permit(methods=(spec.name,), groups=tuple({*spec.receives, *spec.up}),
                                      metrics=spec.metrics))
        site = Site(policy=policy, choice=JoinChoice(source=str(self._file), test=str(self._test)),
                    memory=self._memory, cache_folder=self._home.cache,
                    disclosures=DisclosureLog(self._home.disclosures), privacy_folder=self._home.privacy)
        await self._send(await answer_task(task, site, self))

    upload_rate = 0.0

    def ready_before(self) -> None:
        raise AssertionError("nothing is killed here")

    async def fetch(self, task: TaskSpec) -> dict[str, Path]:
        wanted = [each for each in task.payloads if not self._tensors.find(each.tensors)]
        for payload in wanted:
            self._download(task, payload)
        collect_tensors(self._tensors, task.payloads)
        return {each.digest: self._cache.path(each.digest) for each in wanted}

    async def train(self, request: Train) -> Trained:
        return await self._compute.call(request)

    def check_room(self, size_bytes: int) -> None:
        pass

    def _download(self, task: TaskSpec, payload: PayloadRef) -> None:
        content = self._task_service.payload_for(self._name, task.task_id, payload.digest).read_bytes()
        with self._cache.partial(payload.digest, size_bytes=len(content)) as partial:
            for start in range(0, len(content), MAX_CHUNK_BYTES):
                piece = content[start:start + MAX_CHUNK_BYTES]
                partial.append(piece, offset=start, crc32=zlib.crc32(piece))
            partial.finish(payload.digest)
        self._task_service.downloaded(self._name, task.task_id, payload.digest, len(content))

    async def _send(self, prepared: ReadyAnswer) -> None:
        task, pending, payload = prepared.task, prepared.pending, prepared.pending.payload
        if payload is None:
            self._task_service.abstain(self._name, task.task_id, pending.abstention, pending.metrics)
            return
        path = self._memory.outgoing.path(payload.digest)
        content = path.read_bytes()
        answer = await self._task_service.updates.begin(self._name, task.task_id, pending.update_id, UpdateDeclaration(
            digest=payload.digest, size_bytes=payload.size_bytes, groups=prepared.manifest,
            example_count=pending.num_examples, metrics=pending.metrics, training_seconds=0.0))
        assert answer.state == "send"
        partial, update = await self._task_service.updates.upload(self._name, pending.update_id)
        with partial:
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            await self._task_service.updates.accept(self._name, update, partial)
