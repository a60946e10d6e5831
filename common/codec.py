"""Tensor elements <-> encoded blocks; one table entry per encoding.

A tensor is cut into blocks of at most 2^20 elements, each of which decodes alone. A block is a header of 18 bytes
(index tag, value tag, n, nnz, index bytes, value bytes; little endian), then the index bytes, which say *which*
elements carry a value, then the values in order. All other elements are zero: every bit of them, since -0.0 is a value.

Elements are handled as unsigned integers of the same width, so that NaN payloads and types that numpy lacks (bfloat16)
pass bit for bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import BadPayload

__all__ = [
    "BLOCK_ELEMENTS", "ELEMENT_TYPES", "HEADER_BYTES", "INDEX_CODECS", "VALUE_CODECS", "Bits", "BlockHeader",
    "ElementType", "IndexCodec", "IndexEncoding", "ValueCodec", "ValueEncoding", "all_finite", "block_count",
    "decode_block", "encode_blocks", "largest_encoded_bytes", "parse_header", "smallest_encoded_bytes",
]

BLOCK_ELEMENTS = 2**20
"""Most elements of a block: 4 MiB of float32, the scratch that decoding needs."""

Bits = NDArray[Any]
"""Elements as unsigned integers of the element's width."""
Positions = slice | NDArray[np.int64]
"""The elements of a block that carry a value, in increasing order."""

_HEADER = struct.Struct("<BBIIII")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class ElementType:
    """How an element of one type lies in memory."""

    name: str
    """As numpy and torch spell it."""
    size_bytes: int
    exponent_mask: int = 0
    """Bits that are all one in infinities and NaN; 0 for integers."""

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer of the same width, little endian."""
        return np.dtype(f"<u{self.size_bytes}")


ELEMENT_TYPES: dict[str, ElementType] = {kind.name: kind for kind in (
    ElementType("float32", 4, 0x7F80_0000),
    ElementType("float64", 8, 0x7FF0_0000_0000_0000),
    ElementType("float16", 2, 0x7C00),
    ElementType("bfloat16", 2, 0x7F80),
    ElementType("int64", 8),
    ElementType("int32", 4),
    ElementType("uint8", 1),
)}


class IndexEncoding(IntEnum):
    """How a block says which elements carry a value. 0 is never valid."""

    EMPTY = 1
    """None does: every bit of the block is zero. 0 bytes."""
    DENSE = 2
    """All do. 0 bytes."""


class ValueEncoding(IntEnum):
    """How the values of a block are written. 0 is never valid."""

    RAW = 1
    """As they lie in memory, little endian."""


@dataclass(frozen=True, slots=True)
class IndexCodec:
    """One way to write positions."""

    encode: Callable[[Bits], tuple[bytes, Positions] | None]
    """From the bits (n,) of a block to index bytes and positions; None where this form does not fit the block."""
    decode: Callable[[memoryview, int, int], Positions]
    """From (index bytes, n, nnz) to exactly nnz increasing positions below n. Raises BadPayload."""
    bound: Callable[[int, int], int]
    """Most index bytes that n elements with nnz values can take; -1 where that nnz is impossible."""
    lists_values: bool
    """Whether an element without a value can exist, so that a group with meaning OVERWRITE keeps it."""


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """One way to write values. Lossless."""

    encode: Callable[[Bits], memoryview]
    """From bits (nnz,) to bytes."""
    decode: Callable[[memoryview, int, ElementType], Bits]
    """From (value bytes, nnz, type) to bits (nnz,). Raises BadPayload."""
    bound: Callable[[int, int], int]
    """Most value bytes that (nnz, size of an element) can take."""


def _encode_empty(bits: Bits) -> tuple[bytes, Positions] | None:
    return None if bits.any() else (b"", slice(0, 0))


def _encode_dense(bits: Bits) -> tuple[bytes, Positions]:
    return b"", slice(0, len(bits))


def _encode_raw(bits: Bits) -> memoryview:
    return np.ascontiguousarray(bits).view(np.uint8).data


def _decode_raw(data: memoryview, count: int, kind: ElementType) -> Bits:
    if len(data) != count * kind.size_bytes:
        raise BadPayload(f"{count} raw values of {kind.name} take {count * kind.size_bytes} bytes, not {len(data)}.")
    return np.frombuffer(data, dtype=kind.bits, count=count)


INDEX_CODECS: dict[IndexEncoding, IndexCodec] = {
    IndexEncoding.EMPTY: IndexCodec(
        encode=_encode_empty, decode=lambda data, n, nnz: slice(0, 0),
        bound=lambda n, nnz: 0 if nnz == 0 else -1, lists_values=True),
    IndexEncoding.DENSE: IndexCodec(
        encode=_encode_dense, decode=lambda data, n, nnz: slice(0, n),
        bound=lambda n, nnz: 0 if nnz == n else -1, lists_values=False),
}
VALUE_CODECS: dict[ValueEncoding, ValueCodec] = {
    ValueEncoding.RAW: ValueCodec(
        encode=_encode_raw, decode=_decode_raw, bound=lambda count, size: count * size),
}

if set(INDEX_CODECS) != set(IndexEncoding) or set(VALUE_CODECS) != set(ValueEncoding):
    raise RuntimeError("Every encoding needs one entry in INDEX_CODECS or VALUE_CODECS.")


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The checked header of a block."""

    index: IndexEncoding
    value: ValueEncoding
    elements: int
    """n, 1 to 2^20."""
    values: int
    """nnz, 0 to n."""
    index_bytes: int
    value_bytes: int

    @property
    def body_bytes(self) -> int:
        """Bytes that follow the header."""
        return self.index_bytes + self.value_bytes


def block_count(elements: int) -> int:
    """Blocks of a tensor; 0 for one without elements."""
    return -(-elements // BLOCK_ELEMENTS)


def smallest_encoded_bytes(elements: int) -> int:
    """Least bytes that a tensor of that many elements takes: its headers."""
    return block_count(elements) * HEADER_BYTES


def largest_encoded_bytes(elements: int, size_bytes: int) -> int:
    """Most bytes that a tensor takes: the encoder never chooses more than all values as they are."""
    return block_count(elements) * HEADER_BYTES + elements * size_bytes


def encode_blocks(bits: Bits, *, every_value: bool = False) -> Iterator[tuple[bytes, bytes, memoryview]]:
    """Encodes a tensor, block by block, in the smallest form that fits.

    Args:
        bits: elements as unsigned integers, any shape; little endian and contiguous in row order.
        every_value: only forms in which every element carries a value, as a group with meaning OVERWRITE needs: there
            an element without a value is kept, not zero.
    Yields: (header, index bytes, value bytes) of each block. The values may be a view of `bits`.
    """
    flat = bits.reshape(-1)
    for start in range(0, flat.size, BLOCK_ELEMENTS):
        yield _encode_block(flat[start:start + BLOCK_ELEMENTS], every_value)


def _encode_block(bits: Bits, every_value: bool) -> tuple[bytes, bytes, memoryview]:
    best: tuple[bytes, bytes, memoryview] | None = None
    for index, index_codec in INDEX_CODECS.items():
        if every_value and index_codec.lists_values:
            continue
        found = index_codec.encode(bits)
        if found is None:
            continue
        index_bytes, positions = found
        chosen = bits[positions]
        for value, value_codec in VALUE_CODECS.items():
            value_bytes = value_codec.encode(chosen)
            if best is None or len(index_bytes) + len(value_bytes) < len(best[1]) + len(best[2]):
                header = _HEADER.pack(index, value, len(bits), len(chosen), len(index_bytes), len(value_bytes))
                best = header, index_bytes, value_bytes
    assert best is not None, "DENSE fits every block"
    return best


def parse_header(data: bytes, *, elements: int, remaining_bytes: int, kind: ElementType) -> BlockHeader:
    """Checks the 18 bytes in front of a block before anything else is read.

    Args:
        data: what the file has at this place, at most 18 bytes.
        elements: how many elements the block must have.
        remaining_bytes: bytes of the group after this header.
        kind: type of the elements.
    Raises: BadPayload.
    """
    if len(data) != HEADER_BYTES:
        raise BadPayload(f"A block header has {HEADER_BYTES} bytes, but only {len(data)} are left.")
    index_tag, value_tag, n, nnz, index_bytes, value_bytes = _HEADER.unpack(data)
    try:
        index, value = IndexEncoding(index_tag), ValueEncoding(value_tag)
    except ValueError:
        raise BadPayload(f"A block has the unknown encoding {index_tag}/{value_tag}.",
                         remedy="The sender may be newer; update this side.") from None
    if n != elements:
        raise BadPayload(f"A block has {n} elements where {elements} belong.")
    if nnz > n:
        raise BadPayload(f"A block has {nnz} values for {n} elements.")
    bound = INDEX_CODECS[index].bound(n, nnz)
    if bound < 0:
        raise BadPayload(f"A block of {n} elements in the form {index.name} cannot have {nnz} values.")
    if index_bytes > bound:
        raise BadPayload(f"A block has {index_bytes} index bytes; {index.name} takes at most {bound}.")
    if value_bytes > (bound := VALUE_CODECS[value].bound(nnz, kind.size_bytes)):
        raise BadPayload(f"A block has {value_bytes} value bytes; {value.name} takes at most {bound}.")
    if index_bytes + value_bytes > remaining_bytes:
        raise BadPayload(f"A block of {index_bytes + value_bytes} bytes does not fit into the {remaining_bytes} left.")
    return BlockHeader(index, value, n, nnz, index_bytes, value_bytes)


def decode_block(header: BlockHeader, body: bytes, out: Bits, *, kind: ElementType) -> None:
    """Decodes one block.

    Args:
        header: from `parse_header`.
        body: the `header.body_bytes` bytes after it.
        out: (n,), zero in every bit; receives the elements.
        kind: type of the elements.
    Raises: BadPayload.
    """
    if len(body) != header.body_bytes:
        raise BadPayload(f"A block of {header.body_bytes} bytes ends after {len(body)}.")
    view = memoryview(body)
    positions = INDEX_CODECS[header.index].decode(view[:header.index_bytes], header.elements, header.values)
    out[positions] = VALUE_CODECS[header.value].decode(view[header.index_bytes:], header.values, kind)


def all_finite(bits: Bits, kind: ElementType) -> bool:
    """Whether no element is an infinity or NaN; always true for integers.

    Args:
        bits: elements as unsigned integers, any shape.
        kind: their type.
    """
    if kind.exponent_mask == 0:
        return True
    mask = bits.dtype.type(kind.exponent_mask)
    flat = bits.reshape(-1)
    return not any(bool(((flat[start:start + _SCAN_ELEMENTS] & mask) == mask).any())
                   for start in range(0, flat.size, _SCAN_ELEMENTS))


_SCAN_ELEMENTS = 2**16
"""Elements looked at together, so that the scratch stays in the cache."""
