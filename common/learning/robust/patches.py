"""Views of images with a square patch somewhere: what a hidden trigger of that kind would answer to.

Shapes: N images of C channels, side S; V views.
Tests: tests/common/learning/robust/test_patches.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["FILLINGS", "GRID", "patched_views"]

GRID = 4
"""Patches have a quarter of the side, and lie on a grid of four by four."""
FILLINGS = ("bright", "dark", "noise")
"""What a patch is filled with; noise is black and white, drawn anew for every place."""


def patched_views(images_NCHW: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """The same images with a patch, one view after another: for every place each of `FILLINGS`.

    Args:
        images_NCHW: uint8, of any side from 4.
        generator: on the CPU; advanced.
    Yields: uint8 (N, C, H, W), new.
    """
    channels, height, width = images_NCHW.shape[1:]
    high, wide = height // GRID, width // GRID
    for row in range(GRID):
        for column in range(GRID):
            top, left = row * height // GRID, column * width // GRID
            for filling in FILLINGS:
                patch_CHW = torch.full((channels, high, wide), 255 if filling == "bright" else 0, dtype=torch.uint8)
                if filling == "noise":
                    patch_CHW = (255 * torch.randint(0, 2, (1, high, wide), generator=generator)).to(
                        torch.uint8).expand(channels, -1, -1)
                view_NCHW = images_NCHW.clone()
                view_NCHW[:, :, top:top + high, left:left + wide] = patch_CHW.to(view_NCHW.device)
                yield view_NCHW
