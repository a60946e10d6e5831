"""Blocks: at most 2^20 elements of a tensor that are written, checked and read alone.

A block is a header of 18 bytes (index tag, value tag, n, nnz, index bytes, value bytes; little endian), then the index
bytes, which say *which* elements carry a value, then the values in order. All other elements are zero: every bit of
them, since -0.0 is a value.

Tests: tests/common/payload/codec/test_codec.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec.choice import choose, worth_squeezing
from semisilo.common.payload.codec.elements import Bits, ElementType, all_finite
from semisilo.common.payload.codec.plan import Plan, ValueForm
from semisilo.common.payload.codec.positions import (
    COMPLEMENT,
    INDEX_CODECS,
    IndexEncoding,
    Mask,
    decode_positions,
    encode_mask,
    positions_of,
)
from semisilo.common.payload.codec.values import ValueEncoding, decode_values, encode_values, is_lossy_for

__all__ = [
    "BLOCK_ELEMENTS", "HEADER_BYTES", "BlockHeader", "block_count", "decode_block", "encode_blocks",
    "largest_encoded_bytes", "parse_header", "smallest_encoded_bytes",
]

BLOCK_ELEMENTS = 2**20
"""Most elements of a block: 4 MiB of float32, the scratch that decoding needs."""

_HEADER = struct.Struct("<BBIIII")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The checked header of a block."""

    index: IndexEncoding
    complement: bool
    """Whether the elements listed are those without a value."""
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

    @property
    def all_bytes(self) -> int:
        """Bytes of the block, header included."""
        return HEADER_BYTES + self.body_bytes


def block_count(elements: int) -> int:
    """Blocks of a tensor; 0 for one without elements."""
    return -(-elements // BLOCK_ELEMENTS)


def smallest_encoded_bytes(elements: int) -> int:
    """Least bytes that a tensor of that many elements takes: its headers."""
    return block_count(elements) * HEADER_BYTES


def largest_encoded_bytes(elements: int, size_bytes: int) -> int:
    """Most bytes that a tensor takes: the encoder never chooses more than all values as they are."""
    return block_count(elements) * HEADER_BYTES + elements * size_bytes


def encode_blocks(bits: Bits, kind: ElementType, plan: Plan = Plan(), *, every_value: bool = False,
                  generator: np.random.Generator | None = None) -> Iterator[tuple[bytes, bytes, memoryview]]:
    """Encodes a tensor, block by block.

    Args:
        bits: elements as unsigned integers, any shape; little endian.
        kind: their type.
        plan: in what form.
        every_value: only forms in which every element carries a value, as a group with meaning OVERWRITE needs that
            stands alone: there an element without a value is kept, not zero.
        generator: where stochastic rounding takes its numbers; one uniform float32 per value.
    Returns: an iterator over (header, index bytes, value bytes) of each block. The values may be a view of `bits`.
    Raises: BadPayload at once, for a lossy form of a tensor with an infinity or NaN; ValueError for stochastic rounding
        without a generator.
    """
    flat = bits.reshape(-1)
    if is_lossy_for(plan.values, kind) and not all_finite(flat, kind):
        raise BadPayload(f"A tensor with an infinity or NaN cannot be sent as {plan.values}.",
                         remedy="Look for a learning rate that is too high.")
    stochastic = plan.rounding == "stochastic" and plan.values in (ValueForm.INT8, ValueForm.INT4)
    if stochastic and generator is None:
        raise ValueError("Stochastic rounding needs a generator.")
    chance = generator if stochastic else None
    return (_encode_block(flat[start:start + BLOCK_ELEMENTS], kind, plan, every_value, chance)
            for start in range(0, flat.size, BLOCK_ELEMENTS))


def _encode_block(bits: Bits, kind: ElementType, plan: Plan, every_value: bool,
                  generator: np.random.Generator | None) -> tuple[bytes, bytes, memoryview]:
    if every_value:
        return _encode_dense(bits, kind, plan, generator)
    mask = bits != 0
    with_value = int(np.count_nonzero(mask))
    if with_value == 0:
        return _with_header(IndexEncoding.EMPTY, len(bits), 0, b"", (ValueEncoding.RAW, memoryview(b"")))
    choice = choose(bits, kind, plan, with_value)
    blocks = []
    if choice.sparse:
        blocks.append(_encode_sparse(bits, mask, choice.compact_index, kind, plan, generator))
    if choice.dense or _body_bytes(blocks[0]) >= bits.nbytes:
        blocks.append(_encode_dense(bits, kind, plan, generator))
    return min(blocks, key=_body_bytes)


def _encode_dense(bits: Bits, kind: ElementType, plan: Plan,
                  generator: np.random.Generator | None) -> tuple[bytes, bytes, memoryview]:
    values = encode_values(bits, kind, plan.values, squeeze=worth_squeezing(bits, kind, plan), generator=generator)
    return _with_header(IndexEncoding.DENSE, len(bits), len(bits), b"", values)


def _encode_sparse(bits: Bits, mask: Mask, compact_index: bool, kind: ElementType, plan: Plan,
                   generator: np.random.Generator | None) -> tuple[bytes, bytes, memoryview]:
    positions = positions_of(mask)
    tag, index = encode_mask(mask, positions, compact=compact_index)
    chosen = bits[positions]
    values = encode_values(chosen, kind, plan.values, squeeze=worth_squeezing(chosen, kind, plan), generator=generator)
    return _with_header(tag, len(bits), len(chosen), index, values)


def _with_header(tag: int, n: int, nnz: int, index: bytes,
                 values: tuple[ValueEncoding, memoryview]) -> tuple[bytes, bytes, memoryview]:
    encoding, data = values
    return _HEADER.pack(tag, encoding, n, nnz, len(index), len(data)), index, data


def _body_bytes(block: tuple[bytes, bytes, memoryview]) -> int:
    return len(block[1]) + len(block[2])


def parse_header(data: bytes, *, elements: int, remaining_bytes: int, kind: ElementType) -> BlockHeader:
    """Checks the 18 bytes in front of a block before anything else is read.

    Args:
        data: what the file has at this offset, at most 18 bytes.
        elements: how many elements the block must have.
        remaining_bytes: bytes of the group after this header.
        kind: type of the elements.
    Raises: BadPayload.
    """
    if len(data) != HEADER_BYTES:
        raise BadPayload(f"A block header has {HEADER_BYTES} bytes, but only {len(data)} are left.")
    index_tag, value_tag, n, nnz, index_bytes, value_bytes = _HEADER.unpack(data)
    complement = bool(index_tag & COMPLEMENT)
    try:
        index, value = IndexEncoding(index_tag & ~COMPLEMENT), ValueEncoding(value_tag)
    except ValueError:
        raise _unknown(index_tag, value_tag) from None
    if complement and not index.lists:
        raise _unknown(index_tag, value_tag)
    if n != elements:
        raise BadPayload(f"A block has {n} elements where {elements} belong.")
    if nnz > n:
        raise BadPayload(f"A block has {nnz} values for {n} elements.")
    if (index is IndexEncoding.EMPTY and nnz > 0) or (index is IndexEncoding.DENSE and nnz < n):
        raise BadPayload(f"A block of {n} elements in the form {index.name} cannot have {nnz} values.")
    if index_bytes > (bound := INDEX_CODECS[index].most_bytes(n)):
        raise BadPayload(f"A block has {index_bytes} index bytes; {index.name} takes at most {bound}.")
    if value_bytes > (bound := nnz * kind.size_bytes):
        raise BadPayload(f"A block has {value_bytes} value bytes; {nnz} values of {kind.name} take at most {bound}.")
    if value.lossy and kind.name != "float32":
        raise BadPayload(f"Values of {kind.name} come as {value.name}, which is for float32 only.")
    if index_bytes + value_bytes > remaining_bytes:
        raise BadPayload(f"A block of {index_bytes + value_bytes} bytes does not fit into the {remaining_bytes} left.")
    return BlockHeader(index, complement, value, n, nnz, index_bytes, value_bytes)


def _unknown(index_tag: int, value_tag: int) -> BadPayload:
    return BadPayload(f"A block has the unknown encoding {index_tag}/{value_tag}.",
                      remedy="The sender may be newer; update this side.")


def decode_block(header: BlockHeader, body: bytes | memoryview, out: Bits, *, kind: ElementType) -> None:
    """Decodes one block.

    Args:
        header: from `parse_header`.
        body: the `header.body_bytes` bytes after it.
        out: (n,), zero in every bit; receives the elements. What it holds after an error is undefined.
        kind: type of the elements.
    Raises: BadPayload.
    """
    if len(body) != header.body_bytes:
        raise BadPayload(f"A block of {header.body_bytes} bytes ends after {len(body)}.")
    view = memoryview(body)
    values = decode_values(header.value, view[header.index_bytes:], header.values, kind)
    out[decode_positions(header.index, header.complement, view[:header.index_bytes], header.elements,
                         header.values)] = values
