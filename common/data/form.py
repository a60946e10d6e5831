"""How images become tensors, and how training images are varied: what a study freezes and every task carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["LABELLED", "UNLABELLED", "AugmentationSettings", "ImageForm"]

LABELLED = "labelled"
UNLABELLED = "unlabelled"
"""Names of the two folders, and of the two parts of an .npz, that say which images have a class; no class of a study
with labels at silos can be called so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageForm:
    """The one form that all images of a study are brought to."""

    size: int
    """Side of the square, in pixels."""
    channels: Literal[1, 3]
    """1 (grey) or 3 (red, green, blue). Grey files are repeated to 3; colour files become luminance for 1."""
    mean: tuple[float, ...]
    """Mean of each channel on the scale 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel, > 0, on the scale 0 to 1."""
    resize: Literal["fit", "crop", "stretch", "pad"] = "fit"
    """How another size is brought to `size`: pad to a square and scale, centre square and scale, stretch, or pad with
    black without scaling (larger images are refused)."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise ValueError(f"size = {self.size}: must be between 1 and 4096.")
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need {self.channels} value(s), one per channel.")
        if not all(0 < value < float("inf") for value in self.std):
            raise ValueError("std must be above 0 in every channel.")


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentationSettings:
    """How training images are varied; the names are those of the specification of data."""

    policy: Literal["small", "semifl_official", "fedmatch_official", "fedmix", "none"] = "small"
    """Pair of a weak and a strong augmentation."""
    horizontal_flip: bool = False
    """Whether a left-right flip keeps the meaning of an image."""
    vertical_flip: bool = False
    """Whether an up-down flip keeps the meaning of an image."""
    without: tuple[str, ...] = ()
    """Operations of RandAugment to leave out, for example "Invert"."""
