"""What a JPEG or JPEG 2000 stream says of its own size, before a decoder takes memory for it.

A DICOM file declares rows, columns, colours and bits twice: in its tags, which are checked, and in the compressed
stream, which the decoder believes. Both must agree.

Tests: tests/common/data/test_hostile_files.py.
"""

from __future__ import annotations

import struct

__all__ = ["stream_bits", "stream_samples", "stream_shape", "stream_size"]

_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF, 0xF7})
"""Start-of-frame markers of JPEG, lossless and differential ones and that of JPEG-LS included."""
_BARE = frozenset({0x01, *range(0xD0, 0xD8), 0xD8})


def stream_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of the first picture; None where the stream does not begin as it must."""
    shape = stream_shape(data)
    return None if shape is None else shape[:2]


def stream_shape(data: bytes) -> tuple[int, int, int, int] | None:
    """(width, height, values of each pixel, bits of each value) of the first picture; None where the stream does not
    begin as it must, and for a JP2 file with a palette: it makes more values of a pixel than the stream says, for which
    a decoder may have no room."""
    try:
        if data[:2] == b"\xff\xd8":
            return _jpeg(data)
        if data[:4] == b"\xff\x4f\xff\x51":
            return _jpeg_2000(data)
        if data[4:8] == b"jP  ":
            return _boxed(data)
    except (struct.error, IndexError):
        pass
    return None


def stream_bits(data: bytes) -> int | None:
    """Bits of each value of a JPEG; None for anything else, and where it does not begin as it must."""
    try:
        start = _jpeg_frame(data) if data[:2] == b"\xff\xd8" else None
        return None if start is None else data[start]
    except (struct.error, IndexError):
        return None


def stream_samples(data: bytes) -> int | None:
    """Values of each pixel of a JPEG; None as `stream_bits`."""
    try:
        start = _jpeg_frame(data) if data[:2] == b"\xff\xd8" else None
        return None if start is None else data[start + 5]
    except (struct.error, IndexError):
        return None


def _jpeg(data: bytes) -> tuple[int, int, int, int] | None:
    start = _jpeg_frame(data)
    if start is None:
        return None
    bits, height, width, samples = struct.unpack_from(">BHHB", data, start)
    return width, height, samples, bits


def _jpeg_frame(data: bytes) -> int | None:
    """Where the first start of frame says its bits and its size: ITU-T T.81 B.1.1, B.2.2. Markers have a length, but
    for a few."""
    offset = 2
    while True:
        while data[offset] != 0xFF:
            return None
        while data[offset] == 0xFF:
            offset += 1
        marker = data[offset]
        offset += 1
        if marker in _BARE:
            continue
        length: int
        (length,) = struct.unpack_from(">H", data, offset)
        if marker in _FRAMES:
            return offset + 2
        if marker in (0xDA, 0xDE) or length < 2:  # the picture begins untold, or a hierarchy of larger ones
            return None
        offset += length


def _jpeg_2000(data: bytes) -> tuple[int, int, int, int] | None:
    """ITU-T T.800 A.5.1, the marker SIZ: reference grid less its offset; bits of the component that has most."""
    width, height, left, top = struct.unpack_from(">IIII", data, 8)
    samples: int
    (samples,) = struct.unpack_from(">H", data, 40)
    depths = data[42 : 42 + 3 * samples : 3]
    if not samples or len(depths) < samples:
        return None
    return width - left, height - top, samples, 1 + max(depth & 0x7F for depth in depths)


def _boxed(data: bytes) -> tuple[int, int, int, int] | None:
    """The boxes of a JP2 file (ITU-T T.800 I.4): the first "jp2c" holds the stream."""
    offset = 0
    while offset + 8 <= len(data):
        length: int
        length, kind = struct.unpack_from(">I4s", data, offset)
        if kind == b"jp2c":
            start = offset + (16 if length == 1 else 8)
            begins = data[start : start + 4] == b"\xff\x4f\xff\x51" and b"pclr" not in data[:start]
            return _jpeg_2000(data[start:]) if begins else None
        if length < 8:
            return None
        offset += length
    return None
