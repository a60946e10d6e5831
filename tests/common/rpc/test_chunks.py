"""Chunked transfer: pieces in order, each checked, resumable from what arrived."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload, DiskFull
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
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire.tensors_pb2 import Chunk
from tests.each_of import each_of

CONTENT = bytes(range(251)) * 400
SIZE = len(CONTENT)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def partial(tmp_path: Path) -> PartialFile:
    return PayloadStore(tmp_path / "store").partial("u", size_bytes=SIZE)


async def stream(chunks: Iterable[Piece], fails: Exception | None = None) -> AsyncIterator[Piece]:
    for chunk in chunks:
        yield chunk
    if fails is not None:
        raise fails


def chunk_of(offset: int, data: bytes) -> Piece:
    return Piece(offset, zlib.crc32(data), data)


def pieces_of(path: Path, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Piece]:
    """The pieces of a file, each with bytes of its own; also for a test that has an event loop already."""
    async def cut() -> list[Piece]:
        return [piece._replace(data=bytes(piece.data))
                async for piece in stream_pieces(path, offset=offset, chunk_bytes=chunk_bytes)]

    with ThreadPoolExecutor(1) as pool:
        return iter(pool.submit(asyncio.run, cut()).result())


def receive(partial: PartialFile, chunks: Iterable[Piece], fails: Exception | None = None) -> int:
    return asyncio.run(receive_into(partial, stream(chunks, fails), SIZE))


@pytest.mark.parametrize("offset", [0, 1, 999, 1000, SIZE - 1, SIZE])
def test_chunks_from_any_offset_are_the_rest_of_the_file(source: Path, offset: int) -> None:
    position = offset
    for chunk in pieces_of(source, offset=offset, chunk_bytes=1000):
        check_piece(chunk, expected_offset=position, limit=1000)
        position += len(chunk.data)
    assert position == SIZE
    assert b"".join(chunk.data for chunk in pieces_of(source, offset=offset, chunk_bytes=1000)) == CONTENT[offset:]


def test_senders_use_half_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(2 * CHUNK_BYTES + 1))
    assert [len(chunk.data) for chunk in pieces_of(path)] == [524_288, 524_288, 1]


@pytest.mark.parametrize("offset", [-1, SIZE + 1])
def test_an_offset_outside_the_file_is_refused(source: Path, offset: int) -> None:
    with pytest.raises(BadPayload, match="outside"):
        next(pieces_of(source, offset=offset))


def test_the_data_is_the_last_field_of_the_message() -> None:
    """So that a reader can slice it: tag and length, then the data up to the end of the message."""
    assert Chunk(offset=5, crc32=7, data=b"abc").SerializeToString().endswith(b"\x1a\x03abc")


@each_of(("chunk", "message"), [
    (chunk_of(100, b""), "has 0 bytes"),
    (chunk_of(100, bytes(MAX_CHUNK_BYTES + 1)), "has 4194305 bytes"),
    (chunk_of(99, b"x"), "offset 99 arrived where 100"),
    (chunk_of(-100, b"x"), "offset -100"),
    (Piece(100, zlib.crc32(b"x") ^ 1, b"x"), "checksum"),
])
def test_a_bad_chunk_is_refused(chunk: Piece, message: str) -> None:
    check_piece(chunk_of(100, b"x"), expected_offset=100)
    with pytest.raises(BadPayload, match=message):
        check_piece(chunk, expected_offset=100)


def test_a_file_is_received_as_it_was_sent(source: Path, partial: PartialFile) -> None:
    async def copy() -> int:
        async def sent() -> AsyncIterator[Piece]:
            async for piece in stream_pieces(source, chunk_bytes=999):
                message = unpack_piece(SUBMIT_FIELD, pack_piece(SUBMIT_FIELD, piece))
                assert message is not None
                yield message

        return await receive_into(partial, sent(), SIZE)

    assert asyncio.run(copy()) == SIZE
    assert partial.finish(DIGEST).read_bytes() == CONTENT


def test_a_transfer_resumes_after_the_connection_drops(source: Path, partial: PartialFile) -> None:
    chunks = list(pieces_of(source, chunk_bytes=1000))
    with pytest.raises(ConnectionResetError):
        receive(partial, chunks[:30], fails=ConnectionResetError())
    assert partial.committed_bytes == 30_000
    receive(partial, pieces_of(source, offset=30_000, chunk_bytes=700))
    partial.finish(DIGEST)


def test_a_stream_that_ends_early_is_refused_but_what_came_stays(source: Path, partial: PartialFile) -> None:
    with pytest.raises(BadPayload, match="ended at 5000 of 100400"):
        receive(partial, list(pieces_of(source, chunk_bytes=1000))[:5])
    assert partial.committed_bytes == 5000
    receive(partial, pieces_of(source, offset=5000))
    partial.finish(DIGEST)


@pytest.mark.parametrize("order", [(0, 2), (0, 0), (1, 0), (0, 1, 3)])
def test_reordered_repeated_or_missing_chunks_are_refused(source: Path, partial: PartialFile,
                                                         order: tuple[int, ...]) -> None:
    chunks = list(pieces_of(source, chunk_bytes=1000))
    with pytest.raises(BadPayload, match="arrived where"):
        receive(partial, [chunks[number] for number in order])


def test_nothing_is_taken_beyond_the_declared_size(source: Path, partial: PartialFile) -> None:
    with pytest.raises(BadPayload, match="1 to 400 are allowed"):
        receive(partial, [*islice(pieces_of(source, chunk_bytes=1000), 100), chunk_of(100_000, bytes(401))])
    receive(partial, pieces_of(source, offset=100_000))
    with pytest.raises(BadPayload):
        receive(partial, [chunk_of(SIZE, b"x")])
    partial.finish(DIGEST)


def test_a_corrupted_chunk_is_not_stored(source: Path, partial: PartialFile) -> None:
    chunks = list(pieces_of(source, chunk_bytes=1000))
    chunks[3] = chunks[3]._replace(data=b"\xff" + bytes(chunks[3].data[1:]))
    with pytest.raises(BadPayload, match="offset 3000 does not have its checksum"):
        receive(partial, chunks)
    assert partial.committed_bytes == 3000


def test_a_full_disk_ends_the_stream_with_its_own_error(source: Path, tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "small", limit_bytes=SIZE - 1)
    with pytest.raises(DiskFull):
        store.partial("u", size_bytes=SIZE)


real_preadv = os.preadv


def not_in_memory(handle: int, buffers: Any, offset: int, flags: int = 0) -> int:
    """`os.preadv` of a file that the system would have to fetch from the disk."""
    if flags:
        raise BlockingIOError
    return real_preadv(handle, buffers, offset)


def test_a_stream_is_the_same_whether_the_file_is_in_memory_or_not(
        source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read() -> bytes:
        return b"".join([bytes(piece.data) async for piece in stream_pieces(source, offset=7, chunk_bytes=999)])

    assert asyncio.run(read()) == CONTENT[7:]
    monkeypatch.setattr(os, "preadv", not_in_memory)
    assert asyncio.run(read()) == CONTENT[7:]


def test_the_event_loop_answers_others_while_a_stream_is_cancelled(
        source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is closed when its reader has let go of it, and not before."""
    monkeypatch.setattr(os, "preadv", not_in_memory)

    async def run() -> bytes:
        chunks = stream_pieces(source, chunk_bytes=10)
        first = bytes((await anext(chunks)).data)
        task = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while str(source) in open_files():
            await asyncio.sleep(0.01)
        return first

    assert asyncio.run(asyncio.wait_for(run(), 300)) == CONTENT[:10]


def open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def test_what_arrived_before_a_cancellation_is_on_disk(source: Path, partial: PartialFile) -> None:
    """As when a connection breaks: gRPC cancels, and the next attempt must have come further than this one began."""
    async def run() -> None:
        so_far = asyncio.Event()

        async def endless() -> AsyncIterator[Piece]:
            for piece in pieces_of(source, chunk_bytes=1000):
                if piece.offset == 40_000:
                    so_far.set()
                    await asyncio.Event().wait()
                yield piece

        task = asyncio.ensure_future(receive_into(partial, endless(), SIZE))
        await so_far.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert partial.committed_bytes == 40_000


def test_what_has_arrived_is_never_far_ahead_of_the_disk(partial: PartialFile, tmp_path: Path) -> None:
    """A sender that is quicker than the disk waits: at most 2 MiB and the chunk in hand lie in memory."""
    size, ahead = 32 * 2**20, []
    big = PayloadStore(tmp_path / "big").partial("u", size_bytes=size)
    real = big.append
    given = 0

    def slow(data: bytes, **where: int) -> int:
        ahead.append(given - where["offset"])
        time.sleep(0.002)
        return real(data, **where)

    async def run() -> None:
        async def source() -> AsyncIterator[Piece]:
            nonlocal given
            piece = bytes(CHUNK_BYTES)
            for offset in range(0, size, CHUNK_BYTES):
                given += CHUNK_BYTES
                yield Piece(offset, zlib.crc32(piece), piece)

        with mock.patch.object(big, "append", slow):
            await receive_into(big, source(), size)

    asyncio.run(run())
    assert big.committed_bytes == size
    assert max(ahead) <= 2 * 2**20 + 2 * CHUNK_BYTES


def test_a_disk_that_fails_ends_the_transfer_with_its_own_error(source: Path, partial: PartialFile) -> None:
    with mock.patch("os.pwrite", side_effect=OSError(errno.ENOSPC, "full")), pytest.raises(DiskFull):
        receive(partial, pieces_of(source, chunk_bytes=1000))
    assert partial.committed_bytes == 0


def test_checksums_are_taken_once_for_a_file_and_anew_when_it_changes(source: Path) -> None:
    sums, taken = ChunkSums(), []
    real = zlib.crc32

    def counting(data: bytes) -> int:
        taken.append(len(data))
        return real(data)

    async def send() -> list[int]:
        return [piece.crc32 async for piece in stream_pieces(source, chunk_bytes=1000, sums=sums)]

    with mock.patch.object(zlib, "crc32", counting):
        first = asyncio.run(send())
        assert asyncio.run(send()) == first
        assert len(taken) == len(first) == 101
        source.write_bytes(CONTENT[::-1])
        assert asyncio.run(send()) == [real(CONTENT[::-1][at:at + 1000]) for at in range(0, SIZE, 1000)]


# Messages -------------------------------------------------------------------------------------------------------------

PIECES = st.builds(Piece, st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)), st.integers(0, 2**32 - 1),
                   st.binary(max_size=300))


def read_by_protobuf(field: int, message: bytes) -> Chunk:
    kind = pb.DownloadPayloadResponse if field == DOWNLOAD_FIELD else pb.SubmitUpdateRequest
    return kind.FromString(message).chunk


@pytest.mark.parametrize("field", [DOWNLOAD_FIELD, SUBMIT_FIELD])
@given(piece=PIECES)
def test_messages_are_what_protobuf_writes_to_the_byte_and_are_read_back(field: int, piece: Piece) -> None:
    chunk = Chunk(offset=piece.offset, crc32=piece.crc32, data=bytes(piece.data))
    message = (pb.DownloadPayloadResponse(chunk=chunk) if field == DOWNLOAD_FIELD
               else pb.SubmitUpdateRequest(chunk=chunk)).SerializeToString()
    assert pack_piece(field, piece) == message
    assert unpack_piece(field, message) == piece


@given(message=st.one_of(
    st.binary(max_size=40),
    st.builds(lambda piece, cut, at, byte: bytes((packed := bytearray(pack_piece(SUBMIT_FIELD, piece)))[:at])
              + byte + bytes(packed[at + len(byte):len(packed) - cut]),
              PIECES, st.integers(0, 3), st.integers(0, 20), st.binary(max_size=2))))
def test_whatever_is_read_by_hand_protobuf_reads_the_same(message: bytes) -> None:
    """Mutated and random messages: what the short way takes must be what the long way makes of it."""
    piece = unpack_piece(SUBMIT_FIELD, message)
    if piece is not None:
        request = pb.SubmitUpdateRequest.FromString(message)
        chunk = request.chunk
        assert (chunk.offset, chunk.crc32, chunk.data) == (piece.offset, piece.crc32, bytes(piece.data))
        assert not request.update_id


def test_other_layouts_are_left_to_protobuf() -> None:
    data_first = b"\x12\x07\x1a\x03abc\x08\x05"
    assert unpack_piece(SUBMIT_FIELD, data_first) is None
    assert read_by_protobuf(SUBMIT_FIELD, data_first) == Chunk(offset=5, data=b"abc")
    assert unpack_piece(SUBMIT_FIELD, pb.SubmitUpdateRequest(update_id="x").SerializeToString()) is None
    negative = pb.SubmitUpdateRequest(chunk=Chunk(offset=-1, data=b"x")).SerializeToString()
    assert unpack_piece(SUBMIT_FIELD, negative) is None
    assert unpack_piece(SUBMIT_FIELD, b"") is None
