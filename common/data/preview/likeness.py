"""Whether a site's images look like those that a study was normalised on: intensity and colour, channel by channel.

A scanner that shows black as white, another stain, a blurred or darker picture: a network that was trained elsewhere
meets images of another kind, and nobody is told. Mean and standard deviation over all pixels find the coarse of it
and nothing finer; images that differ in what they show may have the same numbers.

The limits were measured on scikit-learn's digits against 80 of them (`tests/common/data/preview/test_likeness.py`):
samples of 20 to 200 others, and single classes, move the mean by at most 0.08 standard deviations and change the
standard deviation by a factor of 0.95 to 1.07; inverted ones move it by 1.04, 40 of 255 grey values more by 0.37, half
the brightness by 0.40, and blurring over 3 x 3 pixels changes the standard deviation by a factor of 0.66.

Shapes: N images, C channels, S side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST_IMAGES", "ChannelStatistics", "statistics_of", "unlikeness"]

FEWEST_IMAGES = 20
"""Statistics of fewer images say more about these images than about their kind: they are not told and not compared."""
_FARTHEST_MEAN = 0.25
"""In standard deviations of the study's pixels."""
_NARROWEST, _WIDEST = 0.8, 1.25
"""Standard deviation over the study's."""
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelStatistics:
    """Over all pixels of some images, on the scale 0 to 1, for each channel."""

    images: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) and len(self.mean) in (1, 3) and self.images >= 0
                and np.isfinite([*self.mean, *self.std]).all() and min(self.std) >= 0):
            raise ValueError("statistics of images that cannot be")


def statistics_of(squares: Sequence[NDArray[np.uint8]]) -> ChannelStatistics:
    """Of uint8 pictures (C, S, S), at least one, all of one form."""
    pixels_NCSS = np.stack(squares).astype(np.float64) / 255
    mean_C, std_C = pixels_NCSS.mean(axis=(0, 2, 3)), pixels_NCSS.std(axis=(0, 2, 3))
    return ChannelStatistics(images=len(squares), mean=tuple(map(float, mean_C)), std=tuple(map(float, std_C)))


def unlikeness(site: ChannelStatistics, study: ChannelStatistics) -> tuple[str, ...]:
    """What is unlike, a line for each channel in which anything is; () where nothing is, or too few images tell.

    Raises: ValueError for other numbers of channels.
    """
    if len(site.mean) != len(study.mean):
        raise ValueError(f"{len(site.mean)} channels against {len(study.mean)}")
    if min(site.images, study.images) < FEWEST_IMAGES or min(study.std) <= 0:
        return ()
    found = []
    for index, (mean, std, theirs, spread) in enumerate(zip(site.mean, site.std, study.mean, study.std, strict=True)):
        words = []
        if abs(mean - theirs) > _FARTHEST_MEAN * spread:
            words.append(f"{'brighter' if mean > theirs else 'darker'}: mean {mean:.3f}, the study's {theirs:.3f}")
        if not _NARROWEST * spread <= std <= _WIDEST * spread:
            words.append(f"{'more' if std > spread else 'less'} contrast: standard deviation {std:.3f}, the study's"
                         f" {spread:.3f}")
        if words:
            found.append(f"{f'{_COLOURS[index]}: ' if len(site.mean) == 3 else ''}{'; '.join(words)}")
    return tuple(found)
