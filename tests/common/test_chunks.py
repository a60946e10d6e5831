"""Chunked transfer: pieces in order, each checked, resumable from what arrived."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from pathlib import Path

import pytest

from common.chunks import CHUNK_BYTES, MAX_CHUNK_BYTES, check_chunk, read_chunks, receive_into, stream_chunks
from common.errors import BadPayload, DiskFull
from common.store import PartialFile, PayloadStore
from common.wire.tensors_pb2 import Chunk

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


async def stream(chunks: Iterable[Chunk], fails: Exception | None = None) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk
    if fails is not None:
        raise fails


def chunk_of(offset: int, data: bytes) -> Chunk:
    return Chunk(offset=offset, crc32=zlib.crc32(data), data=data)


def receive(partial: PartialFile, chunks: Iterable[Chunk], fails: Exception | None = None) -> int:
    return asyncio.run(receive_into(partial, stream(chunks, fails), SIZE))


@pytest.mark.parametrize("offset", [0, 1, 999, 1000, SIZE - 1, SIZE])
def test_chunks_from_any_offset_are_the_rest_of_the_file(source: Path, offset: int) -> None:
    position = offset
    for chunk in read_chunks(source, offset=offset, chunk_bytes=1000):
        check_chunk(chunk, expected_offset=position, limit=1000)
        position += len(chunk.data)
    assert position == SIZE
    assert b"".join(chunk.data for chunk in read_chunks(source, offset=offset, chunk_bytes=1000)) == CONTENT[offset:]


def test_senders_use_half_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(2 * CHUNK_BYTES + 1))
    assert [len(chunk.data) for chunk in read_chunks(path)] == [524_288, 524_288, 1]


@pytest.mark.parametrize("offset", [-1, SIZE + 1])
def test_an_offset_outside_the_file_is_refused(source: Path, offset: int) -> None:
    with pytest.raises(BadPayload, match="outside"):
        next(read_chunks(source, offset=offset))


def test_the_data_is_the_last_field_of_the_message() -> None:
    """So that a reader can slice it: tag and length, then the data up to the end of the message."""
    assert chunk_of(5, b"abc").SerializeToString().endswith(b"\x1a\x03abc")


@pytest.mark.parametrize(("chunk", "message"), [
    (chunk_of(100, b""), "has 0 bytes"),
    (chunk_of(100, bytes(MAX_CHUNK_BYTES + 1)), "has 4194305 bytes"),
    (chunk_of(99, b"x"), "offset 99 arrived where 100"),
    (chunk_of(-100, b"x"), "offset -100"),
    (Chunk(offset=100, crc32=zlib.crc32(b"x") ^ 1, data=b"x"), "checksum"),
])
def test_a_bad_chunk_is_refused(chunk: Chunk, message: str) -> None:
    check_chunk(chunk_of(100, b"x"), expected_offset=100)
    with pytest.raises(BadPayload, match=message):
        check_chunk(chunk, expected_offset=100)


def test_a_file_is_received_as_it_was_sent(source: Path, partial: PartialFile) -> None:
    async def copy() -> int:
        return await receive_into(partial, stream_chunks(source, chunk_bytes=999), SIZE)

    assert asyncio.run(copy()) == SIZE
    assert partial.finish(DIGEST).read_bytes() == CONTENT


def test_a_transfer_resumes_after_the_connection_drops(source: Path, partial: PartialFile) -> None:
    chunks = list(read_chunks(source, chunk_bytes=1000))
    with pytest.raises(ConnectionResetError):
        receive(partial, chunks[:30], fails=ConnectionResetError())
    assert partial.committed_bytes == 30_000
    receive(partial, read_chunks(source, offset=30_000, chunk_bytes=700))
    partial.finish(DIGEST)


def test_a_stream_that_ends_early_is_refused_but_what_came_stays(source: Path, partial: PartialFile) -> None:
    with pytest.raises(BadPayload, match="ended at 5000 of 100400"):
        receive(partial, list(read_chunks(source, chunk_bytes=1000))[:5])
    assert partial.committed_bytes == 5000
    receive(partial, read_chunks(source, offset=5000))
    partial.finish(DIGEST)


@pytest.mark.parametrize("order", [(0, 2), (0, 0), (1, 0), (0, 1, 3)])
def test_reordered_repeated_or_missing_chunks_are_refused(source: Path, partial: PartialFile,
                                                         order: tuple[int, ...]) -> None:
    chunks = list(read_chunks(source, chunk_bytes=1000))
    with pytest.raises(BadPayload, match="arrived where"):
        receive(partial, [chunks[number] for number in order])


def test_nothing_is_taken_beyond_the_declared_size(source: Path, partial: PartialFile) -> None:
    with pytest.raises(BadPayload, match="1 to 400 are allowed"):
        receive(partial, [*islice(read_chunks(source, chunk_bytes=1000), 100), chunk_of(100_000, bytes(401))])
    receive(partial, read_chunks(source, offset=100_000))
    with pytest.raises(BadPayload):
        receive(partial, [chunk_of(SIZE, b"x")])
    partial.finish(DIGEST)


def test_a_corrupted_chunk_is_not_stored(source: Path, partial: PartialFile) -> None:
    chunks = list(read_chunks(source, chunk_bytes=1000))
    chunks[3].data = b"\xff" + chunks[3].data[1:]
    with pytest.raises(BadPayload, match="offset 3000 does not have its checksum"):
        receive(partial, chunks)
    assert partial.committed_bytes == 3000


def test_a_full_disk_ends_the_stream_with_its_own_error(source: Path, tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "small", limit_bytes=SIZE - 1)
    with pytest.raises(DiskFull):
        store.partial("u", size_bytes=SIZE)


def test_the_event_loop_answers_others_while_a_stream_is_cancelled(source: Path) -> None:
    async def run() -> bytes:
        chunks = stream_chunks(source, chunk_bytes=10)
        first = await anext(chunks)
        task = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return first.data

    assert asyncio.run(run()) == CONTENT[:10]
