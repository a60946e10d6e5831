"""Intervals of confidence for shares that were counted on a set of images.

All of them treat the images as drawn one by one from those to come. Several images of one patient are not, so that with
such sets the true intervals are wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.learning.seeds import numpy_generator

__all__ = ["LEVEL", "Interval", "balanced_accuracy_interval", "wilson"]

LEVEL = 0.95
"""Of every interval here."""
_Z = 1.959963984540054
"""The standard normal's quantile at (1 + LEVEL) / 2."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which two numbers a share lies with confidence `LEVEL`."""

    low: float
    high: float


def wilson(successes: int, count: int) -> Interval | None:
    """Wilson's score interval of a share successes / count; None without trials.

        (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    It stays within 0 and 1 and is sound for small counts and for shares near 0 and 1, where p -+ z sqrt(p (1 - p) / n)
    is not.
    Raises: ValueError unless 0 <= successes <= count.
    Source: Wilson, Journal of the American Statistical Association 22 (1927).
    """
    if not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}.")
    if count == 0:
        return None
    share, square = successes / count, _Z * _Z
    middle = share + square / (2 * count)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    whole = 1 + square / count
    # At 0 and 1 the bound is exact; floating point would leave it a hair beside.
    return Interval(0.0 if successes == 0 else max(0.0, (middle - reach) / whole),
                    1.0 if successes == count else min(1.0, (middle + reach) / whole))


def balanced_accuracy_interval(confusion: Sequence[Sequence[int]], *, seed: int,
                               resamples: int = _RESAMPLES) -> Interval | None:
    """Percentile bootstrap of the balanced accuracy, each class drawn anew among its own images.

    Drawing n_k images of class k with replacement and counting the right ones is drawing from Binomial(n_k, recall_k),
    so that no image is needed. A class with all or none of its images right adds no spread.
    Args:
        confusion: (K, K), confusion[true][predicted], in images. Classes without images do not count.
        seed: of the study; the stream is called "balanced_accuracy_bootstrap".
    Returns: None when no class has images.
    Source: Efron, Annals of Statistics 7 (1979); stratified by class.
    """
    import numpy

    pairs = [(row[label], sum(row)) for label, row in enumerate(confusion) if sum(row)]
    if not pairs:
        return None
    hits_K, sizes_K = numpy.array(pairs, dtype=numpy.int64).T
    generator = numpy_generator(seed, "balanced_accuracy_bootstrap")
    drawn_RK = generator.binomial(sizes_K, hits_K / sizes_K, size=(resamples, len(pairs)))
    balanced_R = (drawn_RK / sizes_K).mean(axis=1)
    low, high = numpy.quantile(balanced_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
