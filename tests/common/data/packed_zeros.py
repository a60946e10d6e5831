"""Gigabytes of nothing in a small file, without the seconds that packing them takes."""

from __future__ import annotations

import zlib

__all__ = ["deflated_zeros"]


def deflated_zeros(mebibytes: int) -> bytes:
    """A whole stream of deflate that unpacks to so many mebibytes of zeros: one packed mebibyte over and over."""
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return packed * mebibytes + b"\x03\x00"
