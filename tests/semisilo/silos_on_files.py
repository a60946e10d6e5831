"""A federation without a network whose silos have nothing in common but files: what a simulation must equal.

The coordinator is the real engine, desk and compute; every silo reads its own .npz as `semisilo split` writes it,
copies payloads chunk by chunk into a folder of its own, decodes what it gets by itself, and sends updates chunk by
chunk. Silos answer in an order of their own.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

from common import __version__
from common.compute import InlineCompute
from common.config import from_dict, to_dict
from common.exchange import PayloadRef, TaskSpec
from common.payload_reader import read_manifest
from common.store import MAX_CHUNK_BYTES
from common.tensor_cache import TensorCache
from coordinator.bulletin import Bulletin
from coordinator.desk import Announcement, Desk, Hello, Standby
from coordinator.engine import Engine, EngineFolders
from coordinator.ledger import Ledger
from coordinator.roster import LedgerRoster
from coordinator.states import StudyState
from coordinator.stores import open_payloads, open_spool
from coordinator.study import load_study
from coordinator.work import Operations as CoordinatorOperations
from silo.home import SiloHome
from silo.memory import SiloMemory, update_id_of
from silo.stores import collect_tensors, open_cache
from silo.work import Operations as SiloOperations
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
    roster, bulletin = LedgerRoster(ledger), Bulletin()
    compute = InlineCompute(lambda progress: CoordinatorOperations(progress, device="cpu"))
    payloads, spool = open_payloads(folder / "payloads"), open_spool(folder / "spool", limit_bytes=0)
    desk = Desk(ledger=ledger, roster=roster, bulletin=bulletin, payloads=payloads, spool=spool, compute=compute)
    engine = Engine(ledger=ledger, roster=roster, bulletin=bulletin, compute=compute, payloads=payloads, spool=spool,
                    accountant=NoAccounts(), folders=EngineFolders(studies=studies, payloads=folder / "payloads"))
    ledger.queue_study("first", to_dict(load_study(parts / "coordinator" / "study.toml")))
    files = sorted((parts / "silos").glob("*.npz"))
    roster.admit([file.stem for file in files])
    test = parts / "coordinator" / "data" / "test.npz"
    silos = [asyncio.ensure_future(_Silo(file, test, folder / file.stem, desk).work()) for file in reversed(files)]
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
    def __init__(self, file: Path, test: Path, folder: Path, desk: Desk) -> None:
        self._name = file.stem
        self._file = file
        self._test = test
        self._home = SiloHome(folder)
        self._memory = SiloMemory(self._home.memory, outgoing=self._home.outgoing)
        self._cache = open_cache(self._home.cache)
        self._tensors = TensorCache(self._cache)
        self._desk = desk
        self._compute = InlineCompute(lambda progress: SiloOperations(progress, device="cpu"))

    async def work(self) -> None:
        while True:
            answer = await self._desk.await_task(self._name, Hello(
                version=__version__, methods=(), labelled_count=0, unlabelled_count=0,
                held=frozenset(self._tensors.digests())), timeout_seconds=30.0)
            if isinstance(answer, Standby):
                if answer.reason == "no_study" and answer.text:
                    return
                continue
            await self._answer(answer)

    async def _answer(self, task: TaskSpec) -> None:
        self._memory.resolve(task.study, task.last_folded_round, round=task.round, task_id=task.task_id)
        wanted = [each for each in task.payloads if not self._tensors.find(each.tensors)]
        for payload in wanted:
            self._download(task, payload)
        collect_tensors(self._tensors, task.payloads)
        memory = self._memory.committed(task.study)
        residuals, pending_residuals = self._memory.residuals(task.study, round=task.round)
        result = await self._compute.call("train", {
            "task": to_dict(task), "payloads": {each.digest: str(self._cache.path(each.digest)) for each in wanted},
            "cache_folder": str(self._home.cache), "source": str(self._file), "test": str(self._test),
            "on_error": "stop", "factories": [],
            "memory": memory and str(memory), "residuals": residuals and str(residuals),
            "pending_residuals": pending_residuals and str(pending_residuals),
            "outgoing_folder": str(self._home.outgoing), "memory_folder": str(self._home.memory)})
        await self._send(task, result)

    def _download(self, task: TaskSpec, payload: PayloadRef) -> None:
        content = self._desk.payload_for(self._name, task.task_id, payload.digest).read_bytes()
        with self._cache.partial(payload.digest, size_bytes=len(content)) as partial:
            for start in range(0, len(content), MAX_CHUNK_BYTES):
                piece = content[start:start + MAX_CHUNK_BYTES]
                partial.append(piece, offset=start, crc32=zlib.crc32(piece))
            partial.finish(payload.digest)
        self._desk.downloaded(self._name, task.task_id, payload.digest, len(content))

    async def _send(self, task: TaskSpec, result: dict[str, Any]) -> None:
        payload = from_dict(PayloadRef, result["payload"]) if result["payload"] else None
        pending = self._memory.record_pending(
            task.study, round=task.round, task_id=task.task_id,
            update_id=update_id_of(task.task_id, payload.digest if payload else f"abstention {result['abstention']}"),
            memory=Path(result["memory"]) if result["memory"] else None,
            residuals=Path(result["residuals"]) if result["residuals"] else None, payload=payload,
            abstention=result["abstention"], num_examples=result["num_examples"], metrics=result["metrics"])
        if payload is None:
            self._desk.abstain(self._name, task.task_id, pending.abstention, pending.metrics)
            return
        path = self._memory.outgoing.path(payload.digest)
        content = path.read_bytes()
        answer = await self._desk.begin_update(self._name, task.task_id, pending.update_id, Announcement(
            digest=payload.digest, size_bytes=payload.size_bytes, groups=read_manifest(path),
            example_count=pending.num_examples, metrics=pending.metrics, training_seconds=0.0))
        assert answer.state == "send"
        partial, update = await self._desk.upload(self._name, pending.update_id)
        with partial:
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            await self._desk.accept(self._name, update, partial)
