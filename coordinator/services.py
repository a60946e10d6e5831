"""The gRPC servicer of RoundService: messages to dataclasses and back, who calls, errors to status, bytes to the meter.

Every RPC starts by looking at the caller's certificate, because gRPC keeps serving a connection whose certificate has
expired or was revoked after the handshake. An RPC in flight is ended when its caller is revoked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from common.chunks import receive_into, stream_chunks
from common.convert import check_metrics, reference_from_proto, task_to_proto
from common.errors import BadPayload, TaskClosed, Unreachable
from common.exchange import TaskSpec
from common.logs import printable
from common.manifest import parse_manifest
from common.status import answering_errors
from common.wire import round_service_pb2 as pb
from common.wire import round_service_pb2_grpc as pb_grpc
from common.wire.tensors_pb2 import Chunk
from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.callers import CallerCertificate, caller_silo, check_caller
from coordinator.desk import Announcement, BeginAnswer, Desk, Hello
from coordinator.metering import RoundMeter
from coordinator.roster import LedgerRoster

__all__ = ["RoundServicer"]

_LOG = logging.getLogger("semisilo.coordinator")
_POLL_SECONDS, _MAX_POLL_SECONDS = 25.0, 60.0
_REPORT_SECONDS = 3.0
_CHECK_EVERY_CHUNKS = 32
_REVOKED_CHECK_SECONDS = 0.5
_UPLOAD_IDLE_SECONDS = 120.0

Answer = TypeVar("Answer")
_Context = grpc.aio.ServicerContext[Any, Any]
_REASONS = {
    StandbyReason.WAITING_FOR_SILOS: pb.Standby.REASON_WAITING_FOR_SILOS,
    StandbyReason.COORDINATOR_WORKING: pb.Standby.REASON_COORDINATOR_WORKING,
    StandbyReason.NOT_SAMPLED: pb.Standby.REASON_NOT_SAMPLED,
    StandbyReason.PAUSED: pb.Standby.REASON_PAUSED,
    StandbyReason.NO_STUDY: pb.Standby.REASON_NO_STUDY,
}
_STATES = {"send": pb.BeginUpdateResponse.STATE_SEND, "have": pb.BeginUpdateResponse.STATE_HAVE,
           "refused": pb.BeginUpdateResponse.STATE_REFUSED}
_STAGES = {pb.ReportProgressRequest.STAGE_DOWNLOADING: "downloading",
           pb.ReportProgressRequest.STAGE_TRAINING: "training",
           pb.ReportProgressRequest.STAGE_UPLOADING: "uploading"}


class RoundServicer(pb_grpc.RoundServiceServicer):
    """Serves silos over mutually authenticated TLS."""

    def __init__(self, *, desk: Desk, roster: LedgerRoster, bulletin: Bulletin, meter: RoundMeter, federation: str,
                 max_uploads: int, clock: Callable[[], float] = time.time,
                 upload_idle_seconds: float = _UPLOAD_IDLE_SECONDS) -> None:
        """
        Args:
            max_uploads: updates that are received at the same time, at most one of each silo.
            upload_idle_seconds: an upload in which nothing arrives for so long gives its place to another silo.
        """
        self._desk = desk
        self._roster = roster
        self._bulletin = bulletin
        self._meter = meter
        self._federation = federation
        self._uploads = asyncio.Semaphore(max_uploads)
        self._clock = clock
        self._acceptances: set[asyncio.Future[None]] = set()
        self._upload_idle_seconds = upload_idle_seconds
        self._uploading: dict[str, _Call] = {}

    # RPCs -------------------------------------------------------------------------------------------------------------

    async def AwaitTask(self, request: pb.AwaitTaskRequest, context: _Context) -> pb.AwaitTaskResponse:
        """Long poll for the next task."""
        async def work(silo: str) -> pb.AwaitTaskResponse:
            if min(request.labelled_count, request.unlabelled_count, request.memory_round) < 0:
                raise BadPayload("Counts must be at least 0.")
            if len(request.methods) > 256 or len(request.held_digests) > 256:
                raise BadPayload("At most 256 methods and digests.")
            hello = Hello(version=printable(request.version, limit=64),
                          methods=tuple(printable(name, limit=64) for name in request.methods),
                          labelled_count=request.labelled_count, unlabelled_count=request.unlabelled_count,
                          memory_study=printable(request.memory_study, limit=128), memory_round=request.memory_round)
            wanted = _seconds(request.poll_timeout) or _POLL_SECONDS
            answer = await self._desk.await_task(silo, hello, timeout_seconds=min(max(wanted, 0.0), _MAX_POLL_SECONDS))
            if isinstance(answer, TaskSpec):
                return pb.AwaitTaskResponse(task=task_to_proto(answer, report_interval_seconds=_REPORT_SECONDS))
            return pb.AwaitTaskResponse(standby=pb.Standby(
                reason=_REASONS[answer.reason], study=answer.study, round=answer.round, round_count=answer.rounds,
                text=answer.text))
        return await self._unary("AwaitTask", request, context, work)

    async def ReportProgress(self, request: pb.ReportProgressRequest,
                             context: _Context) -> pb.ReportProgressResponse:
        """Takes note; may ask to abort."""
        async def work(silo: str) -> pb.ReportProgressResponse:
            reason = self._desk.report(silo, request.task_id, stage=_STAGES.get(request.stage, "working"),
                                       fraction=request.fraction, text=request.text)
            return pb.ReportProgressResponse(abort=bool(reason), reason=reason)
        return await self._unary("ReportProgress", request, context, work)

    async def BeginUpdate(self, request: pb.BeginUpdateRequest,
                          context: _Context) -> pb.BeginUpdateResponse:
        """Takes the declaration of an outcome."""
        async def work(silo: str) -> pb.BeginUpdateResponse:
            answer = await self._begin(silo, request)
            return pb.BeginUpdateResponse(state=_STATES[answer.state], resume_offset=answer.resume_offset,
                                          reason=answer.reason)
        return await self._unary("BeginUpdate", request, context, work)

    async def DownloadPayload(self, request: pb.DownloadPayloadRequest,
                              context: _Context) -> None:
        """Streams a payload from the offset that the silo has on disk."""
        sent, silo, digest = 0, "", request.digest.hex()
        with self._call(context) as call:
            async with answering_errors(context):
                silo = call.identify()
                self._meter.message("DownloadPayload", silo, "up", request.ByteSize())
                path = self._desk.payload_for(silo, request.task_id, digest)
                number = 0
                try:
                    async for chunk in stream_chunks(path, offset=request.offset):
                        number += 1
                        if number % _CHECK_EVERY_CHUNKS == 0:
                            call.check()
                        response = pb.DownloadPayloadResponse(chunk=chunk)
                        try:
                            await call.guard(context.write(response))
                        except grpc.aio.InternalError:
                            # The connection is gone; the silo comes back for the rest. Cancelled, the RPC ends here
                            # without gRPC's own stack trace in the operator's log.
                            raise asyncio.CancelledError from None
                        sent += len(chunk.data)
                        self._meter.message("DownloadPayload", silo, "down", response.ByteSize())
                finally:
                    if sent:
                        self._desk.downloaded(silo, request.task_id, digest, sent)

    async def SubmitUpdate(self, request_iterator: AsyncIterator[pb.SubmitUpdateRequest],
                           context: _Context) -> pb.SubmitUpdateResponse:
        """Receives the bytes of a declared update into the spool; answers after fsync, checks and ledger commit."""
        with self._call(context) as call:
            async with answering_errors(context):
                silo = call.identify()
                with self._only_upload_of(silo, call):
                    async with self._uploads:
                        response = await self._receive(silo, request_iterator, call)
                self._meter.message("SubmitUpdate", silo, "down", response.ByteSize())
                return response
        raise AssertionError("an error has ended the RPC")

    # Parts ------------------------------------------------------------------------------------------------------------

    async def _begin(self, silo: str, request: pb.BeginUpdateRequest) -> BeginAnswer:
        outcome = request.WhichOneof("outcome")
        if outcome == "abstention":
            return self._desk.abstain(silo, request.task_id, request.abstention.reason,
                                      check_metrics(request.abstention.metrics))
        if outcome == "refusal":
            return self._desk.refuse(silo, request.task_id, request.refusal.code, request.refusal.text)
        if outcome != "update":
            raise BadPayload("BeginUpdate names no outcome.")
        update = request.update
        reference = reference_from_proto(update.payload)
        return await self._desk.begin_update(silo, request.task_id, request.update_id, Announcement(
            digest=reference.digest, size_bytes=reference.size_bytes, groups=parse_manifest(update.manifest),
            example_count=update.example_count, metrics=check_metrics(update.metrics),
            training_seconds=_seconds(update.training_duration)))

    async def _receive(self, silo: str, requests: AsyncIterator[pb.SubmitUpdateRequest],
                       call: _Call) -> pb.SubmitUpdateResponse:
        call.check()  # the wait for a place may have been long
        iterator = requests.__aiter__()
        first = await call.guard(_next(iterator), idle_seconds=self._upload_idle_seconds)
        if first is None:
            raise BadPayload("The stream of the update is empty.")
        self._meter.message("SubmitUpdate", silo, "up", first.ByteSize())
        partial, update = await self._desk.upload(silo, first.update_id)

        async def chunks() -> AsyncIterator[Chunk]:
            message: pb.SubmitUpdateRequest | None = first
            number = 0
            while message is not None:
                if message is not first and (message.update_id or not message.HasField("chunk")):
                    raise BadPayload("Only the first message of the stream names the update; all others bring bytes.")
                if message.HasField("chunk"):
                    yield message.chunk
                number += 1
                if number % _CHECK_EVERY_CHUNKS == 0:
                    call.check()
                    if not self._desk.still_wanted(update):
                        raise TaskClosed("The phase closed while the update was on its way.")
                message = await call.guard(_next(iterator), idle_seconds=self._upload_idle_seconds)
                if message is not None:
                    self._meter.message("SubmitUpdate", silo, "up", message.ByteSize())

        with partial:
            if not self._desk.has_all(update):
                await receive_into(partial, chunks(), update.size_bytes)
            # A silo that hangs up now must not cut off the check: cancelling it would end the compute process.
            acceptance = asyncio.ensure_future(self._desk.accept(silo, update, partial))
            self._acceptances.add(acceptance)
            acceptance.add_done_callback(self._acceptances.discard)
            await asyncio.shield(acceptance)
        return pb.SubmitUpdateResponse(update_id=update.update_id, size_bytes=update.size_bytes)

    @contextmanager
    def _only_upload_of(self, silo: str, call: _Call) -> Iterator[None]:
        """A silo that comes again has lost its connection: the stream that waits for the lost one ends."""
        if (older := self._uploading.get(silo)) is not None:
            older.superseded = True
        self._uploading[silo] = call
        try:
            yield
        finally:
            if self._uploading.get(silo) is call:
                del self._uploading[silo]

    async def _unary(self, rpc: str, request: Any, context: _Context,
                     work: Callable[[str], Coroutine[Any, Any, Answer]]) -> Answer:
        with self._call(context) as call:
            async with answering_errors(context):
                silo = call.identify()
                self._meter.message(rpc, silo, "up", request.ByteSize())
                response: Any = await call.guard(work(silo))
                self._meter.message(rpc, silo, "down", response.ByteSize())
                answer: Answer = response
                return answer
        raise AssertionError("an error has ended the RPC")

    @contextmanager
    def _call(self, context: _Context) -> Iterator[_Call]:
        call = _Call(self, context)
        try:
            yield call
        finally:
            call.done()


class _Call:
    """One RPC in flight: who calls, and the end of it when the caller is revoked."""

    def __init__(self, servicer: RoundServicer, context: _Context) -> None:
        self._servicer = servicer
        self._context = context
        self._certificate: CallerCertificate | None = None
        self.superseded = False
        """Whether the silo has made the same call anew."""

    def identify(self) -> str:
        """The silo's name from its certificate, checked against the roster."""
        servicer = self._servicer
        self._certificate = caller_silo(self._context, servicer._federation)
        self.check()
        silo = self._certificate.silo
        servicer._meter.bind(self._context.peer(), silo)
        servicer._bulletin.connected[silo] = servicer._bulletin.connected.get(silo, 0) + 1
        return silo

    def check(self) -> None:
        """Raises when the caller's certificate has expired or was revoked since, or it calls anew."""
        assert self._certificate is not None
        if self.superseded:
            raise Unreachable("A newer connection of this silo goes on with the upload.", remedy="It is tried again.")
        check_caller(self._certificate, self._servicer._roster, self._servicer._clock())

    async def guard(self, work: Awaitable[Answer], *, idle_seconds: float = math.inf) -> Answer:
        """Awaits `work`, looking at the certificate twice a second, so that a stalled RPC of a revoked silo ends.

        Raises: what `check` raises; Unreachable when `work` takes longer than `idle_seconds`.
        """
        end = time.monotonic() + idle_seconds
        task = asyncio.ensure_future(work)
        # A connection that breaks ends the RPC and the write in it; nobody is left to hear of the latter.
        task.add_done_callback(_forget)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_REVOKED_CHECK_SECONDS)
                if done:
                    return task.result()
                self.check()
                if time.monotonic() > end:
                    raise Unreachable(f"Nothing has arrived for {idle_seconds:.0f} s.", remedy="It is tried again.")
        finally:
            if not task.done():
                task.cancel()

    def done(self) -> None:
        """Ends the account of this RPC."""
        servicer = self._servicer
        if self._certificate is not None and self._certificate.silo in servicer._bulletin.connected:
            silo = self._certificate.silo
            servicer._bulletin.connected[silo] -= 1
            if servicer._bulletin.connected[silo] <= 0:
                del servicer._bulletin.connected[silo]


def _seconds(duration: Duration) -> float:
    """Any duration that a stranger may write; `ToTimedelta` overflows on large ones."""
    return duration.seconds + duration.nanos / 1e9


def _forget(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _next(iterator: AsyncIterator[Answer]) -> Answer | None:
    try:
        return await iterator.__anext__()
    except StopAsyncIteration:
        return None
