"""Words of 16 to 32 bits, packed without a gap: what a masked update is on the wire.

The bits of word i stand at i * bits and after, lowest first, in a stream of bytes, lowest bit first. Imports neither
torch nor cryptography.

Words: W words, G groups of words that fill whole lanes of 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload

__all__ = ["MAX_BITS", "MIN_BITS", "pack", "packed_bytes", "unpack", "word_dtype"]

MIN_BITS = 16
MAX_BITS = 32
_BLOCK_WORDS = 1 << 15
"""Packed at a time: they stay in a core's cache."""

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]


def word_dtype(bits: int) -> np.dtype[np.uint32] | np.dtype[np.uint16]:
    """The smallest type that holds a word, little-endian: two bytes for 16 bits, else four."""
    _check(bits)
    return np.dtype("<u2") if bits == MIN_BITS else np.dtype("<u4")


def packed_bytes(count: int, bits: int) -> int:
    """What `count` words take."""
    _check(bits)
    return (count * bits + 7) // 8


def pack(words: Words, bits: int) -> Bytes:
    """The low `bits` bits of each word.

    Args:
        words: uint32 (W,); what stands above `bits` is left out.
        bits: MIN_BITS to MAX_BITS.
    Returns: uint8 (packed_bytes(W, bits),); the bits that are left over in the last byte are 0.
    """
    _check(bits)
    if words.dtype != np.uint32 or words.ndim != 1:
        raise ValueError(f"Words are uint32 (W,), found {words.dtype} {words.shape}.")
    if bits in (16, 32):
        return np.ascontiguousarray(words, dtype=word_dtype(bits)).view(np.uint8)
    group, lanes = _group(bits)
    packed = np.empty(math.ceil(len(words) / group) * lanes, dtype="<u8")
    for begin, end in _blocks(len(words), group):
        block = words[begin:end]
        if len(block) % group:
            block = np.concatenate([block, np.zeros(-len(block) % group, dtype=np.uint32)])
        first = begin // group * lanes
        _pack_groups(block.reshape(-1, group), bits,
                     packed[first:first + len(block) // group * lanes].reshape(-1, lanes))
    return packed.view(np.uint8)[:packed_bytes(len(words), bits)]


def unpack(data: bytes | Bytes, *, bits: int, count: int) -> Words:
    """The words of a packed stream: uint32 (count,), each below 2**bits.

    Raises: BadPayload when the size is not that of `count` words, or a bit after the last word is set.
    """
    _check(bits)
    stream = np.frombuffer(data, dtype=np.uint8)
    if len(stream) != packed_bytes(count, bits):
        raise BadPayload(f"{count} words of {bits} bits take {packed_bytes(count, bits)} bytes, found {len(stream)}.")
    if count * bits % 8 and int(stream[-1]) >> count * bits % 8:
        raise BadPayload("Bits are set after the last word.")
    if bits in (16, 32):
        return stream.view(word_dtype(bits)).astype(np.uint32)
    group, lanes = _group(bits)
    words = np.empty(math.ceil(count / group) * group, dtype=np.uint32)
    for begin, end in _blocks(count, group):
        taken = stream[begin * bits // 8:packed_bytes(end, bits)]
        if missing := -len(taken) % (lanes * 8):
            taken = np.concatenate([taken, np.zeros(missing, dtype=np.uint8)])
        # A slice may begin anywhere in the caller's memory; lanes are read whole.
        _unpack_groups(np.ascontiguousarray(taken).view("<u8").reshape(-1, lanes), bits,
                       words[begin:begin + len(taken) * 8 // bits].reshape(-1, group))
    return words[:count]


def _check(bits: int) -> None:
    if not MIN_BITS <= bits <= MAX_BITS:
        raise ValueError(f"Words have {MIN_BITS} to {MAX_BITS} bits, not {bits}.")


def _group(bits: int) -> tuple[int, int]:
    """The fewest words that fill lanes of 64 bits, and how many lanes: 16 words of 20 bits fill 5."""
    common = math.gcd(bits, 64)
    return 64 // common, bits // common


def _blocks(count: int, group: int) -> Iterator[tuple[int, int]]:
    size = _BLOCK_WORDS // group * group
    return ((begin, min(begin + size, count)) for begin in range(0, count, size))


def _pack_groups(words_GW: Words, bits: int, lanes_GL: NDArray[np.uint64]) -> None:
    wide_WG = np.ascontiguousarray(words_GW.T).astype(np.uint64) & np.uint64((1 << bits) - 1)
    for lane in range(lanes_GL.shape[1]):
        lane_G = np.zeros(len(lanes_GL), dtype=np.uint64)
        for word in range(lane * 64 // bits, min(((lane + 1) * 64 - 1) // bits + 1, len(wide_WG))):
            shift = word * bits - lane * 64
            lane_G |= wide_WG[word] << np.uint64(shift) if shift >= 0 else wide_WG[word] >> np.uint64(-shift)
        lanes_GL[:, lane] = lane_G


def _unpack_groups(lanes_GL: NDArray[np.uint64], bits: int, words_GW: Words) -> None:
    lanes_LG = np.ascontiguousarray(lanes_GL.T)
    mask = np.uint64((1 << bits) - 1)
    for word in range(words_GW.shape[1]):
        lane, shift = divmod(word * bits, 64)
        word_G = lanes_LG[lane] >> np.uint64(shift)
        if shift + bits > 64:
            word_G |= lanes_LG[lane + 1] << np.uint64(64 - shift)
        words_GW[:, word] = word_G & mask
