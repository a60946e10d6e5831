"""Elements as bit patterns: unsigned integers as wide as the element.

So NaN payloads, negative zeros and types that numpy lacks (bfloat16) pass bit for bit.

Tests: tests/common/payload/codec/test_values.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ELEMENT_TYPES", "Bits", "ElementType", "all_finite", "coded_kind", "exceeds"]

Bits = NDArray[Any]
"""Elements as unsigned integers of the element's width, little endian."""


_BITS: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
"""Made once: it is asked for with every tensor."""


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
        return _BITS[self.size_bytes]

    @property
    def is_float(self) -> bool:
        """Whether the top bit is a sign apart from the magnitude."""
        return self.exponent_mask != 0


ELEMENT_TYPES: dict[str, ElementType] = {kind.name: kind for kind in (
    ElementType("float32", 4, 0x7F80_0000),
    ElementType("float64", 8, 0x7FF0_0000_0000_0000),
    ElementType("float16", 2, 0x7C00),
    ElementType("bfloat16", 2, 0x7F80),
    ElementType("int64", 8),
    ElementType("int32", 4),
    ElementType("uint8", 1),
)}


def coded_kind(kind: ElementType) -> ElementType:
    """The type of what `subtract_bits` gives for tensors of `kind`: plain unsigned integers of the same width."""
    return replace(kind, name=f"coded {kind.name}", exponent_mask=0)


def all_finite(bits: Bits, kind: ElementType) -> bool:
    """Whether no element is an infinity or NaN; always true for integers.

    Args:
        bits: elements as unsigned integers, any shape.
        kind: their type.
    """
    if not kind.is_float:
        return True
    mask = bits.dtype.type(kind.exponent_mask)
    flat = bits.reshape(-1)
    return not any(bool(((flat[start:start + _SCAN_ELEMENTS] & mask) == mask).any())
                   for start in range(0, flat.size, _SCAN_ELEMENTS))


def exceeds(bits: Bits, kind: ElementType, limit: float) -> bool:
    """Whether the magnitude of any element is above a limit; infinities and NaN are. Never true for integers.

    Args:
        bits: elements as unsigned integers, any shape.
        kind: their type.
        limit: above 0. Of a type whose largest number is smaller only infinities and NaN exceed it.
    """
    if not kind.is_float:
        return False
    # Without their sign, floats are in the order of their bit patterns.
    most = min(_pattern(kind, limit), kind.exponent_mask - 1)
    magnitude = bits.dtype.type(2 ** (8 * kind.size_bytes - 1) - 1)
    flat = bits.reshape(-1)
    if flat.size <= _SCAN_ELEMENTS:  # most tensors of most networks
        return bool(flat.size) and int((flat & magnitude).max()) > most
    return any(int((flat[start:start + _SCAN_ELEMENTS] & magnitude).max()) > most
               for start in range(0, flat.size, _SCAN_ELEMENTS))


@lru_cache(maxsize=64)
def _pattern(kind: ElementType, value: float) -> int:
    """A positive number as the bits of a type, rounded; of one that is too large the infinity."""
    if kind.name == "bfloat16":
        return int(np.float32(value).view(np.uint32)) >> 16
    with np.errstate(over="ignore"):
        return int(np.array(value).astype(kind.name).view(f"u{kind.size_bytes}"))


_SCAN_ELEMENTS = 2**16
"""Elements looked at together, so that the scratch stays in the cache."""
