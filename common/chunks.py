"""Chunked transfer of payload files: cut, check, receive. The same code for both directions."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from pathlib import Path

from common.errors import BadPayload
from common.store import MAX_CHUNK_BYTES, PartialFile
from common.wire.tensors_pb2 import Chunk

__all__ = ["CHUNK_BYTES", "MAX_CHUNK_BYTES", "check_chunk", "read_chunks", "receive_into", "stream_chunks"]

CHUNK_BYTES = 512 * 1024
"""What senders use: larger ones gain nothing, smaller ones cost wire bytes."""


def read_chunks(path: Path, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Generator[Chunk, None, None]:
    """Cuts a file into chunks, each read when it is asked for.

    Args:
        path: a file that does not change meanwhile.
        offset: first byte wanted, 0 <= offset <= size; at the size nothing is left to send.
        chunk_bytes: bytes of every chunk but the last.
    Raises: BadPayload for an offset outside the file.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not 0 <= offset <= size:
            raise BadPayload(f"Offset {offset} is outside a payload of {size} bytes.")
        file.seek(offset)
        while data := file.read(chunk_bytes):
            yield Chunk(offset=offset, crc32=zlib.crc32(data), data=data)
            offset += len(data)


async def stream_chunks(path: Path, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[Chunk]:
    """`read_chunks` for an event loop: the disk is read in a thread."""
    chunks = read_chunks(path, offset=offset, chunk_bytes=chunk_bytes)
    try:
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk
    finally:
        # After a cancellation the thread may still be inside the generator; then the generator closes itself when
        # the thread lets go of it.
        with suppress(ValueError):
            chunks.close()


def check_chunk(chunk: Chunk, *, expected_offset: int, limit: int = MAX_CHUNK_BYTES) -> None:
    """Checks one chunk that arrived.

    Raises: BadPayload when it is empty, longer than `limit`, not at `expected_offset`, or its CRC-32 differs.
    """
    if not 1 <= len(chunk.data) <= limit:
        raise BadPayload(f"A chunk has {len(chunk.data)} bytes; 1 to {limit} are allowed.")
    if chunk.offset != expected_offset:
        raise BadPayload(f"A chunk for offset {chunk.offset} arrived where {expected_offset} was expected.")
    if zlib.crc32(chunk.data) != chunk.crc32:
        raise BadPayload(f"The chunk at offset {chunk.offset} does not have its checksum.",
                         remedy="The sender goes on from the last good chunk.")


async def receive_into(partial: PartialFile, stream: AsyncIterator[Chunk], total_bytes: int) -> int:
    """Appends a stream of chunks to a partial file; the caller then calls `partial.finish`.

    Whatever was appended stays when this raises, so that the next attempt goes on from `partial.committed_bytes`.

    Args:
        partial: opened with the declared size.
        stream: consecutive chunks from `partial.committed_bytes` on.
        total_bytes: where the last chunk must end.
    Returns: `total_bytes`.
    Raises: BadPayload for a bad chunk, or a stream that ends early or goes on; DiskFull; what `stream` raises.
    """
    async for chunk in stream:
        offset = partial.committed_bytes
        check_chunk(chunk, expected_offset=offset, limit=min(MAX_CHUNK_BYTES, max(0, total_bytes - offset)))
        # Hashing and writing take a thread, so that other RPCs are answered while a large update arrives.
        await asyncio.to_thread(partial.append, chunk.data, offset=offset, crc32=chunk.crc32)
    if partial.committed_bytes != total_bytes:
        raise BadPayload(f"A stream ended at {partial.committed_bytes} of {total_bytes} bytes.",
                         remedy="The sender goes on from there.")
    return total_bytes
