"""Values with fewer bits, for float32: bfloat16, and 8- or 4-bit codes with one scale for each few values.

The decoder defines what such a value is: code * scale in float32, the same on every machine. The encoder takes finite
values only, and the decoder gives finite values only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec.elements import ELEMENT_TYPES, Bits, all_finite
from semisilo.common.payload.codec.planes import decode_planes, encode_planes

__all__ = ["INT4", "INT8", "ScaledCodes", "decode_bf16", "encode_bf16"]

_BFLOAT16 = ELEMENT_TYPES["bfloat16"]
_UINT8 = ELEMENT_TYPES["uint8"]
_LARGEST_BFLOAT16 = 0x7F7F
_SMALLEST_SCALE = 1e-30
"""Smaller scales count as 0: the inverse of a subnormal one is infinite."""
_LENGTH = struct.Struct("<I")


def encode_bf16(bits: Bits, *, squeeze: bool = True) -> bytes:
    """Finite float32 patterns (count,), each rounded to the nearest bfloat16, ties to even, as byte planes.

    What would round to infinity becomes the largest bfloat16.
    """
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")
    magnitude = np.minimum(rounded & np.uint16(0x7FFF), np.uint16(_LARGEST_BFLOAT16))
    return encode_planes((rounded & np.uint16(0x8000)) | magnitude, _BFLOAT16, squeeze=squeeze)


def decode_bf16(data: memoryview, count: int) -> Bits:
    """The float32 patterns (count,) of bfloat16 planes. Raises: BadPayload, also for an infinity or NaN."""
    halves = decode_planes(data, count, _BFLOAT16)
    if not all_finite(halves, _BFLOAT16):
        raise BadPayload("A value sent as bfloat16 is an infinity or NaN.")
    return halves.astype("<u4") << np.uint32(16)


@dataclass(frozen=True, slots=True)
class ScaledCodes:
    """A value is code * scale: a small integer times the scale that it shares with its neighbours.

    The scale is the largest magnitude of the group over the largest code, rounded up to a bfloat16 so that no value is
    cut. Layout: the length of the scales, 4 bytes; the scales and the codes, each as byte planes. A code c is written
    as c + `offset`, which is never 0.
    """

    name: str
    group: int
    """Values that share a scale."""
    levels: int
    """The largest code."""
    packed: bool
    """Two codes in a byte, the first in its lower half."""

    @property
    def offset(self) -> int:
        """What is added to a code so that none is negative."""
        return self.levels + 1

    @property
    def largest_scale(self) -> np.float32:
        """The largest bfloat16 that, times the largest code, is finite."""
        limit = np.array(np.finfo(np.float32).max / self.levels, dtype="<f4")
        return np.float32(float((limit.view("<u4") & np.uint32(0xFFFF_0000)).view("<f4")))

    def encode(self, bits: Bits, generator: np.random.Generator | None, *, squeeze: bool = True) -> bytes:
        """Writes finite float32 patterns (count,).

        Args:
            bits: the patterns.
            generator: for stochastic rounding; None rounds to the nearest, ties to even.
            squeeze: False leaves scales and codes uncompressed.
        """
        grouped = np.zeros((-(-len(bits) // self.group), self.group), dtype="<f4")
        grouped.reshape(-1)[:len(bits)] = bits.view("<f4")
        scales = self._scales(np.abs(grouped).max(axis=1))
        inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
        exact = (grouped * inverse[:, None]).reshape(-1)[:len(bits)]
        rounded = np.rint(exact) if generator is None else np.floor(
            exact + generator.random(len(bits), dtype=np.float32))
        codes = (np.clip(rounded, -self.levels, self.levels) + np.float32(self.offset)).astype(np.uint8)
        if self.packed:
            codes = np.append(codes, np.uint8(self.offset)) if len(codes) % 2 else codes
            codes = codes[::2] | codes[1::2] << np.uint8(4)
        halves = (scales.view("<u4") >> np.uint32(16)).astype("<u2")
        head = encode_planes(halves, _BFLOAT16, squeeze=squeeze)
        return _LENGTH.pack(len(head)) + head + encode_planes(codes, _UINT8, squeeze=squeeze)

    def decode(self, data: memoryview, count: int) -> Bits:
        """The float32 patterns (count,) of what `encode` wrote, count at least 1. Raises: BadPayload."""
        if len(data) < _LENGTH.size:
            raise BadPayload(f"Values sent as {self.name} end within the length of their scales.")
        middle = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        halves = decode_planes(data[_LENGTH.size:middle], -(-count // self.group), _BFLOAT16)
        scales = (halves.astype("<u4") << np.uint32(16)).view("<f4")
        # A NaN fails every comparison; the sign bit also tells -0.0, which no encoder writes.
        if (halves >> np.uint16(15)).any() or not (scales <= self.largest_scale).all():
            raise BadPayload(f"A scale of values sent as {self.name} is negative, not a number or too large.")
        codes = decode_planes(data[middle:], -(-count // 2) if self.packed else count, _UINT8)
        if self.packed:
            codes = np.stack((codes & np.uint8(15), codes >> np.uint8(4)), axis=1).reshape(-1)[:count]
        if not codes.all():
            raise BadPayload(f"A code of values sent as {self.name} is out of range.")
        values = codes.astype("<f4") - np.float32(self.offset)
        values *= np.repeat(scales, self.group)[:count]
        patterns: Bits = values.view("<u4")
        return patterns

    def _scales(self, largest: NDArray[Any]) -> NDArray[Any]:
        """From the largest magnitude of each group (groups,) to float32 scales with 16 zero bits at the bottom."""
        scales = largest / np.float32(self.levels)
        up = (scales.view("<u4") + np.uint32(0xFFFF)) & np.uint32(0xFFFF_0000)
        bounded: NDArray[Any] = np.minimum(up.view("<f4"), self.largest_scale)
        bounded[bounded < _SMALLEST_SCALE] = 0
        return bounded


INT8 = ScaledCodes("int8", group=256, levels=127, packed=False)
INT4 = ScaledCodes("int4", group=64, levels=7, packed=True)
