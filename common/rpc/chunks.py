"""Chunked transfer of payload files: cut, check, receive. The same code for both directions.

The messages that carry chunks are put together and taken apart by hand, so that the bytes of a chunk are copied once on
their way out and not at all on their way in. What is sent is byte for byte what protobuf writes; what arrives in any
other layout is read by protobuf.
"""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from semisilo.common.errors import BadPayload
from semisilo.common.storage.store import MAX_CHUNK_BYTES, PartialFile

__all__ = [
    "CHUNK_BYTES", "DOWNLOAD_FIELD", "MAX_CHUNK_BYTES", "SUBMIT_FIELD", "ChunkSums", "Piece", "check_piece",
    "pack_piece", "receive_into", "stream_pieces", "unpack_piece",
]

CHUNK_BYTES = 512 * 1024
"""What senders use: larger ones gain nothing, smaller ones cost wire bytes."""
DOWNLOAD_FIELD: Final = 1
"""Number of the field `chunk` in DownloadPayloadResponse."""
SUBMIT_FIELD: Final = 2
"""Number of the field `chunk` in SubmitUpdateRequest."""

_AHEAD_BYTES = 2 * 2**20
"""How far what has arrived may be ahead of what is on disk."""
_OFFSET_TAG, _CRC_TAG, _DATA_TAG = 0x08, 0x15, 0x1A
_LENGTH_DELIMITED = 2
_REMEMBERED_FILES = 4


class Piece(NamedTuple):
    """A chunk, as `tensors.proto` defines it."""

    offset: int
    crc32: int
    data: bytes | memoryview

    @property
    def end(self) -> int:
        """Position behind its last byte."""
        return self.offset + len(self.data)


# Messages -------------------------------------------------------------------------------------------------------------


def pack_piece(field: int, piece: Piece) -> bytes:
    """A serialised message whose only field is `piece`: byte for byte what protobuf makes of it.

    Args:
        field: number of that field, 1 to 15.
        piece: offset 0 to 2^63 - 1, data of less than 2^31 bytes.
    """
    head = bytearray()
    if piece.offset:  # proto3 leaves zeros out
        head.append(_OFFSET_TAG)
        _put_varint(head, piece.offset)
    if piece.crc32:
        head.append(_CRC_TAG)
        head += piece.crc32.to_bytes(4, "little")
    if size := len(piece.data):
        head.append(_DATA_TAG)
        _put_varint(head, size)
    outer = bytearray((field << 3 | _LENGTH_DELIMITED,))
    _put_varint(outer, len(head) + size)
    return b"".join((outer, head, piece.data))


def unpack_piece(field: int, message: bytes) -> Piece | None:
    """The chunk of a serialised message that has the layout of `pack_piece`; its data are a view of the message.

    Returns: None for every other layout, valid or not; then protobuf has to read it.
    """
    try:
        if message[0] != (field << 3 | _LENGTH_DELIMITED):
            return None
        length, at = _varint(message, 1)
        if at + length != len(message):
            return None
        offset = crc32 = size = 0
        if at < len(message) and message[at] == _OFFSET_TAG:
            offset, at = _varint(message, at + 1)
        if at < len(message) and message[at] == _CRC_TAG:
            crc32, at = int.from_bytes(message[at + 1:at + 5], "little"), at + 5
        if at < len(message) and message[at] == _DATA_TAG:
            size, at = _varint(message, at + 1)
    except IndexError:
        return None
    return Piece(offset, crc32, memoryview(message)[at:]) if at + size == len(message) else None


def _put_varint(target: bytearray, value: int) -> None:
    while value > 0x7F:
        target.append(value & 0x7F | 0x80)
        value >>= 7
    target.append(value)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(value, position behind it).

    Raises: IndexError for more than 63 bits, for bytes that add nothing (protobuf takes some and refuses others), or
        when the message ends within it.
    """
    value = 0
    for shift in range(0, 63, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift and not byte:
                break
            return value, at
    raise IndexError


# Sending --------------------------------------------------------------------------------------------------------------


class ChunkSums:
    """CRC-32 of the chunks of files that were sent lately, since the same payload goes to every silo.

    A file is known by its number and times in the file system, so one that was changed or replaced is summed anew.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, ...], dict[tuple[int, int], int]] = {}

    def of(self, handle: int) -> dict[tuple[int, int], int]:
        """The sums that are known of an open file, by (offset, bytes); the sender adds to them."""
        about = os.fstat(handle)
        key = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        known = self._files.pop(key, {})
        self._files[key] = known
        while len(self._files) > _REMEMBERED_FILES:
            del self._files[next(iter(self._files))]
        return known


class _Source:
    """A file that is cut into pieces, each read when it is asked for."""

    def __init__(self, path: Path, *, offset: int, chunk_bytes: int, sums: ChunkSums | None) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._handle).st_size
            if not 0 <= offset <= self._size:
                raise BadPayload(f"Offset {offset} is outside a payload of {self._size} bytes.")
            self._sums = {} if sums is None else sums.of(self._handle)
        except BaseException:
            self.close()
            raise
        self._offset = offset
        self._buffer = bytearray(min(chunk_bytes, self._size - offset))

    @property
    def is_at_end(self) -> bool:
        return self._offset >= self._size

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def close_after(self, reading: asyncio.Future[Piece]) -> None:
        """Closes, whatever came of the last reading."""
        if not reading.cancelled():
            reading.exception()
        self.close()

    def next(self, *, flags: int = 0) -> Piece:
        """The next piece; its data are valid until the one after it is read.

        Args:
            flags: RWF_NOWAIT: do not wait for the disk.
        Raises: BlockingIOError when that would have to be; OSError.
        """
        view = memoryview(self._buffer)[:self._size - self._offset]
        if (got := os.preadv(self._handle, [view], self._offset, flags)) < len(view):
            if flags:
                raise BlockingIOError
            if not got:
                raise OSError(f"A payload ended at {self._offset} of {self._size} bytes while it was read.")
            view = view[:got]
        span = self._offset, len(view)
        crc32 = self._sums.get(span)
        if crc32 is None:
            crc32 = self._sums[span] = zlib.crc32(view)
        self._offset += len(view)
        return Piece(span[0], crc32, view)


async def stream_pieces(path: Path, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES,
                        sums: ChunkSums | None = None) -> AsyncGenerator[Piece, None]:
    """Cuts a file into chunks, each read when it is asked for; its data are valid until the next one is.

    What the system has in memory is read at once, all else in a thread.

    Args:
        path: a file that does not change meanwhile.
        offset: first byte wanted, 0 <= offset <= size; at the size nothing is left to send.
        chunk_bytes: bytes of every chunk but the last.
        sums: remembers checksums from one sending of a file to the next.
    Raises: BadPayload for an offset outside the file.
    """
    source = _Source(path, offset=offset, chunk_bytes=chunk_bytes, sums=sums)
    reading: asyncio.Future[Piece] | None = None
    loop = asyncio.get_running_loop()
    try:
        while not source.is_at_end:
            try:
                piece = source.next(flags=_NOWAIT) if _NOWAIT else None
            except OSError:  # not in memory, or a file system that cannot tell
                piece = None
            if piece is None:
                reading = loop.run_in_executor(None, source.next)
                piece = await asyncio.shield(reading)
            yield piece
    finally:
        if reading is None or reading.done():
            source.close()
        else:  # cancelled; the thread may still read, and the number of its file must not become another's
            reading.add_done_callback(source.close_after)


_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


# Receiving ------------------------------------------------------------------------------------------------------------


def check_piece(piece: Piece, *, expected_offset: int, limit: int = MAX_CHUNK_BYTES) -> None:
    """Checks one chunk that arrived.

    Raises: BadPayload when it is empty, longer than `limit`, not at `expected_offset`, or its CRC-32 differs.
    """
    _check_place(piece, expected_offset=expected_offset, limit=limit)
    _check_sum(piece)


def _check_place(piece: Piece, *, expected_offset: int, limit: int) -> None:
    if not 1 <= len(piece.data) <= limit:
        raise BadPayload(f"A chunk has {len(piece.data)} bytes; 1 to {limit} are allowed.")
    if piece.offset != expected_offset:
        raise BadPayload(f"A chunk for offset {piece.offset} arrived where {expected_offset} was expected.")


def _check_sum(piece: Piece) -> None:
    if zlib.crc32(piece.data) != piece.crc32:
        raise BadPayload(f"The chunk at offset {piece.offset} does not have its checksum.",
                         remedy="The sender continues from the last good chunk.")


async def receive_into(partial: PartialFile, stream: AsyncIterator[Piece], total_bytes: int) -> int:
    """Appends a stream of chunks to a partial file; the caller then calls `partial.finish`.

    Whatever has passed the check stays when this raises, so that the next attempt goes on from
    `partial.committed_bytes`. Checksums, hashing and writing run behind the arrival, in a thread, so that other RPCs
    are answered meanwhile and the next chunk is on its way while this one is hashed. Of a chunk that does not have its
    checksum nothing is written, and of none behind it.

    Args:
        partial: opened with the declared size.
        stream: consecutive chunks from `partial.committed_bytes` on.
        total_bytes: where the last chunk must end.
    Returns: `total_bytes`.
    Raises: BadPayload for a bad chunk, or a stream that ends early or goes on; DiskFull; what `stream` raises.
    """
    writer = _Writer(partial)
    arrived = partial.committed_bytes
    try:
        async for piece in stream:
            _check_place(piece, expected_offset=arrived, limit=min(MAX_CHUNK_BYTES, max(0, total_bytes - arrived)))
            arrived = piece.end
            await writer.put(piece)
    finally:
        await writer.end()
    writer.check()
    if partial.committed_bytes != total_bytes:
        raise BadPayload(f"A stream ended at {partial.committed_bytes} of {total_bytes} bytes.",
                         remedy="The sender continues from there.")
    return total_bytes


class _Writer:
    """A thread that appends pieces to a partial file, a few behind their arrival; it lives as long as the transfer."""

    def __init__(self, partial: PartialFile) -> None:
        self._partial = partial
        self._loop = asyncio.get_running_loop()
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._taken_bytes = 0
        self._written_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._ended = self._loop.create_future()
        self._problem: BaseException | None = None
        threading.Thread(target=self._append_all, name="writer", daemon=True).start()

    async def put(self, piece: Piece) -> None:
        """Takes a piece; waits while too much has not been written. Raises: what an earlier one has met."""
        self._taken_bytes += len(piece.data)
        self._pieces.put(piece)
        if self._taken_bytes - self._written_bytes > _AHEAD_BYTES:
            self._room = self._loop.create_future()
            if self._has_little():  # the thread was quicker, and may not have seen that somebody waits
                self._room = None
            else:
                await self._room
        if self._problem is not None:
            raise self._problem

    async def end(self) -> None:
        """Returns when all that was taken is written, or lost to a problem, which `check` raises."""
        self._pieces.put(None)
        await asyncio.shield(self._ended)

    def check(self) -> None:
        """Raises what an append has met."""
        if self._problem is not None:
            raise self._problem

    def _has_little(self) -> bool:
        return self._taken_bytes - self._written_bytes <= _AHEAD_BYTES // 2 or self._problem is not None

    def _append_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if self._problem is None:
                try:
                    _check_sum(piece)
                    self._partial.append(piece.data, offset=piece.offset, crc32=piece.crc32)
                    self._written_bytes += len(piece.data)
                except BaseException as problem:
                    self._problem = problem
            piece = None  # so that its memory is free while this thread waits for the next
            if (room := self._room) is not None and self._has_little():
                self._room = None
                self._tell(room)
        self._tell(self._ended)

    def _tell(self, waiter: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # the event loop is gone, and so is whoever waited
            self._loop.call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
