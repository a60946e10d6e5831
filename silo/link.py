"""The silo's end of the wire: every call may be repeated, a cut transfer goes on where it was, nothing waits for ever.

Unary calls have deadlines. Transfers have none, because a large update on a thin line may take hours: they are given up
when no byte has moved for a minute. After a failure the same request is made again, at growing intervals that shrink
back as soon as bytes have advanced. What the coordinator answers on purpose (the task is closed, the payload is not
served) is raised at once, and so is what no repetition can mend (the certificate was revoked).

`asyncio.timeout` is used throughout, never `wait_for`: in Python 3.11 that one swallows a cancellation that comes in
the same turn as the result, and a silo that is told to stop would work on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common.chunks import DOWNLOAD_FIELD, SUBMIT_FIELD, Piece, pack_piece, receive_into, stream_pieces, unpack_piece
from common.errors import (
    BadPayload,
    CertificateExpired,
    CertificateRevoked,
    LayoutMismatch,
    NotPermitted,
    PayloadNotServed,
    SemisiloError,
    TaskClosed,
    UnknownSilo,
    Unreachable,
    UpdateConflict,
    UsageError,
    WrongAuthority,
    WrongBase,
)
from common.exchange import PayloadRef
from common.log_context import REQUEST_ID_KEY, bound, new_request_id
from common.logs import log_call, printable
from common.meter import MessageMeter
from common.status import CHECK_SECONDS_KEY, from_rpc_error
from common.store import PayloadStore
from common.wire import round_service_pb2 as pb
from common.wire import round_service_pb2_grpc as pb_grpc
from silo.ending import Ending
from silo.retry import Backoff, waits

__all__ = ["SMALLEST_MEASURED_BYTES", "Link", "LinkSettings", "Verdict", "is_fatal"]

T = TypeVar("T")
_LOG = logging.getLogger("semisilo.silo")

_FATAL = (CertificateExpired, CertificateRevoked, UnknownSilo, WrongAuthority)
_ANSWERS = (BadPayload, LayoutMismatch, NotPermitted, PayloadNotServed, TaskClosed, UpdateConflict, UsageError,
            WrongBase)
_SERVICE = pb.DESCRIPTOR.services_by_name["RoundService"].full_name
SMALLEST_MEASURED_BYTES = 256 * 1024
"""An upload of less than this says more about round trips than about the line."""
_GARBLED_LIMIT = 2
"""How often a payload that arrives damaged is fetched again, and a transfer that is objected to is sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """Patience of the silo's end."""

    call_seconds: float = 30.0
    """Deadline of a unary call, on top of the time that a long poll may wait."""
    stall_seconds: float = 60.0
    """A transfer in which no byte has moved for so long is cut and gone on with."""
    answer_seconds: float = 300.0
    """Longest wait for a place to upload, and for the answer to a complete upload: the coordinator checks it and writes
    it to disk first."""
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses between attempts."""
    diagnose_after: int = 3
    """Failures in a row after which the silo looks for the cause itself."""
    diagnose_every_seconds: float = 60.0
    """And how often it looks again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the coordinator made of an outcome."""

    accepted: bool
    reason: str = ""
    """Why it was not wanted."""


def is_fatal(error: SemisiloError) -> bool:
    """Whether no repetition can help: a person has to act."""
    return isinstance(error, _FATAL)


class _Again(SemisiloError):
    """An answer of the coordinator's that may differ next time."""

    retry = True


class Link:
    """Calls RoundService. One connection; one caller at a time, apart from `report_progress`."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], *, silo: str,
                 settings: LinkSettings | None = None,
                 on_trouble: Callable[[SemisiloError, int], None] = lambda error, failures: None,
                 on_contact: Callable[[], None] = lambda: None,
                 diagnose: Callable[[], SemisiloError | None] = lambda: None,
                 messages: MessageMeter | None = None) -> None:
        """
        Args:
            open_channel: makes a connection with the silo's current certificate; called again by `reopen`.
            silo: this silo's name; it sets the rhythm of retries.
            on_trouble: told of each failure that is going to be repeated, with the number of failures in a row.
            on_contact: told whenever the coordinator has answered.
            diagnose: finds out why there is no connection; blocks, and runs in a thread.
            messages: where the sizes of messages are added up.
        """
        self._open_channel = open_channel
        self._silo = silo
        self._settings = LinkSettings() if settings is None else settings
        self._on_trouble = on_trouble
        self._on_contact = on_contact
        self._diagnose = diagnose
        self._messages = MessageMeter() if messages is None else messages
        self._diagnosed = float("-inf")
        self._starts = 0
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._upload_rate = 0.0

    async def reopen(self) -> None:
        """Makes the next call on a new connection: after the certificate was renewed."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    @property
    def backoff(self) -> Backoff:
        """Pauses between attempts."""
        return self._settings.backoff

    @property
    def upload_rate(self) -> float:
        """Bytes per second of the last upload in which at least 256 KiB went out, 0.0 when there was none.

        From the first byte until the coordinator's answer, without the time that it says its check took: when the last
        byte has been handed to the transport, megabytes may still lie in buffers on this side of a slow line.
        """
        return self._upload_rate

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection, for the one call that is not RoundService's: renewing the certificate."""
        if self._channel is None:
            self._channel = self._open_channel()
        return self._channel

    async def close(self) -> None:
        """Closes the connection; a running call ends."""
        await self.reopen()

    # Calls ------------------------------------------------------------------------------------------------------------

    async def await_task(self, request: Callable[[], pb.AwaitTaskRequest]) -> pb.AwaitTaskResponse:
        """The next task or the reason why there is none; tries for ever.

        Args:
            request: makes the message anew for every attempt, since it carries the time.
        """
        async def attempt() -> pb.AwaitTaskResponse:
            message = request()
            wait = message.poll_timeout.ToTimedelta().total_seconds()
            answer: pb.AwaitTaskResponse = await self._ask("AwaitTask", message, wait_seconds=wait)
            return answer
        return await self._persist(attempt)

    async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
        """Tells once how far the work is. Raises: Unreachable and the like when it does not get through."""
        try:
            answer: pb.ReportProgressResponse = await self._ask("ReportProgress", request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return answer

    async def declare(self, request: pb.BeginUpdateRequest) -> Verdict:
        """Sends an abstention or a refusal. Raises: what the coordinator objects to it."""
        async def attempt() -> Verdict:
            answer: pb.BeginUpdateResponse = await self._ask("BeginUpdate", request)
            return Verdict(answer.state == pb.BeginUpdateResponse.STATE_HAVE, answer.reason)
        return await self._persist(attempt)

    async def download(self, task_id: str, reference: PayloadRef, store: PayloadStore, *,
                       on_bytes: Callable[[int], None] = lambda count: None) -> Path:
        """Brings a payload into the store and returns its path; goes on from what is on disk.

        Args:
            on_bytes: told how many bytes of the payload are here.
        Raises: TaskClosed or PayloadNotServed when the coordinator no longer serves it; BadPayload when it arrived
            damaged three times.
        """
        digest = reference.digest
        here = 0
        garbled = 0

        async def attempt() -> Path:
            nonlocal here, garbled
            if await asyncio.to_thread(store.has, digest):
                return store.path(digest)
            with await asyncio.to_thread(store.partial, digest, size_bytes=reference.size_bytes) as partial:
                start = partial.committed_bytes

                def arrived() -> None:
                    nonlocal here
                    here = partial.committed_bytes
                    on_bytes(here)

                try:
                    if start < reference.size_bytes:
                        async with asyncio.timeout(self._settings.stall_seconds) as patience, contextlib.aclosing(
                                self._pieces(task_id, digest, start, arrived, patience)) as pieces:
                            await receive_into(partial, pieces, reference.size_bytes)
                    arrived()
                    return await asyncio.to_thread(partial.finish, digest)
                except BadPayload as error:
                    # Raised here, not by the coordinator: `_pieces` leaves its errors as gRPC made them.
                    garbled += 1
                    if garbled > _GARBLED_LIMIT:
                        raise BadPayload(f"A payload arrived damaged {garbled} times: {error.text}") from None
                    raise _Again(f"A payload arrived damaged and is fetched again: {error.text}") from None
                finally:
                    here = partial.committed_bytes
        return await self._persist(attempt, moved=lambda: here)

    async def upload(self, request: pb.BeginUpdateRequest, path: Path, *,
                     on_bytes: Callable[[int], None] = lambda count: None) -> Verdict:
        """Declares an update and sends its bytes from where the coordinator wants them.

        Args:
            request: with an update as its outcome; the same for every repetition.
            path: the payload file.
            on_bytes: told how many bytes have been handed over.
        Raises: what the coordinator objects to the declaration, or three times in a row to the bytes.
        """
        size = path.stat().st_size
        acknowledged = 0
        objections = 0

        async def attempt() -> Verdict:
            nonlocal acknowledged, objections
            answer: pb.BeginUpdateResponse = await self._ask("BeginUpdate", request)
            if answer.state != pb.BeginUpdateResponse.STATE_SEND:
                return Verdict(answer.state == pb.BeginUpdateResponse.STATE_HAVE, answer.reason)
            if not 0 <= answer.resume_offset <= size:
                raise BadPayload(f"The coordinator asks for byte {answer.resume_offset} of an update of {size} bytes.")
            if answer.resume_offset > acknowledged:
                acknowledged, objections = answer.resume_offset, 0
            try:
                await self._send(request.update_id, path, answer.resume_offset, on_bytes)
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
                if not isinstance(error, _ANSWERS):
                    raise
                # Closed meanwhile, or damaged on its way: declaring it again tells which.
                objections += 1
                if objections > _GARBLED_LIMIT:
                    raise error from None
                raise _Again(error.text, remedy=error.remedy) from None
            return Verdict(True)
        return await self._persist(attempt, moved=lambda: acknowledged)

    # Streams ----------------------------------------------------------------------------------------------------------

    async def _pieces(self, task_id: str, digest: str, offset: int, arrived: Callable[[], None],
                      patience: asyncio.Timeout) -> AsyncGenerator[Piece, None]:
        request = pb.DownloadPayloadRequest(task_id=task_id, digest=bytes.fromhex(digest), offset=offset)
        # Messages with chunks pass gRPC as bytes.
        with self._request("DownloadPayload") as metadata:
            call: Any = self.channel.unary_stream(
                f"/{_SERVICE}/DownloadPayload",
                request_serializer=pb.DownloadPayloadRequest.SerializeToString)(request, metadata=metadata)
            self._said("DownloadPayload", request)
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    self._put_off(patience)
                    self._heard_bytes("DownloadPayload", len(message))
                    yield unpack_piece(DOWNLOAD_FIELD, message) or _parsed(message)
                    arrived()
            finally:
                call.cancel()

    async def _send(self, update_id: str, path: Path, offset: int, on_bytes: Callable[[int], None]) -> None:
        with self._request("SubmitUpdate") as metadata:
            await self._send_as(metadata, update_id, path, offset, on_bytes)

    async def _send_as(self, metadata: tuple[tuple[str, str]], update_id: str, path: Path, offset: int,
                       on_bytes: Callable[[int], None]) -> None:
        call: Any = self.channel.stream_unary(
            f"/{_SERVICE}/SubmitUpdate", response_deserializer=pb.SubmitUpdateResponse.FromString)(metadata=metadata)
        ending = Ending(call)
        end, answer_seconds = offset, self._settings.answer_seconds
        try:
            async with asyncio.timeout(answer_seconds):
                await self._write(call, _first_message(update_id), calls=1)
                await call.initial_metadata()  # the coordinator has a place for it now, or none and says why
            start = time.monotonic()
            async with asyncio.timeout(self._settings.stall_seconds) as patience:
                async with contextlib.aclosing(stream_pieces(path, offset=offset)) as pieces:
                    async for piece in pieces:
                        await self._write(call, pack_piece(SUBMIT_FIELD, piece))
                        self._put_off(patience)
                        on_bytes(end := piece.end)
                await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
            # The coordinator has answered before the end, or the line is gone; the end of the call says which and why.
            answer_seconds = self._settings.call_seconds
        except BaseException:
            call.cancel()
            raise
        try:
            async with asyncio.timeout(answer_seconds):
                try:
                    answer = await call
                except grpc.aio.AioRpcError as error:
                    raise ending.of(error) from None
                self._heard("SubmitUpdate", answer)
                if end - offset >= SMALLEST_MEASURED_BYTES:
                    seconds = time.monotonic() - start
                    self._upload_rate = (end - offset) / max(1e-6, seconds - await _check_seconds(call, seconds))
        finally:
            call.cancel()

    async def _write(self, call: Any, message: bytes, *, calls: int = 0) -> None:
        await call.write(message)
        self._messages.add(len(message), rpc="SubmitUpdate", silo=self._silo, direction="up", calls=calls)

    def _put_off(self, patience: asyncio.Timeout) -> None:
        """Bytes have moved: the time in which the next must begins anew."""
        patience.reschedule(asyncio.get_running_loop().time() + self._settings.stall_seconds)

    # Patience ---------------------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> Any:
        if self._stub is None:
            self._stub = pb_grpc.RoundServiceStub(self.channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def _persist(self, attempt: Callable[[], Awaitable[T]], *, moved: Callable[[], int] = lambda: 0) -> T:
        """Repeats `attempt` until it succeeds or there is no use; `moved` tells how far it has come."""
        pauses, failures, before = self._pauses(), 0, moved()
        while True:
            try:
                result = await attempt()
            except grpc.aio.AioRpcError as error:
                problem: SemisiloError = from_rpc_error(error)
            except TimeoutError:
                problem = Unreachable(f"Nothing has moved on the connection for {self._settings.stall_seconds:.0f} s.",
                                      remedy="It is tried again.")
            except SemisiloError as error:
                problem = error
            else:
                return result
            if isinstance(problem, (*_FATAL, *_ANSWERS)):
                raise problem
            if moved() > before:
                pauses, failures, before = self._pauses(), 0, moved()
            failures += 1
            self._on_trouble(await self._cause(problem, failures), failures)
            await asyncio.sleep(next(pauses))

    async def _ask(self, rpc: str, message: Any, *, wait_seconds: float = 0.0) -> Any:
        with self._request(rpc) as metadata:
            self._said(rpc, message)
            answer = await getattr(self._calls, rpc)(message, timeout=wait_seconds + self._settings.call_seconds,
                                                     metadata=metadata)
            self._heard(rpc, answer)
            return answer

    @contextmanager
    def _request(self, rpc: str) -> Iterator[tuple[tuple[str, str]]]:
        """Around one RPC: gives it an id, which both sides write into their logs, and writes our line."""
        request, began, ended = new_request_id(), time.monotonic(), "the coordinator has answered"
        with bound(silo=self._silo, request_id=request, rpc=rpc):
            try:
                yield ((REQUEST_ID_KEY, request),)
            except grpc.aio.AioRpcError as error:
                ended = f"failed: {from_rpc_error(error).code}"
                _LOG.debug("request %s: %s: %s", request, rpc, printable(str(error.details())))
                raise
            except BaseException:
                ended = "given up"
                raise
            finally:
                log_call(rpc, f"{rpc}: {ended}", seconds=time.monotonic() - began)

    def _said(self, rpc: str, message: Any, *, calls: int = 1) -> None:
        self._messages.add(message.ByteSize(), rpc=rpc, silo=self._silo, direction="up", calls=calls)

    def _heard(self, rpc: str, message: Any) -> None:
        self._heard_bytes(rpc, message.ByteSize())

    def _heard_bytes(self, rpc: str, message_bytes: int) -> None:
        self._messages.add(message_bytes, rpc=rpc, silo=self._silo, direction="down")
        self._on_contact()

    def _pauses(self) -> Iterator[float]:
        self._starts += 1
        return waits(self._settings.backoff, silo=self._silo, seed=self._starts)

    async def _cause(self, problem: SemisiloError, failures: int) -> SemisiloError:
        """What to tell the person: the failure itself, or what looking for its cause has found.

        Raises: the cause, when no repetition can mend it.
        """
        due = time.monotonic() - self._diagnosed >= self._settings.diagnose_every_seconds
        if failures < self._settings.diagnose_after or isinstance(problem, _Again) or \
                not (due or failures == self._settings.diagnose_after):
            return problem
        self._diagnosed = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                found = await asyncio.to_thread(self._diagnose)
        except (TimeoutError, OSError):
            return problem
        if found is None:
            return problem
        if is_fatal(found):
            raise found
        return found


def _first_message(update_id: str) -> bytes:
    """The message of an upload that names the update."""
    serialized: bytes = pb.SubmitUpdateRequest(update_id=update_id).SerializeToString()
    return serialized


def _parsed(message: bytes) -> Piece:
    """The chunk of a DownloadPayloadResponse that is laid out in another way than ours."""
    try:
        chunk = pb.DownloadPayloadResponse.FromString(message).chunk
    except DecodeError:
        raise BadPayload("A message of the stream cannot be read.") from None
    return Piece(chunk.offset, chunk.crc32, chunk.data)


async def _check_seconds(call: Any, limit: float) -> float:
    """How much of `limit` seconds the coordinator says to have spent on checking an upload; 0 when it does not."""
    said = next((value for key, value in await call.trailing_metadata() or () if key == CHECK_SECONDS_KEY), "0")
    try:
        return min(max(0.0, float(said)), limit)
    except (TypeError, ValueError):
        return 0.0
