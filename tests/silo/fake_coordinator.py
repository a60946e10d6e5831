"""A coordinator that does what a test tells it, over real gRPC on 127.0.0.1 (without TLS), and a compute that does not
train: for the tests of the silo's link and agent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio
import numpy as np

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import ModelNotShared, SemisiloError, TaskClosed, Unreachable
from semisilo.common.measures.site_evaluation import ClassResult
from semisilo.common.methods.contract import Meaning, ModelSettings, PayloadRef, TaskSpec, TensorSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import ELEMENT_TYPES
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.process.compute import ComputeAborted, OnProgress
from semisilo.common.process.messages import Request, as_json
from semisilo.common.rpc.convert import task_to_proto
from semisilo.common.rpc.grpc_errors import abort_with
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import round_service_pb2_grpc as pb_grpc
from semisilo.common.wire import tensors_pb2
from semisilo.silo.compute.messages import (
    Evaluated,
    EvaluatedFile,
    EvaluateFile,
    EvaluateReceived,
    Survey,
    Surveyed,
    Train,
    Trained,
)

__all__ = ["HOLD_SECONDS", "FakeCompute", "FakeCoordinator", "make_task", "random_bytes", "serving"]

HOLD_SECONDS = 0.05
"""How long a poll is held at most, while there is no task."""


def random_bytes(size: int, *, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def make_task(round: int = 1, *, payloads: tuple[PayloadRef, ...] = (), last_folded_round: int = 0,
              **changes: Any) -> TaskSpec:
    values: dict[str, Any] = {
        "task_id": f"first/{round}/train/a", "study": "first", "round": round, "rounds": 3, "phase": "train",
        "silo": "a", "method": "semifl", "settings": to_dict(SemiFLSettings()),
        "model": ModelSettings(classes=("x", "y")), "image": ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
        "augmentation": AugmentationSettings(), "numerics": Numerics(), "payloads": payloads,
        "last_folded_round": last_folded_round, "seed": 1}
    return TaskSpec(**{**values, **changes})


@dataclass
class FakeCoordinator(pb_grpc.RoundServiceServicer):
    """What it was asked is recorded; what it answers may be changed at any time."""

    tasks: list[TaskSpec] = field(default_factory=list)
    """Open tasks; the first is given until it is answered."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Payloads by digest."""
    spool: dict[str, bytearray] = field(default_factory=dict)
    accepted: dict[str, bytes] = field(default_factory=dict)
    """Complete updates by update_id."""
    standby: pb.Standby = field(default_factory=lambda: pb.Standby(reason=pb.Standby.REASON_NOT_SAMPLED, study="first",
                                                                  round=1, round_count=3))
    after: pb.Standby | None = None
    """Instead of `standby` once all tasks are answered."""
    hold_polls: bool = True
    heeds_away: bool = True
    """Whether a silo that says that it is away gets no task; an older coordinator gives it one all the same."""
    chunk_bytes: int = 65_536
    fault: Callable[[str, Any], SemisiloError | None] = lambda rpc, request: None
    """Asked before every RPC, and as "SubmitUpdate chunk" after every chunk of an upload; what it returns is raised."""
    alter: Callable[[bytes, int], bytes] = lambda data, attempt: data
    """Changes a payload before it is served."""
    hang_downloads: int = 0
    """So many downloads stop after their first chunk and never go on."""
    abort_reason: str = ""
    refuse_reason: str = ""
    model: bytes = b""
    """That every study hands over; none when empty."""
    described: list[str] = field(default_factory=list)
    """Studies whose model was asked for."""
    alter_task: Callable[[pb.Task], None] = lambda task: None
    """Changes a task's message before it is given, to what no coordinator of ours would make."""
    warning: str = ""
    """Beside every answer to a call for a task."""
    hellos: list[pb.AwaitTaskRequest] = field(default_factory=list)
    audit_heads: list[pb.AuditHead] = field(default_factory=list)
    """Each goes along with one task."""
    downloads: list[tuple[str, int]] = field(default_factory=list)
    """(digest, offset)."""
    begins: list[pb.BeginUpdateRequest] = field(default_factory=list)
    uploads: list[tuple[str, int]] = field(default_factory=list)
    """(update_id, offset of the first chunk)."""
    reports: list[pb.ReportProgressRequest] = field(default_factory=list)
    slot: asyncio.Event | None = None
    """An upload waits for it before it is let in; None for none."""
    objection: Callable[[str], SemisiloError | None] = lambda update_id: None
    """Asked when an upload is complete."""

    def add_file(self, data: bytes, *, groups: tuple[str, ...] = ("model",), tensors: str = "",
                 reference: str = "") -> PayloadRef:
        digest = hashlib.sha256(data).hexdigest()
        self.files[digest] = data
        return PayloadRef(digest, len(data), groups, tensors, reference)

    def outcomes(self) -> list[str]:
        return [begin.WhichOneof("outcome") for begin in self.begins]

    async def AwaitTask(self, request: pb.AwaitTaskRequest, context: Any) -> pb.AwaitTaskResponse:
        await self._check("AwaitTask", request, context)
        self.hellos.append(request)
        if request.HasField("away") and self.heeds_away:
            await asyncio.sleep(min(HOLD_SECONDS, request.poll_timeout.ToTimedelta().total_seconds()))
            return pb.AwaitTaskResponse(warning=self.warning, standby=self.standby)
        if self.tasks:
            return self._task()
        answer = self.standby if self.after is None else self.after
        if self.hold_polls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(HOLD_SECONDS, request.poll_timeout.ToTimedelta().total_seconds())):
                    while not self.tasks:
                        await asyncio.sleep(0.01)
            if self.tasks:
                return self._task()
        return pb.AwaitTaskResponse(warning=self.warning, standby=answer)

    def _task(self) -> pb.AwaitTaskResponse:
        head = self.audit_heads.pop(0) if self.audit_heads else None
        task = task_to_proto(self.tasks[0], report_interval_seconds=0.2)
        self.alter_task(task)
        return pb.AwaitTaskResponse(warning=self.warning, audit_head=head, task=task)

    async def DownloadPayload(self, request: pb.DownloadPayloadRequest,
                              context: Any) -> AsyncIterator[pb.DownloadPayloadResponse]:
        await self._check("DownloadPayload", request, context)
        digest = request.digest.hex()
        data = self.alter(self.files[digest], len(self.downloads))
        self.downloads.append((digest, request.offset))
        for offset in range(request.offset, len(data), self.chunk_bytes):
            piece = data[offset:offset + self.chunk_bytes]
            chunk = tensors_pb2.Chunk(offset=offset, crc32=zlib.crc32(piece), data=piece)
            yield pb.DownloadPayloadResponse(chunk=chunk)
            if self.hang_downloads:
                self.hang_downloads -= 1
                await asyncio.sleep(60)

    async def DescribeModel(self, request: pb.DescribeModelRequest, context: Any) -> pb.DescribeModelResponse:
        await self._check("DescribeModel", request, context)
        self.described.append(request.study)
        if not self.model:
            await abort_with(context, ModelNotShared("The study shares no model."))
        return pb.DescribeModelResponse(digest=hashlib.sha256(self.model).digest(), size_bytes=len(self.model), round=3)

    async def DownloadModel(self, request: pb.DownloadModelRequest,
                            context: Any) -> AsyncIterator[pb.DownloadModelResponse]:
        await self._check("DownloadModel", request, context)
        self.downloads.append((request.digest.hex(), request.offset))
        for offset in range(request.offset, len(self.model), self.chunk_bytes):
            piece = self.model[offset:offset + self.chunk_bytes]
            yield pb.DownloadModelResponse(chunk=tensors_pb2.Chunk(offset=offset, crc32=zlib.crc32(piece), data=piece))

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Any) -> pb.ReportProgressResponse:
        await self._check("ReportProgress", request, context)
        self.reports.append(request)
        return pb.ReportProgressResponse(abort=bool(self.abort_reason), reason=self.abort_reason)

    async def BeginUpdate(self, request: pb.BeginUpdateRequest, context: Any) -> pb.BeginUpdateResponse:
        await self._check("BeginUpdate", request, context)
        self.begins.append(request)
        if self.refuse_reason:
            self._close(request.task_id)
            return pb.BeginUpdateResponse(state=pb.BeginUpdateResponse.STATE_REFUSED, reason=self.refuse_reason)
        if request.update_id in self.accepted:
            return pb.BeginUpdateResponse(state=pb.BeginUpdateResponse.STATE_HAVE)
        if request.WhichOneof("outcome") != "update":
            self._close(request.task_id)
            return pb.BeginUpdateResponse(state=pb.BeginUpdateResponse.STATE_HAVE)
        have = self.spool.setdefault(request.update_id, bytearray())
        return pb.BeginUpdateResponse(state=pb.BeginUpdateResponse.STATE_SEND, resume_offset=len(have))

    async def SubmitUpdate(self, requests: AsyncIterator[pb.SubmitUpdateRequest],
                           context: Any) -> pb.SubmitUpdateResponse:
        update_id = ""
        async for message in requests:
            if not update_id:
                update_id = message.update_id
                await self._check("SubmitUpdate", message, context)
                if self.slot is not None:
                    await self.slot.wait()
                await context.send_initial_metadata(())
                self.uploads.append((update_id, -1))
            if message.HasField("chunk"):
                if self.uploads[-1] == (update_id, -1):
                    self.uploads[-1] = (update_id, message.chunk.offset)
                have = self.spool[update_id]
                assert message.chunk.offset == len(have)
                assert message.chunk.crc32 == zlib.crc32(message.chunk.data)
                have += message.chunk.data
                await self._check("SubmitUpdate chunk", message, context)
        declared = next(begin for begin in reversed(self.begins) if begin.update_id == update_id)
        data = bytes(self.spool[update_id])
        if len(data) < declared.update.payload.size_bytes:  # a cut looks like the end of the stream here
            await abort_with(context, Unreachable("The stream broke off."))
        objection = self.objection(update_id)
        if objection is not None:
            await abort_with(context, objection)
        assert hashlib.sha256(data).digest() == declared.update.payload.digest
        self.accepted[update_id] = data
        self._close(declared.task_id)
        return pb.SubmitUpdateResponse(update_id=update_id, size_bytes=len(data))

    def _close(self, task_id: str) -> None:
        self.tasks = [task for task in self.tasks if task.task_id != task_id]

    async def _check(self, rpc: str, request: Any, context: Any) -> None:
        error = self.fault(rpc, request)
        if error is not None:
            if isinstance(error, TaskClosed) and request.DESCRIPTOR.fields_by_name.get("task_id"):
                self._close(request.task_id)
            await abort_with(context, error)


@contextlib.asynccontextmanager
async def serving(coordinator: FakeCoordinator, *, port: int = 0) -> AsyncIterator[int]:
    """Serves on a port, until the end of the block; then every connection is cut."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 8 * 2**20)])
    pb_grpc.add_RoundServiceServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


T = TypeVar("T")


@dataclass
class FakeCompute:
    """`survey` and `train` of semisilo.silo.compute.operations, without images: the update follows from the task's
    identifier."""

    update_bytes: int = 40_000
    abstention: str = ""
    metrics: dict[str, float] = field(default_factory=lambda: {"label_ratio": 0.5})
    errors: list[SemisiloError] = field(default_factory=list)
    """Raised by the next trainings, one each."""
    survey_error: SemisiloError | None = None
    survey_steps: int = 0
    survey_test: int = 0
    surveyed: list[Survey] = field(default_factory=list)
    hang: bool = False
    """Training never ends by itself."""
    group: str = "model"
    trained: list[Train] = field(default_factory=list)
    evaluation: Evaluated = field(default_factory=lambda: Evaluated(classes=(
        ClassResult(images=30, correct=20, auroc=0.8), ClassResult(images=10, correct=9, auroc=0.8))))
    evaluation_errors: list[SemisiloError] = field(default_factory=list)
    """Raised by the next evaluations, one each."""
    evaluation_hangs: bool = False
    """An evaluation ends only when it is told to stop."""
    evaluated: list[EvaluateReceived] = field(default_factory=list)
    evaluated_files: list[bytes] = field(default_factory=list)
    """What models were that a study has handed over."""
    aborted: int = 0
    _stop: asyncio.Event | None = None

    async def call(self, request: Request[T], *, on_progress: OnProgress | None = None) -> T:
        answer = self._surveyed(request) if isinstance(request, Survey) else \
            await self._evaluated(request) if isinstance(request, EvaluateReceived) else \
            self._evaluated_file(request) if isinstance(request, EvaluateFile) else \
            await self._trained(request, on_progress)
        arrived = from_dict(type(request).answer_type(), as_json(answer))
        return arrived

    def _surveyed(self, request: Survey) -> Surveyed:
        if self.survey_error is not None:
            raise self.survey_error
        self.surveyed.append(request)
        return Surveyed(labelled=4, unlabelled=475, steps=self.survey_steps, test=self.survey_test)

    async def _evaluated(self, request: EvaluateReceived) -> Evaluated:
        self.evaluated.append(request)
        for digest, path in request.payloads.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        if self.evaluation_errors:
            raise self.evaluation_errors.pop(0)
        while self.evaluation_hangs:
            if request.stop_file.exists():
                return Evaluated(classes=(), why_not="stopped")
            await asyncio.sleep(0.01)
        return self.evaluation

    def _evaluated_file(self, request: EvaluateFile) -> EvaluatedFile:
        self.evaluated_files.append(request.path.read_bytes())
        return EvaluatedFile(classes=self.evaluation.classes, class_names=("x", "y"))

    async def _trained(self, request: object, on_progress: OnProgress | None) -> Trained:
        assert isinstance(request, Train)
        request = from_dict(Train, as_json(request))
        self.trained.append(request)
        for digest, path in request.payloads.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        self._keep(request)
        if on_progress is not None:
            on_progress(0.5, "epoch 1 of 2")
        if self.errors:
            raise self.errors.pop(0)
        if self.hang:
            self._stop = asyncio.Event()
            await self._stop.wait()
            raise ComputeAborted("aborted")
        if self.abstention:
            return Trained(payload=None, abstention=self.abstention, metrics=self.metrics, memory=None, residuals=None,
                           seconds=1.5)
        store = PayloadStore(request.outgoing_folder)
        seed = zlib.crc32(request.task.task_id.encode())
        values = np.random.default_rng(seed).standard_normal(self.update_bytes // 4).astype("<f4")
        bits = values.view(ELEMENT_TYPES["float32"].bits)
        reference = write_payload(store, {self.group: EncodedInput(
            [TensorInput(TensorSpec("w", values.shape, "float32"), lambda: bits)],
            meaning=Meaning.DIFFERENCE, base="ab" * 32)})
        before = None if request.memory is None else str(request.memory)
        content = canonical_json({"after": request.task.task_id, "before": before}).encode()
        memory = request.memory_folder / f"{hashlib.sha256(content).hexdigest()}.safetensors"
        memory.write_bytes(content)
        return Trained(payload=reference, num_examples=17, metrics=self.metrics, memory=memory, residuals=None,
                       seconds=1.5)

    def _keep(self, request: Train) -> None:
        """Keeps the tensor groups that came, as `semisilo.silo.compute.received` does; these payloads are not looked
        into."""
        cache = TensorCache(PayloadStore(request.cache_folder))
        for payload in request.task.payloads:
            if payload.tensors and payload.digest in request.payloads:
                cache.put(payload.tensors, request.payloads[payload.digest])

    async def abort(self) -> None:
        self.aborted += 1
        if self._stop is not None:
            self._stop.set()

    async def close(self) -> None:
        await self.abort()
