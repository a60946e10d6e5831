"""Updates cut to a length as whole numbers, with room in the words for the noise that silos add behind their masks.

All tensors have the same scale, so that the length of an update is that of its whole numbers. Rounding at random makes
an update longer; it is cut to so much less beforehand that what comes out is no longer than the clip: exactly, since
what is longer all the same is rounded towards zero instead. One silo then moves the sum by at most the clip, whatever
its update is.

Of a step in which the gradient of every image was clipped the length is not bounded, what one image moves of it is; its
noise is added before it is rounded.

Imports numpy alone. P elements of an update. Tests: tests/common/secure_aggregation/test_clipped.py.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from semisilo.common.secure_aggregation.fixed_point import largest_level

__all__ = ["LEAST_DEVIATION", "bits_of_clip", "bits_of_step", "bound_of_clip", "bound_of_step", "clipped_levels",
           "length_in_levels"]

LEAST_DEVIATION = 8.0
"""Of the noise of one silo, in levels. A sum of Gaussians that were rounded one by one says no more than the Gaussian
that they add up to, but for a probability of exp(-pi^2 deviation^2) a word:
docs/decisions/0050-noise-shared-behind-masks.md."""

_TAIL = 10.0
"""Standard deviations of the noise of all silos that a word has room for: beyond, once in 10^23 words."""
_ROOM = 16.0
"""The square of the clip, in levels, over what rounding adds to the square of a length."""
_SLACK = 6.0
"""Standard deviations of what rounding adds."""


def bound_of_clip(clip_norm: float, *, noise_multiplier: float, silo_count: int, shares: int) -> float:
    """The bound that a word stands for at its largest level, so that the sum of all silos, noise and all, has room.

        n C (1 + 10 sigma / sqrt(n shares))  <=  n bound

    Args:
        noise_multiplier: sigma, of the study.
        silo_count: n, silos that a sum may have.
        shares: of silos whose noise together is that of sigma.
    """
    return clip_norm * (1.0 + _TAIL * noise_multiplier / math.sqrt(silo_count * shares))


def length_in_levels(clip_norm: float, *, bits: int, bound: float, silo_count: int) -> float:
    """The clip in whole numbers. Raises: ValueError as `largest_level`."""
    return clip_norm * largest_level(bits, silo_count) / bound


def bits_of_clip(bits: int, elements: int, *, clip_norm: float, bound: float, silo_count: int) -> int:
    """The bits of a word that rounding at random can do with: `bits`, or so many more that it adds at most a 16th to
    the square of the clip; at most 32.

    Args:
        elements: P.
    """
    while bits < 32 and length_in_levels(clip_norm, bits=bits, bound=bound, silo_count=silo_count)**2 \
            < _ROOM * elements / 4:
        bits += 1
    return bits


def bound_of_step(contribution: float, *, images: int, noise_multiplier: float, silo_count: int, shares: int) -> float:
    """The same of a step, in which each silo has so many images in the mean, drawn by themselves.

        n C' (m + 10 sqrt(m) + 10 sigma / sqrt(n shares))  <=  n bound

    Args:
        contribution: C', what one image adds at most.
        images: m.
        noise_multiplier, silo_count, shares: as of `bound_of_clip`.
    """
    return contribution * (images + _TAIL * math.sqrt(images)
                           + _TAIL * noise_multiplier / math.sqrt(silo_count * shares))


def bits_of_step(bits: int, *, contribution: float, bound: float, noise_multiplier: float, silo_count: int,
                 shares: int) -> int:
    """The bits of a word on whose scale the noise of one silo is not too small: `bits`, or so many more; at most 32."""
    while bits < 32 and noise_multiplier / math.sqrt(shares) * length_in_levels(
            contribution, bits=bits, bound=bound, silo_count=silo_count) < LEAST_DEVIATION:
        bits += 1
    return bits


def clipped_levels(values_P: NDArray[np.float32], length: float, *, scale: float,
                   generator: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers of an update, no longer than `length`.

        x <- x min(1, t / |x|),  t^2 + 6 t + P / 4 + 6 sqrt(P) = length^2;   floor(x + u), u uniform in [0, 1)

    |floor(x + u)|^2 is at most t^2 + P / 4 on average; where it is beyond length^2, truncated x, which is never longer
    than t.
    Args:
        values_P: float32 (P,), finite.
        length: L > 0, in levels.
        scale: levels of the value 1.
        generator: from a named seed; P draws are taken. It need not be secret: the length is right whatever it gives.
    Returns: int64 (P,), of which the sum of squares is at most length^2.
    Raises: ValueError where the length leaves no room for rounding so many numbers.
    """
    rounding = len(values_P) / 4 + _SLACK * math.sqrt(len(values_P))
    room = length**2 - rounding
    if room < length**2 / 2:
        raise ValueError(f"a length of {length:.0f} levels has no room for rounding {len(values_P)} numbers.")
    target = math.sqrt(room + (_SLACK / 2)**2) - _SLACK / 2
    exact_P = values_P.astype(np.float64) * scale
    norm = math.sqrt(float(np.dot(exact_P, exact_P)))
    if norm > target:
        exact_P *= target / norm
    levels_P: NDArray[np.int64] = np.floor(exact_P + generator.random(len(exact_P))).astype(np.int64)
    if int(np.dot(levels_P, levels_P)) > length**2:
        levels_P = np.trunc(exact_P).astype(np.int64)
    return levels_P
