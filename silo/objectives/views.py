"""Augmented views of the images of many steps at once: augmenting many costs hardly more than augmenting ten.

Shapes: N images of a set, B of one step, C channels, H x W pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings
from semisilo.common.learning.training import view_block_images

__all__ = ["View", "view_of", "viewed"]

View = Literal["original", "weak", "strong"]


def view_of(view: View, images_BCHW: Tensor, augmentation: AugmentationSettings, generator: torch.Generator) -> Tensor:
    """One view of each image, uint8, on its device; "original" draws nothing."""
    if view == "original":
        return images_BCHW
    return (augment.weak if view == "weak" else augment.strong)(images_BCHW, augmentation, generator)


def viewed(images_NCHW: Tensor, batches: Iterable[Tensor], views: tuple[View, ...], *, batch: int,
           augmentation: AugmentationSettings, generator: torch.Generator, device: str
           ) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """For every step its indices and the views of its images.

    Args:
        images_NCHW: uint8, on the CPU.
        batches: indices into the images, int64 (B,); B may differ and be 0.
        views: at least one, with one result each; the same view twice gives two independent draws.
        batch: the usual B; with the images' size it fixes how many steps are augmented at once, hence the order of
            draws.
        generator: advanced; on the CPU, so that every device sees the same views.
    Returns: (index_B, one uint8 tensor (B, C, H, W) per view on `device`).
    """
    together = max(1, view_block_images(images_NCHW, max(batch, 1)) // max(batch, 1))
    steps = iter(batches)
    while block := list(itertools.islice(steps, together)):
        images_BCHW = images_NCHW[torch.cat(block)].to(device)
        lengths = [len(index_B) for index_B in block]
        parts = [torch.split(view_of(view, images_BCHW, augmentation, generator), lengths) for view in views]
        yield from zip(block, zip(*parts, strict=True), strict=True)
