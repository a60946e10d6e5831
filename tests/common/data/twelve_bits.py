"""A JPEG of 12 bits, made from scratch: the process "extended sequential" of ITU-T T.81, grey, blocks of one value."""

from __future__ import annotations

import struct

import numpy as np

__all__ = ["jpeg_of_12_bits"]

_CATEGORIES = 16


def jpeg_of_12_bits(values: np.ndarray) -> bytes:
    """A picture of 8 x 8 pixels for each of `values`, uint16 (R, C), 0 to 4095; exact.

    A block of one value v has the coefficient 8 (v - 2048) and no other (T.81 A.3.3); with a quantisation of 8 it is
    coded as v - 2048 less the block before (F.1.2.1). All Huffman codes of such differences have 5 bits here, the end
    of a block one.
    """
    rows, columns = values.shape
    out = bytearray(b"\xff\xd8")

    def segment(marker: int, data: bytes) -> None:
        out.extend(struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data)

    segment(0xDB, b"\x00" + bytes([8] * 64))
    segment(0xC1, struct.pack(">BHHB", 12, 8 * rows, 8 * columns, 1) + b"\x01\x11\x00")
    segment(0xC4, b"\x00" + bytes([0, 0, 0, 0, _CATEGORIES] + [0] * 11) + bytes(range(_CATEGORIES)))
    segment(0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\x00")
    segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
    bits, before = [], 0
    for value in (values.astype(int) - 2048).ravel().tolist():
        difference, before = value - before, value
        size = abs(difference).bit_length()
        bits.append(f"{size:05b}")
        if size:
            bits.append(f"{difference if difference > 0 else difference + 2**size - 1:0{size}b}")
        bits.append("0")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    out += bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8)).replace(b"\xff", b"\xff\x00")
    return bytes(out + b"\xff\xd9")
