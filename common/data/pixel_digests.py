"""Digests of the pixels of images, to find the same image in two sets, whatever its files are called.

Tests: tests/common/data/test_pixel_digests.py.
"""

from __future__ import annotations

import hashlib

import numpy as np

from semisilo.common.data.image_set import ImageSet

__all__ = ["pixel_digests"]

_BLOCK = 256


def pixel_digests(images: ImageSet) -> list[bytes]:
    """A digest of the pixels of each image as it was read: equal for equal pixels."""
    found: list[bytes] = []
    for start in range(0, len(images), _BLOCK):  # they may be mapped from a disk
        block = np.ascontiguousarray(images.images_NCHW[start : start + _BLOCK].cpu().numpy())
        found.extend(hashlib.blake2b(image.data, digest_size=16).digest() for image in block)
    return found
