"""The gRPC servicer of RoundService: messages to dataclasses and back, who calls, errors to status, bytes to the meter.

Every RPC starts by looking at the caller's certificate, because gRPC keeps serving a connection whose certificate has
expired or was revoked after the handshake. An RPC in flight is ended when its caller is revoked
(`semisilo.coordinator.rpc.call`). The messages of the two streams pass gRPC as bytes (`semisilo.common.rpc.chunks`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from semisilo.common import __version__
from semisilo.common.audit.head import SignedHead
from semisilo.common.config import canonical_json, to_dict
from semisilo.common.errors import BadPayload, SemisiloError, TaskClosed, Unreachable
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.capabilities import CAPABILITIES
from semisilo.common.methods.spec import MAX_COUNT
from semisilo.common.payload.manifest import MAX_GROUPS, parse_manifest
from semisilo.common.rpc.chunks import (
    CHUNK_BYTES,
    DOWNLOAD_FIELD,
    MAX_CHUNK_BYTES,
    SUBMIT_FIELD,
    ChunkSums,
    Piece,
    check_piece,
    pack_piece,
    receive_into,
    stream_pieces,
    unpack_piece,
)
from semisilo.common.rpc.convert import (
    check_metrics,
    dp_to_proto,
    evaluation_from_proto,
    head_to_proto,
    image_to_proto,
    model_to_proto,
    reference_from_proto,
    task_to_proto,
)
from semisilo.common.rpc.grpc_errors import CHECK_SECONDS_KEY, answering_errors
from semisilo.common.secure_aggregation.keys import check_identity
from semisilo.common.storage.store import PartialFile
from semisilo.common.text.log_context import bind, call_in, log_context
from semisilo.common.text.logs import log_call, printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.ledger.records import DeclaredUpdate
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.shared_model import SharedModels
from semisilo.coordinator.rpc.call import Call, CallWatch
from semisilo.coordinator.rpc.link_rates import LinkRates
from semisilo.coordinator.rpc.metering import RoundMeter
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.coordinator.rpc.stranger_calls import address_of
from semisilo.coordinator.rpc.transfer_slots import TransferSlot, TransferSlots
from semisilo.coordinator.studies.describe import StudyDescription
from semisilo.coordinator.tasks.open_tasks import BeginAnswer
from semisilo.coordinator.tasks.task_service import Hello, TaskService
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration

__all__ = ["RoundServicer", "description_to_proto"]

_LOG = logging.getLogger("semisilo.coordinator")
_POLL_SECONDS = 25.0
"""A silo that names no time waits so long for a task, as long as our silos do (`silo/agent/agent.py`)."""
_MAX_POLL_SECONDS = 60.0
"""Bounds what a silo may ask for: so long its call is held, and so long it counts as connected."""
_REPORT_SECONDS = 3.0
"""How often silos are to tell how far they are: the terminal and the page follow the work, and the answer to a report
is how a silo hears that its task is over. Three reports may be lost before it looks away (`PRESENT_SECONDS`)."""
_FEW_SILOS = 20
_REPORT_SECONDS_PER_SILO = 0.01
"""Of more silos than a few more seldom, and not whenever a stage begins (`silo/agent/watch.py`): reports would be a
third of all calls of a round."""
_LONGEST_REPORT_SECONDS = 7.0
"""One report may still be lost before a silo looks away."""
_UPLOAD_IDLE_SECONDS = 120.0
"""Twice the minute after which a silo itself cuts a transfer and goes on with it (`LinkSettings.stall_seconds`): the
silo's own end comes first, and a silo that has vanished gives its slot to another one. In that time a chunk of 512 KiB
must arrive, which passes a line of 50 kbit/s in 84 s."""
_SLOW_BYTES_PER_SECOND = 32 * 1024
"""Who was slower over the idle time gives its place up when another silo waits for one, and goes on with what it has
sent once a place is free again: slow silos, honest or not, take turns, and hold up nobody for longer."""
_CALLED_SECONDS = 10.0
"""A silo that does not take so long the word that it may send its update is cut off, or takes nothing on purpose."""
_MAX_PROCESS_BYTES = 32
_MAX_EVALUATIONS = 8
_MAX_CAPABILITIES = 64
"""Of one call. A silo evaluates a model of each round, and calls several times in one."""
_IDENTITIES = 4096
"""Of which the proof is not checked again: every silo shows its own whenever it asks for a task."""
_QUICK_DOWNLOADS = 2
"""Downloads to quick lines that are served at the same time: eight at once keep two cores busier than two after two.
Slow lines need no slot."""
_QUICK_UPLOADS = 2
"""The same for uploads."""
_DOWNLOADS_IN_FLIGHT_BYTES = 16 * 2**20
"""Chunks of downloads that are being sent, all together; every download has one."""
_SMALLEST_CHUNK_BYTES = 64 * 1024
"""With smaller ones the checksum, the message and the wakes of both ends would weigh against the bytes. It is reached
at 256 downloads."""

Answer = TypeVar("Answer")
_Context = grpc.aio.ServicerContext[Any, Any]
_AWAY_SOMEHOW = "away by its own policy"
_AWAY = {pb.Away.REASON_OUTSIDE_HOURS: "outside working hours", pb.Away.REASON_DAILY_BUDGET: "daily budget used up",
         pb.Away.REASON_AWAITING_APPROVAL: "the study awaits approval there"}
_REASONS = {
    StandbyReason.WAITING_FOR_SILOS: pb.Standby.REASON_WAITING_FOR_SILOS,
    StandbyReason.COORDINATOR_WORKING: pb.Standby.REASON_COORDINATOR_WORKING,
    StandbyReason.NOT_SAMPLED: pb.Standby.REASON_NOT_SAMPLED,
    StandbyReason.PAUSED: pb.Standby.REASON_PAUSED,
    StandbyReason.NO_STUDY: pb.Standby.REASON_NO_STUDY,
    StandbyReason.SET_ASIDE: pb.Standby.REASON_SET_ASIDE,
}
"""Of what silos hear: `StandbyReason.for_silo` has made COLLECTING something that the wire knows."""
_STATES = {"send": pb.BeginUpdateResponse.STATE_SEND, "have": pb.BeginUpdateResponse.STATE_HAVE,
           "refused": pb.BeginUpdateResponse.STATE_REFUSED}
_STAGES = {pb.ReportProgressRequest.STAGE_DOWNLOADING: "downloading",
           pb.ReportProgressRequest.STAGE_TRAINING: "training",
           pb.ReportProgressRequest.STAGE_UPLOADING: "uploading"}


class RoundServicer:
    """Serves silos over mutually authenticated TLS. `add_to` puts it on a server."""

    def __init__(self, *, task_service: TaskService, roster: LedgerRoster, runtime: RuntimeState, meter: RoundMeter,
                 models: SharedModels, cards: StudyCards, federation: str, max_uploads: int,
                 clock: Callable[[], float] = time.time,
                 upload_idle_seconds: float = _UPLOAD_IDLE_SECONDS, rates: LinkRates | None = None,
                 audit_head: Callable[[], SignedHead | None] = lambda: None) -> None:
        """
        Args:
            models: which silo may fetch which.
            cards: of studies, and who has signed them.
            max_uploads: updates that are received at the same time, at most one of each silo.
            upload_idle_seconds: an upload in which nothing arrives for so long gives its slot to another silo.
            rates: where the speed of downloads is noted.
            audit_head: the end of the audit trail, which goes along with every task; None where there is none yet.
        """
        self._task_service = task_service
        self._models = models
        self._cards = cards
        self._watch = CallWatch(roster, clock=clock)
        self._runtime = runtime
        self._meter = meter
        self._federation = federation
        self._uploads = asyncio.Semaphore(max_uploads)
        self._clock = clock
        self._upload_idle_seconds = upload_idle_seconds
        self._uploading: dict[str, Call] = {}
        self._one_place: dict[str, asyncio.Lock] = {}
        """Silo -> held by the one upload of it that waits for a place or has one. No more than were ever invited."""
        self._waiting = 0
        """Uploads that wait for a place."""
        self._audit_head = audit_head
        self._rates = LinkRates() if rates is None else rates
        self._sums = ChunkSums()
        self._downloads = 0
        self._download_slots = TransferSlots(_QUICK_DOWNLOADS)
        self._upload_slots = TransferSlots(_QUICK_UPLOADS)

    def add_to(self, server: grpc.aio.Server, calls: SiloCalls) -> None:
        """Registers the RPCs; to be called before the server starts."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            pb.DESCRIPTOR.services_by_name["RoundService"].full_name, {
                "AwaitTask": calls.unary(self.AwaitTask, pb.AwaitTaskRequest, poll=True),
                "ReportProgress": calls.unary(self.ReportProgress, pb.ReportProgressRequest),
                "BeginUpdate": calls.unary(self.BeginUpdate, pb.BeginUpdateRequest),
                "DescribeStudy": calls.unary(self.DescribeStudy, pb.DescribeStudyRequest),
                "DescribeModel": calls.unary(self.DescribeModel, pb.DescribeModelRequest),
                "DescribeStudyCard": calls.unary(self.DescribeStudyCard, pb.DescribeStudyCardRequest),
                "SignStudyCard": calls.unary(self.SignStudyCard, pb.SignStudyCardRequest),
                "DownloadModel": calls.download(self.DownloadModel, pb.DownloadModelRequest),
                "DownloadPayload": calls.download(self.DownloadPayload, pb.DownloadPayloadRequest),
                "SubmitUpdate": calls.upload(self.SubmitUpdate),
            }),))

    # RPCs -------------------------------------------------------------------------------------------------------------

    async def AwaitTask(self, request: pb.AwaitTaskRequest, context: _Context) -> pb.AwaitTaskResponse:
        """Long poll for the next task."""
        async def work(silo: str) -> pb.AwaitTaskResponse:
            if min(request.labelled_count, request.unlabelled_count, request.memory_round) < 0:
                raise BadPayload("Counts must be at least 0.")
            if max(request.labelled_count, request.unlabelled_count) > MAX_COUNT:
                raise BadPayload(f"Counts of images must be at most {MAX_COUNT}.")
            if len(request.methods) > 256 or len(request.held_digests) > 256:
                raise BadPayload("At most 256 methods and digests.")
            if len(request.capabilities) > _MAX_CAPABILITIES:
                raise BadPayload(f"At most {_MAX_CAPABILITIES} capabilities.")
            if len(request.process) > _MAX_PROCESS_BYTES:
                raise BadPayload(f"At most {_MAX_PROCESS_BYTES} bytes name a process.")
            if request.secure_identity:
                _check_identity(request.secure_identity, request.secure_identity_proof, federation=self._federation,
                                silo=silo)
            if len(request.evaluations) > _MAX_EVALUATIONS:
                raise BadPayload(f"At most {_MAX_EVALUATIONS} evaluations.")
            may_hear_of = self._task_service.evaluations.may_hear_of
            hello = Hello(version=printable(request.version, limit=64),
                          methods=tuple(printable(name, limit=64) for name in request.methods),
                          labelled_count=request.labelled_count, unlabelled_count=request.unlabelled_count,
                          memory_study=printable(request.memory_study, limit=128), memory_round=request.memory_round,
                          held=frozenset(digest.hex() for digest in request.held_digests if len(digest) == 32),
                          away_reason=_AWAY.get(request.away.reason, _AWAY_SOMEHOW) if request.HasField("away") else "",
                          away_until_unix=_unix(request.away.until_time),
                          awaits_approval=request.away.reason == pb.Away.REASON_AWAITING_APPROVAL,
                          evaluations=tuple(
                              evaluation_from_proto(each) for each in request.evaluations
                              if may_hear_of(silo, each.study, num_classes=len(each.classes))),
                          process=request.process, address=address_of(context.peer()),
                          identity=request.secure_identity, masked_round=request.masked_round,
                          masked_study=printable(request.masked_study, limit=128),
                          masked_phase=printable(request.masked_phase, limit=128),
                          capabilities=frozenset(request.capabilities) & CAPABILITIES)
            wanted = _seconds(request.poll_timeout) or _POLL_SECONDS
            answer = await self._task_service.await_task(silo, hello,
                                                         timeout_seconds=min(max(wanted, 0.0), _MAX_POLL_SECONDS))
            warning = self._task_service.warnings.text(silo)
            if isinstance(answer, TaskSpec):
                head = self._audit_head()
                more = max(0, len(self._runtime.held) - _FEW_SILOS)
                interval = min(_LONGEST_REPORT_SECONDS, _REPORT_SECONDS + more * _REPORT_SECONDS_PER_SILO)
                return pb.AwaitTaskResponse(warning=warning, audit_head=None if head is None else head_to_proto(head),
                                            task=task_to_proto(answer, report_interval_seconds=interval))
            return pb.AwaitTaskResponse(warning=warning, standby=pb.Standby(
                reason=_REASONS[answer.reason], study=answer.study, round=answer.round, round_count=answer.rounds,
                text=answer.text))
        return await self._unary("AwaitTask", request, context, work)

    async def ReportProgress(self, request: pb.ReportProgressRequest,
                             context: _Context) -> pb.ReportProgressResponse:
        """Takes note; may ask to abort."""
        async def work(silo: str) -> pb.ReportProgressResponse:
            reason = self._task_service.report(silo, request.task_id, stage=_STAGES.get(request.stage, "working"),
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

    async def DescribeStudy(self, request: pb.DescribeStudyRequest,
                            context: _Context) -> pb.DescribeStudyResponse:
        """Tells what the current study asks of a silo; changes nothing."""
        async def work(silo: str) -> pb.DescribeStudyResponse:
            found = self._task_service.describe_study(silo)
            return description_to_proto(found, now_unix=self._clock())
        return await self._unary("DescribeStudy", request, context, work)

    async def DescribeModel(self, request: pb.DescribeModelRequest,
                            context: _Context) -> pb.DescribeModelResponse:
        """Tells what model a study shares with the caller; changes nothing."""
        async def work(silo: str) -> pb.DescribeModelResponse:
            found = await self._models.describe(silo, request.study)
            return pb.DescribeModelResponse(
                digest=bytes.fromhex(found.digest), size_bytes=found.size_bytes, round=found.round,
                labels_alone=found.labels_alone, measure=found.measure, conclusion=found.conclusion,
                model_digest=bytes.fromhex(found.model_digest))
        return await self._unary("DescribeModel", request, context, work)

    async def DescribeStudyCard(self, request: pb.DescribeStudyCardRequest,
                                context: _Context) -> pb.DescribeStudyCardResponse:
        """Tells what a study asks of every silo; changes nothing."""
        async def work(silo: str) -> pb.DescribeStudyCardResponse:
            return pb.DescribeStudyCardResponse(card_json=self._cards.text(
                request.study, request.digest.hex()))
        return await self._unary("DescribeStudyCard", request, context, work)

    async def SignStudyCard(self, request: pb.SignStudyCardRequest, context: _Context) -> pb.SignStudyCardResponse:
        """Takes a silo's signature under a card."""
        async def work(silo: str) -> pb.SignStudyCardResponse:
            self._cards.sign(silo, request.study, request.digest.hex(), request.signature)
            return pb.SignStudyCardResponse()
        return await self._unary("SignStudyCard", request, context, work)

    async def DownloadModel(self, request: pb.DownloadModelRequest, context: _Context) -> None:
        """Streams a model from the offset that the silo has on disk."""
        with self._call("DownloadModel", context) as call:
            async with answering_errors(context):
                silo = call.identify()
                self._meter.message("DownloadModel", silo, "up", request.ByteSize())
                found = await self._models.path_for(silo, request.study, request.digest.hex())
                await self._send_file("DownloadModel", silo, found.path, request.offset, call, context)

    async def DownloadPayload(self, request: pb.DownloadPayloadRequest,
                              context: _Context) -> None:
        """Streams a payload from the offset that the silo has on disk."""
        digest = request.digest.hex()
        with self._call("DownloadPayload", context) as call:
            async with answering_errors(context):
                silo = call.identify()
                self._meter.message("DownloadPayload", silo, "up", request.ByteSize())
                path = self._task_service.payload_for(silo, request.task_id, digest)
                await self._send_file("DownloadPayload", silo, path, request.offset, call, context,
                                      account=lambda count: self._task_service.downloaded(
                                          silo, request.task_id, digest, count, offset=request.offset))

    async def SubmitUpdate(self, request_iterator: AsyncIterator[bytes],
                           context: _Context) -> pb.SubmitUpdateResponse:
        """Receives the bytes of a declared update into the spool; answers after fsync, checks and ledger commit."""
        with self._call("SubmitUpdate", context) as call:
            async with answering_errors(context):
                silo = call.identify()
                with self._only_upload_of(silo, call):
                    response = await self._receive(silo, request_iterator, call, context)
                self._meter.message("SubmitUpdate", silo, "down", response.ByteSize())
                return response
        raise AssertionError("an error has ended the RPC")

    # Parts ------------------------------------------------------------------------------------------------------------

    async def _send_file(self, rpc: str, silo: str, path: Path, offset: int, call: Call, context: _Context, *,
                         account: Callable[[int], None] = lambda count: None) -> None:
        """Streams a file from an offset on.

        Args:
            account: told how many bytes of it went out, complete or not, where any did.
        """
        sent, start = 0, 0.0
        self._downloads += 1
        pieces = stream_pieces(path, offset=offset, sums=self._sums, chunk_bytes=self._chunk_bytes())
        try:
            with call.watched():
                async with self._download_slots.slot(silo) as slot:
                    start = time.monotonic()
                    async for piece in pieces:
                        response = pack_piece(DOWNLOAD_FIELD, piece)
                        try:
                            await context.write(response)
                        except grpc.aio.InternalError:
                            # The connection is gone; the silo comes back for the rest. Cancelled, the RPC ends here
                            # without gRPC's own stack trace in the operator's log.
                            raise asyncio.CancelledError from None
                        sent += len(piece.data)
                        slot.moved_bytes = sent
                        self._meter.message(rpc, silo, "down", len(response))
        finally:
            self._downloads -= 1
            await pieces.aclose()
            if sent:
                self._rates.measured(silo, sent_bytes=sent, seconds=time.monotonic() - start,
                                     delivered_per_second=self._meter.delivery_rate(context.peer()))
                account(sent)

    async def _begin(self, silo: str, request: pb.BeginUpdateRequest) -> BeginAnswer:
        outcome = request.WhichOneof("outcome")
        if outcome == "abstention":
            return self._task_service.abstain(silo, request.task_id, request.abstention.reason,
                                              check_metrics(request.abstention.metrics))
        if outcome == "refusal":
            refusal = request.refusal
            return self._task_service.refuse(silo, request.task_id, refusal.code, refusal.text,
                                             against=refusal.against)
        if outcome == "secure":
            return self._task_service.answer_step(silo, request.task_id, request.secure)
        if outcome != "update":
            raise BadPayload("BeginUpdate names no outcome.")
        update = request.update
        reference = reference_from_proto(update.payload)
        if not reference.digest or reference.reference:
            raise BadPayload("An update is a whole payload that stands alone.")
        # To parse a manifest of many tensors takes the better part of a second, in which nobody else is served: only
        # one that is as long as the task's own is.
        groups = update.manifest.groups
        asked = self._task_service.updates.asked_for(silo, request.task_id, request.update_id)
        wanted = asked.wants_manifest(num_groups=len(groups),
                                      num_tensors=sum(len(group.tensors) for group in groups[:MAX_GROUPS]))
        return await self._task_service.updates.begin(silo, request.task_id, request.update_id, UpdateDeclaration(
            digest=reference.digest, size_bytes=reference.size_bytes,
            groups=parse_manifest(update.manifest) if wanted else (),
            example_count=update.example_count, metrics=check_metrics(update.metrics),
            training_seconds=_seconds(update.training_duration)), asked=asked)

    async def _receive(self, silo: str, requests: AsyncIterator[bytes], call: Call,
                       context: _Context) -> pb.SubmitUpdateResponse:
        with call.watched(idle_seconds=self._upload_idle_seconds):
            first = await anext(requests, None)
        if first is None:
            raise BadPayload("The stream of the update is empty.")
        self._meter.message("SubmitUpdate", silo, "up", len(first))
        update_id, piece = _submitted(first)
        # Before it waits, and while a refusal can still be the first answer.
        self._task_service.updates.awaited(silo, update_id)
        async with AsyncExitStack() as slots:
            with call.watched():
                # The one that this call takes the place of may still be at the disk.
                await slots.enter_async_context(self._one_place.setdefault(silo, asyncio.Lock()))
                self._waiting += 1
                try:
                    await slots.enter_async_context(self._uploads)
                finally:
                    self._waiting -= 1
                slot = await slots.enter_async_context(self._upload_slots.slot(silo))
            await _call_in(call, context, slots)
            return await self._take(silo, update_id, piece, requests, call, context, slot, slots)

    async def _take(self, silo: str, update_id: str, piece: Piece | None, requests: AsyncIterator[bytes], call: Call,
                    context: _Context, slot: TransferSlot, slots: AsyncExitStack) -> pb.SubmitUpdateResponse:
        update = self._task_service.updates.awaited(silo, update_id)  # it has waited for its place
        pace = _Pace(slot, self._upload_idle_seconds)

        def keeps_its_place() -> None:
            if not self._task_service.updates.still_wanted(update):
                raise TaskClosed("The phase closed while the update was on its way.")
            if pace.is_slow() and self._waiting:
                raise Unreachable("Other silos wait to send their updates; this one is sent slowly, and goes on after"
                                  " them.", remedy="It is tried again.")

        async def pieces() -> AsyncIterator[Piece]:
            if piece is not None:
                yield piece
            async for message in requests:
                call.moved(len(message))
                slot.moved_bytes += len(message)
                self._meter.message("SubmitUpdate", silo, "up", len(message))
                name, next_piece = _submitted(message)
                if name or next_piece is None:
                    raise BadPayload("Only the first message of the stream names the update; all others bring bytes.")
                yield next_piece

        if self._task_service.updates.is_accepting(update) or self._task_service.updates.has_all(update):
            return await self._accept(silo, update, None, context, slots)
        arriving = pieces()
        with call.watched(idle_seconds=self._upload_idle_seconds, needs=keeps_its_place):
            first = await anext(arriving, None)
            whole = first if first is not None and self._is_whole(update, first) else None
            if whole is not None:
                check_piece(whole, expected_offset=0)
                if await anext(arriving, None) is not None:
                    raise BadPayload("The stream goes on after the declared size.")
        if whole is not None:
            slot.leave()  # the line is free; the memory is not until the bytes are in the spool
            await self._task_service.updates.store(update, whole.data)
            first = whole = None
            return await self._accept(silo, update, None, context, slots)

        async def all_pieces() -> AsyncIterator[Piece]:
            if first is not None:
                yield first
            async for each in arriving:
                yield each

        partial_file, update = await self._task_service.updates.upload(silo, update_id)
        with partial_file:
            with call.watched(idle_seconds=self._upload_idle_seconds, needs=keeps_its_place):
                await receive_into(partial_file, all_pieces(), update.size_bytes)
            return await self._accept(silo, update, partial_file, context, slots)

    def _is_whole(self, update: DeclaredUpdate, piece: Piece) -> bool:
        """Whether a first piece is all of an update: it needs no file that it could be resumed from, and one thread
        writes it and waits for the disk. Most updates are so small where there are many silos."""
        return (piece.offset == 0 and len(piece.data) == update.size_bytes <= MAX_CHUNK_BYTES
                and self._task_service.updates.has_none(update))

    async def _accept(self, silo: str, update: DeclaredUpdate, partial_file: PartialFile | None, context: _Context,
                      slots: AsyncExitStack) -> pb.SubmitUpdateResponse:
        await slots.aclose()  # what is left is the disk's and the compute process's, and holds no memory
        arrived = time.monotonic()
        await self._task_service.updates.accept(silo, update, partial_file)
        # So that the silo can tell the time on the line from ours.
        context.set_trailing_metadata(((CHECK_SECONDS_KEY, f"{time.monotonic() - arrived:.6f}"),))
        return pb.SubmitUpdateResponse(update_id=update.update_id, size_bytes=update.size_bytes)

    def _chunk_bytes(self) -> int:
        """Of a download that begins: smaller ones when there are many, so that memory does not grow with them."""
        return min(CHUNK_BYTES, max(_SMALLEST_CHUNK_BYTES, _DOWNLOADS_IN_FLIGHT_BYTES // self._downloads))

    @contextmanager
    def _only_upload_of(self, silo: str, call: Call) -> Iterator[None]:
        """A silo that comes again has lost its connection: the stream that waits for the lost one ends."""
        if (older := self._uploading.get(silo)) is not None:
            older.supersede()
        self._uploading[silo] = call
        try:
            yield
        finally:
            if self._uploading.get(silo) is call:
                del self._uploading[silo]

    async def _unary(self, rpc: str, request: Any, context: _Context,
                     work: Callable[[str], Coroutine[Any, Any, Answer]]) -> Answer:
        with self._call(rpc, context) as call:
            async with answering_errors(context):
                silo = call.identify()
                self._meter.message(rpc, silo, "up", request.ByteSize())
                with call.watched():
                    response: Any = await work(silo)
                self._meter.message(rpc, silo, "down", response.ByteSize())
                answer: Answer = response
                return answer
        raise AssertionError("an error has ended the RPC")

    @contextmanager
    def _call(self, rpc: str, context: _Context) -> Iterator[Call]:
        """Around an RPC: its account, and its line in the log."""
        if "request_id" not in log_context():  # else whoever has admitted the call has read it
            bind(**call_in(context.invocation_metadata()))
        bind(rpc=rpc)
        call, began = Call(context, federation=self._federation, watch=self._watch, runtime=self._runtime,
                           meter=self._meter), time.monotonic()
        ended = "answered"
        try:
            yield call
        except asyncio.CancelledError:
            ended = "the silo has hung up"
            raise
        except BaseException:
            ended = "refused"
            raise
        finally:
            call.done()
            log_call(rpc, f"{rpc}: {ended}", seconds=time.monotonic() - began)


class _Pace:
    """Whether an upload has been slow for a while."""

    def __init__(self, slot: TransferSlot, seconds: float) -> None:
        """
        Args:
            slot: knows what has moved.
            seconds: over which its speed is taken.
        """
        self._slot = slot
        self._seconds = seconds
        self._since, self._before, self._slow = time.monotonic(), 0, False

    def is_slow(self) -> bool:
        """By the last whole span of so many seconds; to be asked again and again."""
        seconds = time.monotonic() - self._since
        if seconds >= self._seconds:
            self._slow = self._slot.moved_bytes - self._before < _SLOW_BYTES_PER_SECOND * seconds
            self._since, self._before = self._since + seconds, self._slot.moved_bytes
        return self._slow


_check_identity = functools.lru_cache(maxsize=_IDENTITIES)(check_identity)
"""A proof that holds, holds the next time as well; one that does not is looked at anew, and is remembered nowhere."""


async def _call_in(call: Call, context: _Context, slots: AsyncExitStack) -> None:
    """Sends the initial metadata: a silo sends nothing more before it has these, for what waits would only fill gRPC's
    buffers.

    gRPC cannot end a call while it sends them, and they stay here as long as the silo takes nothing. So what is to end
    the call, time included, ends its place at once and the call when they have gone.
    Raises: what `Call.check` raises; Unreachable.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody waits any more
    try:
        with call.watched():
            await asyncio.wait({sending}, timeout=_CALLED_SECONDS)
            if not sending.done():
                raise Unreachable(f"The silo has taken nothing for {_CALLED_SECONDS:.0f} s.",
                                  remedy="It is tried again.")
    except SemisiloError:
        await slots.aclose()
        await asyncio.wait({sending})
        raise
    await sending


def _submitted(message: bytes) -> tuple[str, Piece | None]:
    """(update_id, chunk) of a serialised SubmitUpdateRequest.

    Raises: BadPayload when it is none.
    """
    piece = unpack_piece(SUBMIT_FIELD, message)
    if piece is not None:
        return "", piece
    try:
        request = pb.SubmitUpdateRequest.FromString(message)
    except DecodeError:
        raise BadPayload("A message of the stream cannot be read.") from None
    chunk = request.chunk
    return request.update_id, Piece(chunk.offset, chunk.crc32, chunk.data) if request.HasField("chunk") else None


def _unix(moment: Timestamp) -> float:
    """Any moment that a stranger may write, as Unix seconds."""
    return moment.seconds + moment.nanos / 1e9


def _seconds(duration: Duration) -> float:
    """Any duration that a stranger may write; `ToTimedelta` overflows on large ones."""
    return duration.seconds + duration.nanos / 1e9


def description_to_proto(found: StudyDescription | None, *, now_unix: float) -> pb.DescribeStudyResponse:
    """The message; only version and clock when there is no study."""
    message = pb.DescribeStudyResponse(version=__version__)
    message.coordinator_time.FromMicroseconds(round(now_unix * 1e6))
    if found is None:
        return message
    message.MergeFrom(pb.DescribeStudyResponse(
        study=found.name, state=found.state, round=found.round, round_count=found.rounds, method=found.method,
        settings_json=canonical_json(found.settings), model=model_to_proto(found.model),
        image=None if found.image is None else image_to_proto(found.image),
        uplink=pb.Uplink(**to_dict(found.uplink)), dp=None if found.dp is None else dp_to_proto(found.dp),
        dense_bytes=found.dense_bytes,
        frozen_bytes=found.frozen_bytes, normalisation_image_count=found.normalisation_images,
        typical_update_bytes=found.typical_update_bytes, secure_silo_count=found.secure_silos,
        masked_update_bytes=found.masked_update_bytes,
        masked_share=found.masked_share))
    message.round_timeout.FromMicroseconds(round(found.round_timeout_seconds * 1e6))
    if found.typical_round_seconds is not None:
        message.typical_round_duration.FromMicroseconds(round(found.typical_round_seconds * 1e6))
    for entry in found.own_rounds:
        own = message.own_rounds.add(
            round=entry.number, payload_down_bytes=entry.payload_down, payload_up_bytes=entry.payload_up,
            wire_down_bytes=entry.wire_down, wire_up_bytes=entry.wire_up)
        if entry.training_seconds is not None:
            own.training_duration.FromMicroseconds(round(entry.training_seconds * 1e6))
    return message
