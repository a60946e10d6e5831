"""Pictures of what was trained on beside what was found of it. They show images of the site and never leave it.

Shapes: N images, C channels, S side of the square.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

__all__ = ["write_pictures"]

_MOST = 8
"""Images of a picture: those that are shown best."""
_LEAST_SIDE = 96
"""Pixels of an image in it."""
_GAP = 4


def write_pictures(path: Path, originals_NCSS: Tensor, found_NCSS: Tensor, quality_N: Tensor) -> None:
    """Writes a PNG: above the images that come out best, below each the reconstruction that is nearest to it.

    Args:
        originals_NCSS, found_NCSS: 0 to 1, one for the other.
        quality_N: of each reconstruction; larger is better.
    """
    best = quality_N.argsort(descending=True)[:_MOST]
    rows = [_row(originals_NCSS[best]), _row(found_NCSS[best])]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    picture = np.concatenate([rows[0], np.full((_GAP, *rows[0].shape[1:]), 255, dtype=np.uint8), rows[1]])
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(path)


def _row(images_NCSS: Tensor) -> np.ndarray:
    """Images beside each other, uint8 (height, width, C), each pixel as a square."""
    factor = max(1, -(-_LEAST_SIDE // images_NCSS.shape[-1]))
    parts = []
    for image_CSS in images_NCSS:
        pixels = (image_CSS.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        parts.append(pixels.repeat(factor, axis=0).repeat(factor, axis=1))
        parts.append(np.full((parts[-1].shape[0], _GAP, pixels.shape[-1]), 255, dtype=np.uint8))
    return np.concatenate(parts[:-1], axis=1)
