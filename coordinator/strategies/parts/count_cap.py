"""The largest share that one silo, or a few together, may have in an average whose weights silos can raise: counts of
images that they announce, how seldom they have taken part.

Tests: tests/coordinator/strategies/parts/test_count_cap.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

__all__ = ["capped_counts", "capped_weights", "far_above"]

_FAR, _FEWEST = 10, 3
"""Times the median that are news of a silo's count, and the fewest counts that have one: of two, one may lie as well as
the other."""


def capped_counts(counts: Sequence[int], largest_share: float, *, together: int = 1) -> list[int]:
    """min(n_k, c), with the largest c for which no n_k is more than its share of the sum:

        c = s R / (1 - s j),    j the silos that are capped, R the sum of the others

    Of m silos with images a share below 1/m cannot be: then all count as the smallest of them. So a single silo keeps
    its count, and of two with s = 1/2 both count the same.

    Args:
        counts: n_k >= 0.
        largest_share: s, above 0, at most 1; 1 changes nothing.
        together: f, at least 1: the f largest together have no more than s of the sum, since so many may lie. Then
            c = s R / (f - s j) where j > f, and a share below f/m cannot be.
    Returns: whole numbers, at least 1 where n_k is.
    """
    cap = _cap([Fraction(count) for count in counts if count > 0], largest_share, together)
    return list(counts) if cap is None else [min(count, max(1, int(cap))) for count in counts]


def capped_weights(weights: Sequence[float], largest_share: float, *, together: int = 1) -> list[float]:
    """`capped_counts` of weights that need not be whole numbers, nor sum to 1: the very same numbers where none is too
    large, else min(p_k, c), whose sum is less than theirs.

    Args:
        weights: p_k >= 0, finite.
        largest_share, together: as there.
    """
    cap = _cap([Fraction(weight) for weight in weights if weight > 0], largest_share, together)
    return list(weights) if cap is None else [min(weight, float(cap)) for weight in weights]


def far_above(counts: Mapping[str, int]) -> dict[str, int]:
    """Silos that announce more than ten times the lower median of what the others announce -> that median. Counts of 0
    are none; of fewer than three counts nothing can be said."""
    there = sorted(count for count in counts.values() if count > 0)
    if len(there) < _FEWEST:
        return {}
    middle = there[(len(there) - 2) // 2]  # without any one that is above it, this is the middle of those that are left
    return {silo: middle for silo, count in counts.items() if count > _FAR * middle}


def _cap(values: Sequence[Fraction], largest_share: float, f: int) -> Fraction | None:
    """c; None where nothing is too large. All values are above 0."""
    share, there = Fraction(largest_share).limit_denominator(10**6), sorted(values, reverse=True)
    rest, largest = sum(there, Fraction()), sum(there[:f], Fraction())
    if not there or share >= 1 or largest <= share * rest:
        return None
    if share * len(there) <= f:
        return there[-1]
    for capped, value in enumerate(there, start=1):
        rest -= value
        if capped < f:  # the others of the f largest stand below c
            largest -= value
            cap = (share * (rest - largest) / (1 - share) - largest) / capped
        else:
            cap = share * rest / (f - share * capped) if share * capped < f else there[-1]
        if capped == len(there) or cap >= there[capped]:
            return cap
    raise AssertionError("the last value ends the search")
