"""Which elements of a block carry a value <-> bytes.

A mask is (n,) bool. Forms that list positions write those of the rarer kind: of the elements with a value, or, with the
complement bit in the tag, of those without. A listed position is written as the gap before it: the number of elements
since the one listed before. A sum of gaps cannot be out of order or name an element twice, so only its end is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec.zstd import compress, content_size, decompress

__all__ = [
    "COMPLEMENT", "INDEX_CODECS", "IndexCodec", "IndexEncoding", "Mask", "Positions", "decode_positions",
    "encode_mask", "positions_of",
]

Mask = NDArray[np.bool_]
Positions = slice | NDArray[np.int64]
"""Elements of a block, in increasing order."""
_Gaps = NDArray[np.int64]
_Classes = NDArray[np.uint8]

COMPLEMENT = 0x80
"""Bit of an index tag: the elements listed are those without a value."""
_SKIP = 255
"""A byte of a gap stream that lists nothing and adds 255 to the gap."""
_LARGEST_SHIFT = 20
"""A gap is below 2^20."""
_LIST_BELOW = 0.45
"""Share of listed elements from which on a bitmask is smaller than gaps."""
_COMPRESS_MASK_ABOVE = 0.08
"""Share of listed elements below which gaps are smaller than a compressed bitmask."""
_SMALLEST_COMPRESSED = 64
"""Bytes of a bitmask below which zstd is not tried."""
_CLASSES_BELOW = 0.06
"""Share of listed elements from which on classes save too little for what reading them takes."""
_KEPT = 2
"""Bits behind the leading one that a class tells."""
_LARGEST_CLASS = (20 - _KEPT << _KEPT) + 3
"""A gap is below 2^20, and with 2^`_KEPT` added below 2^21."""
_SHIFT_OF_CLASS = np.arange(_LARGEST_CLASS + 1, dtype=np.uint8) >> _KEPT
"""Low bits of the gaps of each class."""
_GAP_OF_CLASS = (((np.arange(_LARGEST_CLASS + 1) & (1 << _KEPT) - 1) + (1 << _KEPT)) << _SHIFT_OF_CLASS) - (1 << _KEPT)
"""The smallest gap of each class."""
_LENGTH = struct.Struct("<I")


class IndexEncoding(IntEnum):
    """How a block says which elements carry a value. 0 is never valid."""

    EMPTY = 1
    """None does: every bit of the block is zero. 0 bytes."""
    DENSE = 2
    """All do. 0 bytes."""
    BITMASK = 3
    """A bit for each element, the first in the top bit of the first byte."""
    ZSTD_BITMASK = 4
    """The same, compressed."""
    ZSTD_GAPS = 5
    """A byte for each gap, after a 255 for each 255 of it; compressed. For clustered positions."""
    RICE = 6
    """Quotient and remainder of each gap by 2^k. For positions without structure.

    k, 1 byte; the k bit planes of the remainders, lowest first, each in whole bytes; the quotients in unary: as many
    zeros, then a one.
    """
    CLASSES = 7
    """The class of each gap, compressed, and its low bits as they are. For few positions, clustered or not.

    With 4 added, a gap is a number of at least three bits. The top three bits and the number s of bits below them make
    its class, 4 s + (top three bits) - 4; the s low bits tell it from the others of its class. Layout: the length of
    the frame, 4 bytes; a zstd frame with a byte for each class; the low bits of all gaps, one gap after the other, each
    from its lowest bit, packed from the lowest bit of each byte.
    """

    @property
    def lists(self) -> bool:
        """Whether it lists positions, and so has a complement."""
        return self >= IndexEncoding.ZSTD_GAPS


@dataclass(frozen=True, slots=True)
class IndexCodec:
    """How one form is read."""

    decode: Callable[[memoryview, int, int], Positions]
    """From (index bytes, n, listed) to the positions listed. Raises BadPayload."""
    most_bytes: Callable[[int], int]
    """Most index bytes that n elements can take."""


def encode_mask(mask: Mask, positions: NDArray[np.int64], *, compact: bool) -> tuple[int, bytes]:
    """Writes a mask in the smallest form.

    Args:
        mask: (n,), of which some are True and some are not.
        positions: those that are True.
        compact: False takes the bitmask as it is.
    Returns: the index tag, and the index bytes: at most those of a bitmask.
    """
    n = len(mask)
    tag, data = int(IndexEncoding.BITMASK), np.packbits(mask).tobytes()
    if not compact:
        return tag, data
    complement = COMPLEMENT if 2 * len(positions) > n else 0
    share = min(len(positions), n - len(positions)) / n
    worth_zstd = len(data) >= _SMALLEST_COMPRESSED
    if worth_zstd and share > _COMPRESS_MASK_ABOVE:
        frame = compress(data)
        if len(frame) < len(data):
            tag, data = int(IndexEncoding.ZSTD_BITMASK), frame
    if share < _LIST_BELOW:
        gaps = _gaps_of(positions_of(~mask) if complement else positions)
        shift, rice_bytes = _rice_size(gaps)
        smallest = min(len(data), rice_bytes)
        if worth_zstd:
            frame = _encode_gaps(gaps)
            if len(frame) < smallest:
                tag, data, smallest = IndexEncoding.ZSTD_GAPS | complement, frame, len(frame)
            if share < _CLASSES_BELOW:
                classes = _classes_of(gaps)
                frame = compress(classes.data)
                if _classes_bytes(classes, frame) < smallest:
                    return IndexEncoding.CLASSES | complement, _encode_classes(gaps, classes, frame)
        if rice_bytes < len(data):
            return IndexEncoding.RICE | complement, _encode_rice(gaps, shift)
    return tag, data


def decode_positions(encoding: IndexEncoding, complement: bool, data: memoryview, n: int, with_value: int) -> Positions:
    """Reads which elements carry a value.

    Args:
        encoding: its form.
        complement: whether the elements listed are those without a value.
        data: the index bytes.
        n: elements of the block, at most 2^20.
        with_value: how many carry a value, 0 to n.
    Returns: exactly `with_value` positions below n, in increasing order. Raises: BadPayload.
    """
    listed = n - with_value if complement else with_value
    positions = INDEX_CODECS[encoding].decode(data, n, listed)
    if not complement:
        return positions
    rest = np.ones(n, dtype=np.bool_)
    rest[positions] = False
    return positions_of(rest)


def positions_of(mask: Mask) -> NDArray[np.int64]:
    """The positions (count,) that are True."""
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def _decode_bitmask(data: memoryview, n: int, listed: int) -> Positions:
    if len(data) != -(-n // 8):
        raise BadPayload(f"A bitmask of {n} elements takes {-(-n // 8)} bytes, not {len(data)}.")
    mask = np.unpackbits(np.frombuffer(data, dtype=np.uint8)).view(np.bool_)
    positions = positions_of(mask)
    if len(positions) != listed or (listed and positions[-1] >= n):
        raise BadPayload(f"A bitmask does not name the {listed} of {n} elements that it should.")
    return positions


def _decode_zstd_bitmask(data: memoryview, n: int, listed: int) -> Positions:
    return _decode_bitmask(memoryview(decompress(data, -(-n // 8))), n, listed)


def _gaps_of(positions: NDArray[np.int64]) -> _Gaps:
    gaps: _Gaps = np.diff(positions, prepend=-1)
    gaps -= 1
    return gaps


def _positions_after(gaps: _Gaps, n: int) -> Positions:
    """Undoes `_gaps_of`. Raises: BadPayload when a position is not below n."""
    positions = np.cumsum(gaps + 1)
    positions -= 1
    if len(positions) and positions[-1] >= n:
        raise BadPayload(f"A position is beyond the {n} elements of its block.")
    return positions


def _encode_gaps(gaps: _Gaps) -> bytes:
    skips = gaps // _SKIP
    if not skips.any():
        return compress(gaps.astype(np.uint8).data)
    ends = np.cumsum(skips + 1) - 1
    stream = np.full(int(ends[-1]) + 1, _SKIP, dtype=np.uint8)
    stream[ends] = gaps - _SKIP * skips
    return compress(stream.data)


def _decode_gaps(data: memoryview, n: int, listed: int) -> Positions:
    size = content_size(data)
    if not 0 < listed <= size <= listed + n // _SKIP:
        raise BadPayload(f"The gaps of {listed} positions among {n} elements do not take {size} bytes.")
    stream = np.frombuffer(decompress(data, size), dtype=np.uint8)
    if size == listed and not (stream == _SKIP).any():
        return _positions_after(stream.astype(np.int64), n)
    ends = np.flatnonzero(stream != _SKIP)
    if len(ends) != listed or ends[-1] != size - 1:
        raise BadPayload(f"A gap stream does not list the {listed} positions that it should.")
    before = np.cumsum(stream, dtype=np.int64)[ends]
    return _positions_after(np.diff(before, prepend=0), n)


def _rice_size(gaps: _Gaps) -> tuple[int, int]:
    """The best k, and the index bytes that it gives."""
    mean = float(gaps.mean())
    # For gaps without structure 2^k is near ln 2 times their mean.
    guess = max(0, int(np.log2(max(1.0, mean * 0.69))))
    return min(((shift, _rice_bytes(len(gaps), int((gaps >> shift).sum()) + len(gaps), shift))
                for shift in range(max(0, guess - 1), min(guess + 2, _LARGEST_SHIFT + 1))), key=lambda pair: pair[1])


def _rice_bytes(listed: int, unary_bits: int, shift: int) -> int:
    return 1 + shift * -(-listed // 8) + -(-unary_bits // 8)


def _encode_rice(gaps: _Gaps, shift: int) -> bytes:
    planes = np.packbits((gaps >> np.arange(shift)[:, None] & 1).astype(np.bool_), axis=1)
    ends = np.cumsum((gaps >> shift) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, dtype=np.bool_)
    unary[ends] = True
    return bytes((shift,)) + planes.tobytes() + np.packbits(unary).tobytes()


def _decode_rice(data: memoryview, n: int, listed: int) -> Positions:
    if not data or listed == 0 or data[0] > _LARGEST_SHIFT:
        raise BadPayload("A Rice stream does not begin with a k that can be.")
    shift, plane_bytes = data[0], -(-listed // 8)
    start = 1 + shift * plane_bytes
    if len(data) < start or len(data) - start > -(-((n >> shift) + listed) // 8):
        raise BadPayload(f"A Rice stream of {listed} positions with k = {shift} does not take {len(data)} bytes.")
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(data[start:], dtype=np.uint8)).view(np.bool_))
    if len(ends) != listed or ends[-1] // 8 != len(data) - start - 1:
        raise BadPayload(f"A Rice stream does not list the {listed} positions that it should.")
    gaps = np.diff(ends, prepend=-1) - 1 << shift
    if shift:
        planes = np.frombuffer(data[1:start], dtype=np.uint8).reshape(shift, plane_bytes)
        for number, plane in enumerate(np.unpackbits(planes, axis=1, count=listed)):
            gaps |= plane.astype(np.int64) << number
    return _positions_after(gaps, n)


def _classes_of(gaps: _Gaps) -> _Classes:
    """A float32 holds the leading one of a gap as its exponent, and then the bits behind it."""
    patterns = (gaps + (1 << _KEPT)).astype(np.float32).view(np.uint32)
    classes: _Classes = ((patterns >> np.uint32(23 - _KEPT)) - np.uint32(127 + _KEPT << _KEPT)).astype(np.uint8)
    return classes


def _classes_bytes(classes: _Classes, frame: bytes) -> int:
    return _LENGTH.size + len(frame) + -(-int(_SHIFT_OF_CLASS[classes].sum(dtype=np.int64)) // 8)


def _encode_classes(gaps: _Gaps, classes: _Classes, frame: bytes) -> bytes:
    counts = _SHIFT_OF_CLASS[classes]
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - counts
    # The low bits of a gap lie within four bytes from the one that they begin in. None overlap: a sum unites them.
    fours = np.bincount(starts >> 3, weights=gaps - _GAP_OF_CLASS[classes] << (starts & 7)).astype(np.uint32)
    low = np.zeros(len(fours) + 3, dtype=np.uint8)
    for byte in range(4):
        low[byte:byte + len(fours)] |= (fours >> np.uint32(8 * byte)).astype(np.uint8)
    return _LENGTH.pack(len(frame)) + frame + low[:-(-int(ends[-1]) // 8)].tobytes()


def _decode_classes(data: memoryview, n: int, listed: int) -> Positions:
    if len(data) < _LENGTH.size or listed == 0:
        raise BadPayload("A list of classes ends within its length, or lists nothing.")
    middle = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    classes = np.frombuffer(decompress(data[_LENGTH.size:middle], listed), dtype=np.uint8)
    if classes.max() > _LARGEST_CLASS:
        raise BadPayload(f"A gap has a class above {_LARGEST_CLASS}.")
    counts = _SHIFT_OF_CLASS[classes]
    ends = np.cumsum(counts, dtype=np.int64)
    low = bytes(data[middle:])
    if len(low) != -(-int(ends[-1]) // 8):
        raise BadPayload(f"The low bits of {listed} gaps take {-(-int(ends[-1]) // 8)} bytes, not {len(low)}.")
    # At most 18 low bits, behind at most 7 others in their first byte.
    fours = np.ndarray((len(low) + 1,), dtype="<u4", buffer=low + bytes(4), strides=(1,))
    starts = ends - counts
    bits = fours[starts >> 3] >> (starts & 7).astype(np.uint32)
    bits &= (np.uint32(1) << counts) - np.uint32(1)
    return _positions_after(_GAP_OF_CLASS[classes] + bits, n)


INDEX_CODECS: dict[IndexEncoding, IndexCodec] = {
    IndexEncoding.EMPTY: IndexCodec(lambda data, n, listed: slice(0, 0), lambda n: 0),
    IndexEncoding.DENSE: IndexCodec(lambda data, n, listed: slice(0, n), lambda n: 0),
    IndexEncoding.BITMASK: IndexCodec(_decode_bitmask, lambda n: -(-n // 8)),
    IndexEncoding.ZSTD_BITMASK: IndexCodec(_decode_zstd_bitmask, lambda n: -(-n // 8)),
    IndexEncoding.ZSTD_GAPS: IndexCodec(_decode_gaps, lambda n: -(-n // 8)),
    IndexEncoding.RICE: IndexCodec(_decode_rice, lambda n: -(-n // 8)),
    IndexEncoding.CLASSES: IndexCodec(_decode_classes, lambda n: -(-n // 8)),
}

if set(INDEX_CODECS) != set(IndexEncoding):
    raise RuntimeError("Every index encoding needs its codec.")
