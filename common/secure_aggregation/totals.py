"""Numbers that silos add up beside their tensors, such as how many steps each has taken: exact, whatever the scale.

A number v of a silo of weight a becomes the whole number round(a v level), written with three digits to the base
`level`, a word each. Digits are added one by one, and what they add up to follows from their sums.

Imports numpy alone. Tests: tests/common/secure_aggregation/test_totals.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semisilo.common.secure_aggregation.fixed_point import decode_sum

__all__ = ["TOTAL_WORDS", "decode_totals", "total_words"]

TOTAL_WORDS = 3
"""Of each number: with the coarsest words and the most silos, a million steps."""


def total_words(values: Sequence[float], *, weight: float, level: int) -> tuple[NDArray[np.uint32], int]:
    """The words of numbers, and how many were too large and had to be cut.

    Args:
        values: v, finite and at least 0.
        weight: a, 0 to 1.
        level: see `semisilo.common.secure_aggregation.fixed_point.largest_level`.
    Returns: uint32 (3 * len(values),), the lowest digit of each first.
    Raises: ValueError for a number that is negative or not finite.
    """
    words: list[int] = []
    cut = 0
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{value} cannot be added up: a total is finite and at least 0.")
        whole = round(weight * value * level)
        if whole >= level**TOTAL_WORDS:
            whole, cut = level**TOTAL_WORDS - 1, cut + 1
        for _ in range(TOTAL_WORDS):
            whole, digit = divmod(whole, level)
            words.append(digit)
    return np.array(words, dtype=np.uint32), cut


def decode_totals(words: NDArray[np.uint32], *, bits: int, level: int, silos: int) -> list[float]:
    """sum of a v over all silos, of each number.

    Args:
        words: uint32, the sums of the silos' words; only the low `bits` bits count.
        silos: whose words were added.
    Raises: ValueError where the digits cannot be sums of so many.
    """
    digits = [int(each) for each in decode_sum(words, bits=bits, bound=float(level), level=level)]
    if any(not 0 <= each <= silos * (level - 1) for each in digits):
        raise ValueError("a digit is out of range")
    return [sum(digits[start + place] * level**place for place in range(TOTAL_WORDS)) / level
            for start in range(0, len(digits), TOTAL_WORDS)]
