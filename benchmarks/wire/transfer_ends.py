"""The two ends of a measured transfer, each a process of its own: the coordinator's light process and a silo's.

What carries the bytes is the product: `RoundServicer`, `Link`, `PayloadStore`, mutual TLS. What decides (tasks, checks
of the content, training) is left out, so that the transfer alone is measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.wire.raw_tls import cpu_seconds
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.rpc.tls import (
    Credentials,
    channel_credentials,
    channel_options,
    listen,
    server_credentials,
    server_options,
)
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire.tensors_pb2 import PayloadReference
from semisilo.coordinator.federation.authority import CoordinatorCertificate
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import DeclaredUpdate
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.rounds.shared_model import SharedModels
from semisilo.coordinator.rpc.metering import RoundMeter
from semisilo.coordinator.rpc.round_service import RoundServicer
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.coordinator.tasks.open_tasks import BeginAnswer
from semisilo.silo.link.link import Link

__all__ = ["FEDERATION", "Used", "be_coordinator", "be_silo", "silo_name"]

FEDERATION = "benchmark"


def silo_name(number: int) -> str:
    """The name of a silo, from 0."""
    return f"silo-{number}"


@dataclass(frozen=True, slots=True)
class Used:
    """What a process has used so far."""

    cpu_seconds: float
    peak_bytes: int

    @staticmethod
    def now() -> Used:
        """This process, all threads."""
        status = Path("/proc/self/status").read_text()
        return Used(cpu_seconds(), int(status.partition("VmHWM:")[2].split()[0]) * 1024)


class _TaskServiceStandIn:
    """What the servicer needs of `TaskService`: where payloads lie and where updates go, without any opinion."""

    def __init__(self, payloads: PayloadStore, spool: PayloadStore) -> None:
        self.payloads = payloads
        self.updates = _UpdateServiceStandIn(spool)

    def payload_for(self, silo: str, task_id: str, digest: str) -> Path:
        return self.payloads.path(digest)

    def downloaded(self, silo: str, task_id: str, digest: str, sent_bytes: int, *, offset: int = 0) -> None:
        pass


class _AnyUpdate:
    """A declaration that is taken without a look at its manifest."""

    def wants_manifest(self, *, num_groups: int, num_tensors: int) -> bool:
        return False


class _UpdateServiceStandIn:
    def __init__(self, spool: PayloadStore) -> None:
        self.spool = spool
        self.declared: dict[str, DeclaredUpdate] = {}

    def asked_for(self, silo: str, task_id: str, update_id: str) -> _AnyUpdate:
        return _AnyUpdate()

    async def begin(self, silo: str, task_id: str, update_id: str, declaration: Any, *,
                    asked: _AnyUpdate) -> BeginAnswer:
        self.declared[update_id] = DeclaredUpdate(
            update_id=update_id, task_id=task_id, digest=declaration.digest, size_bytes=declaration.size_bytes,
            groups={}, example_count=0, metrics={}, training_seconds=0.0, declared_unix=0.0, accepted_unix=None,
            folded=False)
        with await asyncio.to_thread(self.spool.partial, update_id, size_bytes=declaration.size_bytes) as partial:
            return BeginAnswer("send", resume_offset=partial.committed_bytes)

    def awaited(self, silo: str, update_id: str) -> DeclaredUpdate:
        return self.declared[update_id]

    async def upload(self, silo: str, update_id: str) -> tuple[PartialFile, DeclaredUpdate]:
        update = self.declared[update_id]
        return await asyncio.to_thread(self.spool.partial, update_id, size_bytes=update.size_bytes), update

    def has_all(self, update: DeclaredUpdate) -> bool:
        return False

    def has_none(self, update: DeclaredUpdate) -> bool:
        return False

    def is_accepting(self, update: DeclaredUpdate) -> bool:
        return False

    def still_wanted(self, update: DeclaredUpdate) -> bool:
        return True

    async def accept(self, silo: str, update: DeclaredUpdate, partial: PartialFile) -> None:
        await asyncio.to_thread(partial.finish, update.digest)


def be_coordinator(orders: Connection, folder: Path, uploads: int, spare_files: int) -> None:
    """The coordinator's light process: sends its port, then does what it is told until it is told None.

    Orders: "payload", size -> the digest of a new payload; "used" -> `Used`; "collect" -> empties the spool.
    """
    settle_allocator()
    asyncio.run(_serve(orders, folder, uploads, spare_files))


async def _serve(orders: Connection, folder: Path, uploads: int, spare_files: int) -> None:
    ledger = Ledger(folder / "ledger.sqlite")
    payloads = PayloadStore(folder / "payloads")
    spool = PayloadStore(folder / "spool", limit_bytes=20 * 2**30, spare_files=spare_files)
    server = grpc.aio.server(options=server_options())
    shown = CoordinatorCertificate(folder / "authority", now=time.time()).current
    port = listen(server, "127.0.0.1:0",
                  server_credentials(shown, silo_authority_pem=(folder / "ca.pem").read_bytes()))
    task_service: Any = _TaskServiceStandIn(payloads, spool)
    RoundServicer(task_service=task_service, roster=LedgerRoster(ledger), runtime=RuntimeState(),
                  cards=StudyCards(ledger, federation=FEDERATION),
                  models=SharedModels(ledger, folder / "studies"), meter=RoundMeter(ledger, port=port),
                  federation=FEDERATION, max_uploads=uploads).add_to(server, SiloCalls(FEDERATION))
    await server.start()
    orders.send(port)
    while (order := await asyncio.to_thread(orders.recv)) is not None:
        match order:
            case ("payload", size_bytes):
                orders.send(await asyncio.to_thread(_new_payload, payloads, size_bytes))
            case "used":
                orders.send(Used.now())
            case "collect":
                spool.collect(set())
                orders.send("done")
    await server.stop(0)
    ledger.close()


def _new_payload(store: PayloadStore, size_bytes: int) -> str:
    store.collect(set())
    temporary = store.temporary()
    return store.add_file(temporary, digest=_write_random(temporary, size_bytes))


def _write_random(path: Path, size_bytes: int) -> str:
    """Writes bytes that no two calls share; returns their SHA-256. Takes no memory to speak of."""
    total = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for start in range(0, size_bytes, 2**20):
            piece = os.urandom(min(2**20, size_bytes - start))
            total.update(piece)
            file.write(piece)
    return total.hexdigest()


def be_silo(orders: Connection, folder: Path, number: int, port: int) -> None:
    """A silo's light process: does what it is told until it is told None, and says how many seconds each took.

    Orders: "download", digest, size -> seconds; "upload", size -> seconds; "used" -> `Used`.
    """
    settle_allocator()
    asyncio.run(_take_part(orders, folder, number, port))


async def _take_part(orders: Connection, folder: Path, number: int, port: int) -> None:
    own = Credentials(key_pem=(folder / f"{silo_name(number)}.key").read_bytes(),
                      certificate_pem=(folder / f"{silo_name(number)}.pem").read_bytes())
    credentials = channel_credentials(authority_pem=(folder / "ca.pem").read_bytes(), own=own)
    link = Link(lambda: grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials,
                                                options=channel_options(FEDERATION, use_http_proxy=False)),
                silo=silo_name(number))
    cache = PayloadStore(folder / f"cache-{number}", spare_files=1)
    outgoing = PayloadStore(folder / f"outgoing-{number}")
    upload = (0, "", Path())
    while (order := await asyncio.to_thread(orders.recv)) is not None:
        match order:
            case ("download", digest, size_bytes):
                start = time.perf_counter()
                await link.download("task", PayloadRef(digest, size_bytes, ("model",)), cache)
                orders.send(time.perf_counter() - start)
                cache.collect(set())
            case ("prepare", size_bytes):
                outgoing.collect(set())
                temporary = outgoing.temporary()
                digest = outgoing.add_file(temporary, digest=_write_random(temporary, size_bytes))
                upload = size_bytes, digest, outgoing.path(digest)
                orders.send("done")
            case "upload":
                size_bytes, digest, path = upload
                request = pb.BeginUpdateRequest(task_id="task", update_id=os.urandom(16).hex(),
                                                update=pb.UpdateDeclaration(payload=PayloadReference(
                                                    digest=bytes.fromhex(digest), size_bytes=size_bytes,
                                                    groups=["model"])))
                request.update.manifest.CopyFrom(_manifest())
                start = time.perf_counter()
                await link.upload(request, path)
                orders.send(time.perf_counter() - start)
            case "used":
                orders.send(Used.now())
    await link.close()


def _manifest() -> Any:
    """Any manifest that a parser takes; the benchmark's task service does not compare it with the bytes."""
    from semisilo.common.methods.contract import Meaning, TensorSpec
    from semisilo.common.payload.manifest import GroupManifest, manifest_to_proto

    return manifest_to_proto((GroupManifest("model", Meaning.VALUES, "", (TensorSpec("w", (1,), "float32"),), 20),))
