"""The largest weight that one silo may have in an average that weighs by counts of images.

Tests: tests/coordinator/strategies/parts/test_count_cap.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["capped_counts"]


def capped_counts(counts: Sequence[int], largest_share: float) -> list[int]:
    """min(n_k, c), with the largest c for which no n_k is more than its share of the sum:

        c = s R / (1 - s j),    j the silos that are capped, R the sum of the others

    Of m silos with images a share below 1/m cannot be: then all count as the smallest of them. So a single silo keeps
    its count, and of two with s = 1/2 both count the same.

    Args:
        counts: n_k >= 0.
        largest_share: s, above 0, at most 1; 1 changes nothing.
    Returns: whole numbers, at least 1 where n_k is.
    """
    share, there = Fraction(largest_share).limit_denominator(10**6), sorted((n for n in counts if n > 0), reverse=True)
    if not there or share >= 1 or there[0] <= share * sum(there):
        return list(counts)
    if share * len(there) <= 1:
        return [min(count, there[-1]) for count in counts]
    capped, rest = 0, sum(there)
    cap = Fraction(there[0])
    while there[capped] > cap or capped == 0:
        rest -= there[capped]
        capped += 1
        cap = share * rest / (1 - share * capped) if share * capped < 1 else Fraction(there[-1])
    return [min(count, max(1, int(cap))) for count in counts]
