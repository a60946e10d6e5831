"""Numbers as byte planes: all lowest bytes, then all second ones, and so on, each compressed where that saves bytes.

The bytes of one significance share their statistics: the exponents of a tensor's floats lie close together and compress
to a third, while the lower bits of a mantissa are noise, which zstd finds out at 8 GB/s and which is then sent as it
is. A float's sign is rotated from the top to the bottom, so that the top plane is the exponent alone.

Layout: a byte whose bit k says that plane k is a zstd frame; the length of each frame, 2 bytes, or 4 where there
are more than 2^16 numbers; the planes, lowest first.

Tests: tests/common/payload/codec/test_values.py.
"""

from __future__ import annotations

import struct

import numpy as np

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec.elements import Bits, ElementType
from semisilo.common.payload.codec.zstd import compress, decompress

__all__ = ["decode_planes", "encode_planes"]

_SMALLEST_COMPRESSED = 32
"""Bytes of a plane below which a frame's own bytes outweigh what it saves."""


def encode_planes(bits: Bits, kind: ElementType, *, squeeze: bool = True) -> bytes:
    """Writes numbers as planes.

    Args:
        bits: (count,) unsigned integers.
        kind: their type; the sign of a float is rotated.
        squeeze: False leaves every plane as it is.
    Returns: at most 1 + count * size bytes.
    """
    turned = _sign_to_bottom(bits) if kind.is_float else bits
    length_format = _length_format(len(bits))
    planes: list[bytes | memoryview] = []
    lengths: list[int] = []
    compressed = 0
    for number in range(kind.size_bytes):
        plane: bytes | memoryview = (turned >> turned.dtype.type(8 * number)).astype(np.uint8).data
        if squeeze and len(plane) >= _SMALLEST_COMPRESSED:
            frame = compress(plane)
            if len(frame) + struct.calcsize(length_format) < len(plane):
                plane = frame
                lengths.append(len(frame))
                compressed |= 1 << number
        planes.append(plane)
    head = struct.pack(f"<B{len(lengths)}{length_format}", compressed, *lengths)
    return b"".join((head, *planes))


def decode_planes(data: memoryview, count: int, kind: ElementType) -> Bits:
    """Reads what `encode_planes` wrote.

    Args:
        data: all of it, and nothing else.
        count: how many numbers; at least 1.
        kind: their type.
    Returns: (count,) unsigned integers. Raises: BadPayload.
    """
    size = kind.size_bytes
    if not data or data[0] >> size:
        raise BadPayload(f"Byte planes of {kind.name} do not begin with their list of compressed planes.")
    compressed = [number for number in range(size) if data[0] >> number & 1]
    head = struct.Struct(f"<B{len(compressed)}{_length_format(count)}")
    start = head.size
    if len(data) < start:
        raise BadPayload("Byte planes end within their lengths.")
    lengths = [count] * size
    for number, length in zip(compressed, head.unpack_from(data)[1:], strict=True):
        lengths[number] = length
    if start + sum(lengths) != len(data):
        raise BadPayload(f"Byte planes should take {start + sum(lengths)} bytes, not {len(data)}.")
    numbers = np.zeros(count, dtype=kind.bits)
    end = len(data)
    for number in reversed(range(size)):  # from the top, so that each plane is shifted into its place on the way
        stored = data[end - lengths[number]:end]
        end -= lengths[number]
        plane = decompress(stored, count) if number in compressed else stored
        if number < size - 1:
            np.left_shift(numbers, 8, out=numbers)
        np.bitwise_or(numbers, np.frombuffer(plane, dtype=np.uint8), out=numbers)
    return _sign_to_top(numbers) if kind.is_float else numbers


def _length_format(count: int) -> str:
    """As `struct` spells it. A frame is shorter than the plane that it replaces."""
    return "H" if count <= 2**16 else "I"


def _sign_to_bottom(bits: Bits) -> Bits:
    turned: Bits = bits << bits.dtype.type(1)
    np.bitwise_or(turned, bits >> bits.dtype.type(bits.itemsize * 8 - 1), out=turned)
    return turned


def _sign_to_top(turned: Bits) -> Bits:
    bits: Bits = turned << turned.dtype.type(turned.itemsize * 8 - 1)
    np.bitwise_or(bits, turned >> turned.dtype.type(1), out=bits)
    return bits
