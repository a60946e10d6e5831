"""The bytes of payloads and updates on their way: one stream from where the last one ended, cut when nothing moves.

A stream that is cut raises; that it is made again, and from which byte, is for `semisilo.silo.link.link` to say.

Tests: tests/silo/link/test_link.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semisilo.common.errors import BadPayload
from semisilo.common.rpc.chunks import (
    CHUNK_BYTES,
    DOWNLOAD_FIELD,
    SUBMIT_FIELD,
    Piece,
    check_piece,
    pack_piece,
    receive_into,
    stream_pieces,
    unpack_piece,
)
from semisilo.common.rpc.grpc_errors import CHECK_SECONDS_KEY
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.link.retrying_calls import RetryingCalls

__all__ = ["SMALLEST_MEASURED_BYTES", "Ending", "Transfers"]

Request = pb.DownloadPayloadRequest | pb.DownloadModelRequest
"""What asks for the pieces of a file; the answers are laid out alike."""
_SERVICE = pb.DESCRIPTOR.services_by_name["RoundService"].full_name
SMALLEST_MEASURED_BYTES = 256 * 1024
"""An upload of less than this says more about round trips than about the line."""


class Transfers:
    """DownloadPayload, DownloadModel and SubmitUpdate, each once. Messages with chunks pass gRPC as bytes."""

    def __init__(self, calls: RetryingCalls, *, begun: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            begun: called when a stream is about to begin, its connection there to be looked at.
        """
        self._calls = calls
        self._begun = begun
        self._upload_rate = 0.0

    @property
    def upload_rate(self) -> float:
        """See `semisilo.silo.link.link.Link.upload_rate`."""
        return self._upload_rate

    async def receive(self, request: Callable[[int], Request], store: PayloadStore, digest: str, size_bytes: int, *,
                      arrived: Callable[[int], None]) -> Path:
        """Brings a payload or model into the store, from the byte that is here; returns its path.

        Args:
            request: what asks for it from a byte on.
            arrived: told how many bytes of it are here.
        Raises: grpc.aio.AioRpcError as gRPC made it; BadPayload for bytes that are damaged; TimeoutError when nothing
            has moved for `stall_seconds`; DiskFull.
        """
        if size_bytes > CHUNK_BYTES or store.resume_offset(digest) != 0:
            with await asyncio.to_thread(store.partial, digest, size_bytes=size_bytes) as partial:
                if partial.committed_bytes < size_bytes:
                    async with self._stream(request(partial.committed_bytes)) as pieces:
                        await _append_to(partial, pieces, size_bytes, arrived)
                return await _finished(partial, digest, arrived)
        async with self._stream(request(0)) as pieces:
            first = await anext(pieces, None)
            if first is None or first.offset or len(first.data) != size_bytes:
                with await asyncio.to_thread(store.partial, digest, size_bytes=size_bytes) as partial:
                    await _append_to(partial, _with_first(first, pieces), size_bytes, arrived)
                    return await _finished(partial, digest, arrived)
            # All of it in one piece: there is nothing to resume, so one thread writes it, once.
            check_piece(first, expected_offset=0)
            if await anext(pieces, None) is not None:
                raise BadPayload("The stream goes on after the declared size.")
        path = await asyncio.to_thread(store.add_bytes, first.data, digest)
        arrived(size_bytes)
        return path

    async def send(self, update_id: str, path: Path, *, offset: int, on_bytes: Callable[[int], None]) -> None:
        """Sends a file from a byte on and waits until the coordinator has checked it and written it to disk.

        Args:
            on_bytes: told how many bytes of the file have been handed over.
        Raises: grpc.aio.AioRpcError with what the coordinator objects; TimeoutError when nothing has moved.
        """
        with self._calls.request("SubmitUpdate") as metadata:
            await self._send_as(metadata, update_id, path, offset, on_bytes)

    @contextlib.asynccontextmanager
    async def _stream(self, request: Request) -> AsyncIterator[AsyncIterator[Piece]]:
        """The pieces that come in answer to a request. Raises: TimeoutError when nothing moves."""
        async with asyncio.timeout(self._calls.settings.stall_seconds) as patience, contextlib.aclosing(
                self._pieces(request, patience)) as pieces:
            yield pieces

    async def _pieces(self, request: Request, patience: asyncio.Timeout) -> AsyncGenerator[Piece, None]:
        await self._connect()
        self._begun()
        rpc = "DownloadModel" if isinstance(request, pb.DownloadModelRequest) else "DownloadPayload"
        with self._calls.request(rpc) as metadata:
            call: Any = self._calls.channel.unary_stream(
                f"/{_SERVICE}/{rpc}", request_serializer=type(request).SerializeToString)(request, metadata=metadata)
            self._calls.said(rpc, request.ByteSize())
            try:
                while (message := await call.read()) is not grpc.aio.EOF:
                    self._put_off(patience)
                    self._calls.heard(rpc, len(message))
                    yield unpack_piece(DOWNLOAD_FIELD, message) or _parsed(message)
            finally:
                call.cancel()

    async def _connect(self) -> None:
        """Returns when there is a connection, or cannot be one at the moment, as the call then says."""
        channel = self._calls.channel
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._calls.settings.call_seconds):
                while (state := channel.get_state(try_to_connect=True)) in (grpc.ChannelConnectivity.IDLE,
                                                                           grpc.ChannelConnectivity.CONNECTING):
                    await channel.wait_for_state_change(state)

    async def _send_as(self, metadata: tuple[tuple[str, str], ...], update_id: str, path: Path, offset: int,
                       on_bytes: Callable[[int], None]) -> None:
        settings = self._calls.settings
        call: Any = self._calls.channel.stream_unary(
            f"/{_SERVICE}/SubmitUpdate", response_deserializer=pb.SubmitUpdateResponse.FromString)(metadata=metadata)
        ending = Ending(call)
        end, answer_seconds = offset, settings.answer_seconds
        try:
            async with asyncio.timeout(answer_seconds):
                await self._write(call, _first_message(update_id), calls=1)
                await call.initial_metadata()  # the coordinator has a place for it now, or none and says why
            self._begun()
            start = time.monotonic()
            async with asyncio.timeout(settings.stall_seconds) as patience:
                async with contextlib.aclosing(stream_pieces(path, offset=offset)) as pieces:
                    async for piece in pieces:
                        await self._write(call, pack_piece(SUBMIT_FIELD, piece))
                        self._put_off(patience)
                        on_bytes(end := piece.end)
                await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
            # The coordinator has answered before the end, or the line is gone; the end of the call says which and why.
            answer_seconds = settings.call_seconds
        except BaseException:
            call.cancel()
            raise
        try:
            async with asyncio.timeout(answer_seconds):
                try:
                    answer = await call
                except grpc.aio.AioRpcError as error:
                    raise ending.of(error) from None
                self._calls.heard("SubmitUpdate", answer.ByteSize())
                if end - offset >= SMALLEST_MEASURED_BYTES:
                    seconds = time.monotonic() - start
                    self._upload_rate = (end - offset) / max(1e-6, seconds - await _check_seconds(call, seconds))
        finally:
            call.cancel()

    async def _write(self, call: Any, message: bytes, *, calls: int = 0) -> None:
        await call.write(message)
        self._calls.said("SubmitUpdate", len(message), calls=calls)

    def _put_off(self, patience: asyncio.Timeout) -> None:
        """Bytes have moved: the time in which the next must begins anew."""
        patience.reschedule(asyncio.get_running_loop().time() + self._calls.settings.stall_seconds)


async def _append_to(partial: PartialFile, pieces: AsyncIterator[Piece], size_bytes: int,
                     arrived: Callable[[int], None]) -> None:
    async def told() -> AsyncIterator[Piece]:
        async for piece in pieces:
            yield piece
            arrived(partial.committed_bytes)

    try:
        await receive_into(partial, told(), size_bytes)
    finally:
        arrived(partial.committed_bytes)


async def _with_first(first: Piece | None, pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    if first is not None:
        yield first
    async for piece in pieces:
        yield piece


async def _finished(partial: PartialFile, digest: str, arrived: Callable[[int], None]) -> Path:
    arrived(partial.committed_bytes)
    return await asyncio.to_thread(partial.finish, digest)


def _first_message(update_id: str) -> bytes:
    """The message of an upload that names the update."""
    serialized: bytes = pb.SubmitUpdateRequest(update_id=update_id).SerializeToString()
    return serialized


def _parsed(message: bytes) -> Piece:
    """The chunk of a DownloadPayloadResponse, or DownloadModelResponse, that is laid out in another way than ours."""
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


class Ending:
    """Keeps the status with which a call ended first, before a failed write can hide it.

    A coordinator may end an upload while the silo still writes: the phase has closed, the silo is revoked, bytes are
    damaged. The write that is under way then fails, and gRPC for Python lays INTERNAL, "Internal error from Core", over
    the status that the coordinator sent, whether that has come already or is a moment behind (grpc/grpc#36066). Such a
    failure would be tried again for ever, since the silo cannot tell it from a hiccup.
    """

    def __init__(self, call: Any) -> None:
        """
        Args:
            call: a call of grpc.aio that has not ended.
        """
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """What the coordinator, or the line, has to say; `error` is what gRPC says at the end of the call."""
        if _only_a_failed_write(error) and self._first is not None:
            return self._first
        return error

    def _note(self, call: Any) -> None:
        code = _at_once(call.code())
        if self._first is None and code not in (None, grpc.StatusCode.OK):
            self._first = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), _at_once(call.trailing_metadata())
                                               or grpc.aio.Metadata(), details=_at_once(call.details()))


def _only_a_failed_write(error: grpc.aio.AioRpcError) -> bool:
    """A coordinator's INTERNAL brings metadata."""
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def _at_once(reading: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that need not wait, as those of a call that has ended; None when it would.

    A callback cannot await, and a turn of the event loop later the status may be another.
    """
    try:
        reading.send(None)
    except StopIteration as finished:
        return finished.value
    finally:
        reading.close()
    return None
