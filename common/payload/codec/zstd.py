"""zstd for byte streams whose statistics matter more than their repetitions; decoding that trusts no size.

A frame is kept without the four bytes that all frames begin with: a tensor can have several small ones.

Tests: tests/common/payload/codec/test_positions.py.
"""

from __future__ import annotations

import sys

from semisilo.common.errors import BadPayload

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["compress", "content_size", "decompress", "zstd"]

_Parameter = zstd.CompressionParameter
_OPTIONS: dict[int, int] = {
    _Parameter.compression_level: 1,
    _Parameter.strategy: zstd.Strategy.fast,
    _Parameter.min_match: 7,
    _Parameter.hash_log: 6,
}
"""Nearly pure Huffman coding. Exponents, masks and gaps repeat only by chance, and a short match found by chance costs
more than the literals: than level 1 as it is, this is up to 10 % smaller and three times as fast. Long runs are still
found."""
_LEAST_WINDOW_LOG = 13
"""A few thousand bytes pay for a Huffman code of their own."""
_BLOCKS_LOG = 3
"""A stream is also tried in about 2^3 blocks: layers differ in how many of their elements change, and by how much."""
_MOST_TRIED_TWICE = 2**18
"""Bytes of a longer stream gain too little by that for the time that it takes."""
_MAGIC = bytes.fromhex("28b52ffd")
_LONGEST_FRAME_HEADER = 18
_LARGEST_WINDOW_LOG = 20
"""No stream of a block is longer than its 2^20 elements."""
_DECODING: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW_LOG}


def compress(data: bytes | memoryview) -> bytes:
    """One zstd frame that says its content's size."""
    frame = zstd.compress(data, options=_OPTIONS)
    size = memoryview(data).nbytes
    if 1 << _LEAST_WINDOW_LOG < size <= _MOST_TRIED_TWICE:
        # No block is larger than the window, so a small window makes many blocks, each with its own Huffman code.
        window_log = max(_LEAST_WINDOW_LOG, size.bit_length() - _BLOCKS_LOG)
        frame = min(frame, zstd.compress(data, options=_OPTIONS | {_Parameter.window_log: window_log}), key=len)
    return frame[len(_MAGIC):]


def content_size(frame: bytes | memoryview) -> int:
    """Bytes of content that a frame claims. Raises: BadPayload when it is no frame or claims nothing."""
    try:
        size = zstd.get_frame_info(_MAGIC + frame[:_LONGEST_FRAME_HEADER]).decompressed_size
    except zstd.ZstdError:
        raise BadPayload("A compressed stream of a block is not a zstd frame.") from None
    if size is None:
        raise BadPayload("A compressed stream of a block does not say its size.")
    return size


def decompress(frame: bytes | memoryview, size: int) -> bytes:
    """The content of one frame.

    Args:
        frame: one whole frame, nothing behind it.
        size: how many bytes it must give; no more memory than that is taken.
    Raises: BadPayload.
    """
    if (claimed := content_size(frame)) != size:
        raise BadPayload(f"A compressed stream of a block claims {claimed} bytes; {size} belong there.")
    decompressor = zstd.ZstdDecompressor(options=_DECODING)
    try:
        content = decompressor.decompress(_MAGIC + frame, max_length=size)
    except zstd.ZstdError:
        raise BadPayload("A compressed stream of a block cannot be decompressed.") from None
    if not decompressor.eof or len(content) != size or decompressor.unused_data:
        raise BadPayload(f"A compressed stream of a block is not one frame of {size} bytes.")
    return content
