"""Digests of the pixels of images, to find the same image in two sets, whatever its files are called.

Tests: tests/common/data/test_pixel_digests.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from semisilo.common.data.image_set import ImageSet

__all__ = ["pixel_digests", "telling_digests"]

_BLOCK = 256


def pixel_digests(images: ImageSet) -> list[bytes]:
    """A digest of the pixels of each image as it was read: equal for equal pixels."""
    found: list[bytes] = []
    for start in range(0, len(images), _BLOCK):  # they may be mapped from a disk
        block = np.ascontiguousarray(images.images_NCHW[start : start + _BLOCK].cpu().numpy())
        found.extend(hashlib.blake2b(image.data, digest_size=16).digest() for image in block)
    return found


def telling_digests(images: ImageSet, digests: Sequence[bytes]) -> list[bytes]:
    """The same digests, b"" for every plain image: one of a single value or colour, such as a slice beside the body,
    which says nothing of which image it is.

    Args:
        digests: `pixel_digests` of the images.
    """
    found: list[bytes] = []
    for start in range(0, len(images), _BLOCK):
        pixels_BCP = images.images_NCHW[start : start + _BLOCK].flatten(2)
        plain_B = (pixels_BCP == pixels_BCP[:, :, :1]).all(dim=2).all(dim=1).tolist()
        found.extend(b"" if plain else digest
                     for plain, digest in zip(plain_B, digests[start : start + _BLOCK], strict=True))
    return found
