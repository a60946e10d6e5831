"""Tensors to encode, and the way there and back, for every test of the codec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    Bits,
    BlockHeader,
    ElementType,
    Plan,
    decode_block,
    encode_blocks,
    parse_header,
)

FLOAT32 = ELEMENT_TYPES["float32"]


@dataclass(frozen=True)
class Trip:
    """A tensor that went through the codec."""

    bits: Bits
    headers: list[BlockHeader]

    @property
    def size_bytes(self) -> int:
        return sum(18 + header.body_bytes for header in self.headers)

    @property
    def index_bytes(self) -> int:
        return sum(header.index_bytes for header in self.headers)


def there_and_back(bits: Bits, kind: ElementType, plan: Plan, *, every_value: bool = False,
                   generator: np.random.Generator | None = None) -> Trip:
    """Encodes and decodes a tensor; what comes back has its shape."""
    out = np.zeros(bits.size, dtype=kind.bits)
    headers, start = [], 0
    for head, index, values in encode_blocks(bits, kind, plan, every_value=every_value, generator=generator):
        body = index + bytes(values)
        elements = min(BLOCK_ELEMENTS, bits.size - start)
        header = parse_header(head, elements=elements, remaining_bytes=len(body), kind=kind)
        assert header.body_bytes == len(body)
        decode_block(header, body, out[start:start + elements], kind=kind)
        headers.append(header)
        start += elements
    assert start == bits.size
    return Trip(out.reshape(bits.shape), headers)


def sparse_floats(elements: int, density: float, *, seed: int = 0, clustered: bool = False) -> NDArray[np.float32]:
    """Normal values, of which about that share is not zero; clustered ones come in runs."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal(elements) * 1e-3).astype("<f4")
    if clustered:
        level = np.repeat(random.random(-(-elements // 64)), 64)[:elements]
        values[random.random(elements) >= np.where(level < density * 2, 0.5, 0)] = 0
    else:
        values[random.random(elements) >= density] = 0
    return values


def entropy_bytes(elements: int, density: float) -> float:
    """n * H(density) / 8: what positions without structure take at least."""
    return -elements * (density * math.log2(density) + (1 - density) * math.log2(1 - density)) / 8


def float_bits(values: NDArray[Any]) -> Bits:
    return np.asarray(values, dtype="<f4").view("<u4")
