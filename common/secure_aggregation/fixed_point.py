"""Numbers as integers on a scale that all silos share, so that a sum of words is a sum of numbers.

A value x becomes one of the two integers beside x * level / bound, at random, so that its expectation is x (stochastic
rounding). Integers of a silo lie in -level..level, and the sum of all silos fits into a word.

Error: with n silos, an element of the decoded sum is off the sum of the (clamped) values by less than
n * bound / level, and its expectation is zero; the standard deviation is at most sqrt(n) / 2 * bound / level. Where a
value was clamped, what lies beyond the bound is missing on top.

Imports numpy alone. N values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload

__all__ = ["decode_sum", "largest_level", "quantise", "to_words"]

_BLOCK = 1 << 15
"""Values at a time: all that is in between stays in a core's cache."""


def largest_level(bits: int, num_silos: int) -> int:
    """The largest integer that each of `num_silos` may contribute so that the sum fits into `bits` signed bits.

    floor((2**(bits - 1) - 1) / num_silos): 3276 for 16 bits and 10 silos, 838860 for 24.

    Raises: ValueError when nothing fits.
    """
    level = ((1 << bits - 1) - 1) // num_silos
    if level < 1:
        raise ValueError(f"Words of {bits} bits have no room for the sum of {num_silos} silos.")
    return level


def quantise(values_N: NDArray[np.float32], *, bound: float, level: int,
             generator: np.random.Generator) -> tuple[NDArray[np.int32], int]:
    """Integers on the scale bound / level, rounded at random without bias.

    floor(x * level / bound + u) with u uniform in [0, 1), in float64: P(up) is the fraction, so E = x * level / bound.

    Args:
        values_N: float32 (N,).
        bound: > 0; what lies beyond it on either side is clamped to it.
        level: >= 1, the integer of `bound`; see `largest_level`.
        generator: from a named seed; N draws are taken, in the order of the values.
    Returns: int32 (N,) in -level..level, and how many values were clamped.
    Raises: BadPayload when a value is not finite.
    """
    if not (bound > 0 and np.isfinite(bound)) or not 1 <= level < 2**31:
        raise ValueError(f"A bound is finite and above 0, a level from 1 to 2**31 - 1: found {bound} and {level}.")
    levels_N = np.empty(len(values_N), dtype=np.int32)
    scale = level / float(bound)
    clamped = 0
    for begin in range(0, len(values_N), _BLOCK):
        scaled = values_N[begin:begin + _BLOCK].astype(np.float64)
        if not np.isfinite(scaled).all():
            raise BadPayload("The update has a value that is not a finite number.")
        clamped += int(np.count_nonzero(np.abs(scaled) > bound))
        scaled *= scale
        np.clip(scaled, -level, level, out=scaled)
        scaled += generator.random(len(scaled))
        np.floor(scaled, out=scaled)
        # A sum that rounds up to the next integer in float64 must not leave the range.
        np.minimum(scaled, level, out=scaled)
        levels_N[begin:begin + _BLOCK] = scaled
    return levels_N, clamped


def to_words(levels_N: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Two's complement: uint32 (N,), a new array, contiguous."""
    return np.array(levels_N, dtype=np.int32, order="C").view(np.uint32)


def decode_sum(words_N: NDArray[np.uint32], *, bits: int, bound: float, level: int) -> NDArray[np.float64]:
    """The sum of the silos' values from the sum of their words: float64 (N,).

    Args:
        words_N: uint32 (N,); only the low `bits` bits count, the highest of them is the sign.
        bound, level: the scale that the silos have quantised on.
    """
    shift, scale = np.uint32(32 - bits), float(bound) / level
    sums_N = np.empty(len(words_N), dtype=np.float64)
    for begin in range(0, len(words_N), _BLOCK):
        levels = (words_N[begin:begin + _BLOCK] << shift).view(np.int32) >> np.int32(32 - bits)
        np.multiply(levels, scale, out=sums_N[begin:begin + _BLOCK])
    return sums_N
