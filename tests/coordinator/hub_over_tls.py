"""The work port for real, in this process: mutual TLS, the gRPC servicer, task service, ledger and engine; arithmetic
instead of training."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semisilo.common.errors import SemisiloError
from semisilo.common.identity.certificates import certificate_pem, issue_silo_certificate, key_to_pem, make_key
from semisilo.common.methods.contract import Meaning, TaskSpec
from semisilo.common.payload.manifest import GroupManifest, manifest_to_proto
from semisilo.common.rpc.convert import task_from_proto
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.rpc.tls import (
    MESSAGE_LIMIT_BYTES,
    Credentials,
    channel_credentials,
    channel_options,
    listen,
    server_credentials,
    server_options,
)
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import round_service_pb2_grpc as pb_grpc
from semisilo.common.wire.tensors_pb2 import Chunk, PayloadReference
from semisilo.coordinator.federation.audit_key import HeadSigner, ensure_audit_key
from semisilo.coordinator.federation.authority import AuthorityKeys, CoordinatorCertificate, create_authority
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.rounds.shared_model import SharedModels
from semisilo.coordinator.rpc.metering import RoundMeter
from semisilo.coordinator.rpc.round_service import RoundServicer
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.silo.link.transfers import Ending
from tests.coordinator.federation_in_memory import BASE, LAYOUT, Coordinator, content_of, id_of, study_config

SILOS = ("alpha", "beta")
MODEL = GroupManifest("model", Meaning.DIFFERENCE, BASE, LAYOUT, 34)


class Hub:
    """A coordinator behind its port, and one stub per silo."""

    def __init__(self, coordinator: Coordinator, keys: AuthorityKeys, servicer: RoundServicer, meter: RoundMeter,
                 port: int) -> None:
        self.coordinator = coordinator
        self.keys = keys
        self.servicer = servicer
        self.meter = meter
        self.port = port
        self.channels: list[grpc.aio.Channel] = []
        self.credentials: dict[str, Credentials] = {}
        self.silos: dict[str, Any] = {}
        self.tasks: dict[str, TaskSpec] = {}
        self.heads: dict[str, pb.AuditHead] = {}
        """Silo -> the head of the audit trail that came with its task."""

    def enroll(self, silo: str, *, seconds: float = 3600.0) -> Credentials:
        """A certificate with its place in the roster."""
        key, now = make_key(), time.time()
        certificate = issue_silo_certificate(self.keys.key, self.keys.certificate, key.public_key(), silo, now=now,
                                             seconds=seconds)
        token = hashlib.sha256(f"{silo} {certificate.serial_number}".encode()).digest()
        self.coordinator.roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
        self.coordinator.roster.use_invitation(token, key_fingerprint=token, certificate_der=b"",
                                               serial=certificate.serial_number, not_after_unix=now + seconds)
        return Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(certificate))

    def connect(self, credentials: Credentials, *, message_limit_bytes: int = MESSAGE_LIMIT_BYTES) -> Any:
        """A stub over a connection of its own; a stranger's has limits of its own."""
        options = [*channel_options("testing", use_http_proxy=False, message_limit_bytes=message_limit_bytes),
                   ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{self.port}", channel_credentials(
            authority_pem=self.keys.pem, own=credentials), options=options)
        self.channels.append(channel)
        return pb_grpc.RoundServiceStub(channel)  # type: ignore[no-untyped-call]

    async def open_round(self) -> None:
        """Both silos ask until they have their task of round 1."""
        async def wait_for_task(silo: str) -> None:
            while True:
                answer = await self.silos[silo].AwaitTask(hello(), timeout=300)
                if answer.WhichOneof("answer") == "task":
                    self.heads[silo] = answer.audit_head
                    self.tasks[silo] = task_from_proto(answer.task, silo=silo)
                    return
        await asyncio.gather(*(wait_for_task(silo) for silo in SILOS))

    def alive(self, task: TaskSpec) -> bool:
        """The study still runs and the task is still open."""
        row = self.coordinator.ledger.task(task.task_id)
        return row is not None and row.state == "open" and self.coordinator.ledger.study("s").state == "running"


@contextlib.asynccontextmanager
async def hub(folder: Path, *, spool_bytes: int = 0, max_uploads: int = 4, idle_seconds: float = 120.0,
              participation: dict[str, Any] | None = None, waits: bool = False) -> AsyncIterator[Hub]:
    """A hub whose first round waits for the silos alpha and beta.

    Args:
        waits: for the disk, so that there are heads of the audit trail to hand out.
    """
    (folder / "hub-files").mkdir()
    coordinator = Coordinator(folder / "hub-files", spool_bytes=spool_bytes, waits=waits)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    keys = create_authority(folder / "authority", "testing", now=time.time())
    shown = CoordinatorCertificate(folder / "authority", now=time.time()).current
    server = grpc.aio.server(options=server_options())
    port = listen(server, "127.0.0.1:0", server_credentials(shown, silo_authority_pem=keys.pem))
    meter = RoundMeter(coordinator.ledger, port=port)
    servicer = RoundServicer(task_service=coordinator.task_service, roster=coordinator.roster,
                             cards=StudyCards(coordinator.ledger, federation="testing"),
                             models=SharedModels(coordinator.ledger, coordinator.folder / "studies"),
                             runtime=coordinator.runtime, meter=meter, federation="testing", max_uploads=max_uploads,
                             upload_idle_seconds=idle_seconds, audit_head=HeadSigner(
                                 coordinator.ledger, ensure_audit_key(folder / "authority", now=time.time())).current)
    servicer.add_to(server, SiloCalls("testing"))
    await server.start()
    made = Hub(coordinator, keys, servicer, meter, port)
    made.credentials = {silo: made.enroll(silo) for silo in SILOS}
    made.silos = {silo: made.connect(own) for silo, own in made.credentials.items()}
    coordinator.ledger.queue_study("s", study_config(**(
        {"quorum": 2, "round_timeout": "1h", "round_limit": "2h"} | (participation or {}))))
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    try:
        await made.open_round()
        yield made
    finally:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        for channel in made.channels:
            await channel.close()
        await server.stop(0)
        coordinator.close()


def hello(**changes: Any) -> pb.AwaitTaskRequest:
    """AwaitTask of a well-behaved silo."""
    request = pb.AwaitTaskRequest(version="0.1", methods=["semifl"], unlabelled_count=10, **changes)
    if "poll_timeout" not in changes:
        request.poll_timeout.seconds = 5
    return request


def begin(task: TaskSpec, content: bytes, *, update_id: str = "", size_bytes: int | None = None, digest: bytes = b"",
          groups: tuple[GroupManifest, ...] = (MODEL,), metrics: dict[str, float] | None = None,
          example_count: int = 10) -> pb.BeginUpdateRequest:
    """BeginUpdate for an update with that content."""
    return pb.BeginUpdateRequest(
        task_id=task.task_id, update_id=update_id or id_of(task, content), update=pb.UpdateDeclaration(
            payload=PayloadReference(digest=digest or hashlib.sha256(content).digest(),
                                     size_bytes=len(content) if size_bytes is None else size_bytes, groups=["model"]),
            manifest=manifest_to_proto(groups), example_count=example_count,
            metrics={"loss": 1.0} if metrics is None else metrics))


def pieces(content: bytes, *, size: int = 30) -> list[Chunk]:
    """The chunks that a well-behaved silo sends."""
    return [Chunk(offset=start, crc32=zlib.crc32(content[start:start + size]), data=content[start:start + size])
            for start in range(0, len(content), size)]


def stream(update_id: str, chunks: Iterable[Chunk]) -> list[pb.SubmitUpdateRequest]:
    """The messages of SubmitUpdate: the first names the update."""
    return [pb.SubmitUpdateRequest(update_id="" if number else update_id, chunk=chunk)
            for number, chunk in enumerate(chunks)]


async def submit(stub: Any, messages: Iterable[pb.SubmitUpdateRequest]) -> pb.SubmitUpdateResponse:
    """A whole SubmitUpdate; again where a refusal has cut off a write and gRPC has laid its own INTERNAL over it, as a
    silo does (`semisilo.silo.link.transfers`)."""
    given = list(messages)
    while True:
        try:
            answer: pb.SubmitUpdateResponse = await stub.SubmitUpdate(iter(given), timeout=300)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL or error.trailing_metadata():
                raise
        else:
            return answer


async def refusal(call: Awaitable[Any]) -> SemisiloError:
    """The catalogue's error with which an RPC ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    metadata = dict(caught.value.trailing_metadata() or ())
    assert "semisilo-error-code" in metadata, caught.value
    return from_rpc_error(caught.value)


async def ended(call: Any, ending: Ending) -> Any:
    """The response of an upload that the coordinator may end in the middle of a write.

    gRPC then lays its own INTERNAL over the status, which has come already or is a moment behind
    (`semisilo.silo.link.transfers.Ending`, made before the first write): raised is what the coordinator said.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        said = ending.of(error)
    for _ in range(100):
        if said.code() is not grpc.StatusCode.INTERNAL or said.trailing_metadata():
            break
        await asyncio.sleep(0.05)
        said = grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), await call.trailing_metadata(),
                                    details=await call.details())
    raise said


async def deliver(made: Hub, silo: str) -> None:
    """A whole update, as a control."""
    task = made.tasks[silo]
    content = content_of(task)
    answer = await made.silos[silo].BeginUpdate(begin(task, content), timeout=300)
    assert answer.state == pb.BeginUpdateResponse.STATE_SEND
    rest = pieces(content)
    assert answer.resume_offset % 30 == 0
    await submit(made.silos[silo], stream(id_of(task, content), rest[answer.resume_offset // 30:])
                 or [pb.SubmitUpdateRequest(update_id=id_of(task, content))])
