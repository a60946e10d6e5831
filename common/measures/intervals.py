"""Intervals of confidence for shares that were counted on a set of images.

All of them treat the images as drawn one by one from those to come. Several images of one patient are not: such sets
are counted as what they are worth (`semisilo.common.measures.independent_images`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEVEL", "Interval", "area_error", "area_interval", "area_spread", "around",
           "clustered_share_interval", "dependent_mean_interval", "difference_around", "difference_interval",
           "f1_interval", "mean_interval", "precision_interval", "share_error", "share_interval", "standard_error",
           "wilson"]

LEVEL = 0.95
"""Of every interval here."""
_Z = 1.959963984540054
"""The standard normal's quantile at (1 + LEVEL) / 2."""
_HALVINGS = 60
"""That leave nothing of a double's digits to be found."""


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
    return _score_interval(successes / count, count)


def share_interval(share: float | None, images: int, worth: float | None = None) -> Interval | None:
    """`wilson` of a share of images that was counted; None of none.

    Args:
        worth: how many independent ones they are worth; None: as many as they are.
    Raises: ValueError unless 0 <= share <= 1.
    """
    if share is None or worth is None:
        return None if share is None else wilson(round(share * images), images)
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share}.")
    return _score_interval(share, worth) if worth else None


def precision_interval(value: float, *, inside: float) -> Interval | None:
    """Interval of an average precision, as if it were a share of the images that have the class; None without any.

    Source: Boyd, Eng and Page, ECML PKDD 2013, section 4 (the binomial interval, with as many trials as images of the
        class), in Wilson's form, which stays within 0 and 1.
    """
    return _score_interval(value, inside) if inside else None


def f1_interval(shared: Interval) -> Interval:
    """Interval of F1 = 2 J / (1 + J) from one of J = TP / (TP + FP + FN), the share of the images that are answered or
    shown which are both. Of J there is Wilson's, since its trials are counted; F1 grows with J.
    """
    return Interval(2 * shared.low / (1 + shared.low), 2 * shared.high / (1 + shared.high))


def clustered_share_interval(hits: Sequence[int], trials: Sequence[int]) -> Interval | None:
    """Interval of sum(hits) / sum(trials) where each image brings several trials, which hang on one another.

        v = n / (n - 1) sum_i (h_i - p t_i)^2 / (sum_i t_i)^2,  n* = min(p (1 - p) / v, sum_i t_i)

    and Wilson's interval with n* trials: as many as independent ones of the same variance. Where p is 0 or 1, or one
    image has all trials, n* is the number n of images with trials.

    Args:
        hits: of each image, at most its trials.
        trials: of each image, at least 0.
    Returns: None without trials.
    Source: Korn and Graubard, Survey Methodology 24 (1998) 193: intervals of clustered shares by an effective sample
        size.
    """
    pairs = [(hit, trial) for hit, trial in zip(hits, trials, strict=True) if trial]
    total = sum(trial for _, trial in pairs)
    if not total:
        return None
    count, share = len(pairs), sum(hit for hit, _ in pairs) / total
    off = math.fsum((hit - share * trial) ** 2 for hit, trial in pairs)
    if count == 1 or off == 0 or not 0 < share < 1:
        return _score_interval(share, count)
    variance = count / (count - 1) * off / total**2
    return _score_interval(share, min(share * (1 - share) / variance, total))


def _score_interval(share: float, count: float) -> Interval:
    square = _Z * _Z
    middle = share + square / (2 * count)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    whole = 1 + square / count
    # At 0 and 1 the bound is exact; floating point would leave it a hair beside.
    return Interval(0.0 if share == 0 else max(0.0, (middle - reach) / whole),
                    1.0 if share == 1 else min(1.0, (middle + reach) / whole))


def standard_error(successes: int, count: int) -> float:
    """How far a share successes / count lies from the true one, typically: the reach of Wilson's interval at z = 1.

        sqrt(p (1 - p) / n + 1 / 4n^2) / (1 + 1 / n)

    For many trials it is the binomial sqrt(p (1 - p) / n); unlike that it is not 0 where all or none succeed.
    Raises: ValueError unless 0 <= successes <= count and count >= 1.
    Source: Wilson, Journal of the American Statistical Association 22 (1927).
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(f"{successes} successes of {count}.")
    return share_error(successes / count, count)


def share_error(share: float, count: int) -> float:
    """`standard_error` of what is taken for a share of `count` images, such as an average precision.

    Raises: ValueError unless 0 <= share <= 1 and count >= 1.
    """
    if not 0 <= share <= 1 or count < 1:
        raise ValueError(f"a share of {share} of {count}.")
    return math.sqrt(share * (1 - share) / count + 1 / (4 * count * count)) / (1 + 1 / count)


def around(value: float, error: float) -> Interval:
    """value -+ z times its standard error, within 0 and 1: of a mean of shares, which is nearly normal.

    Raises: ValueError unless 0 <= value <= 1 and error >= 0.
    """
    if not (0 <= value <= 1 and error >= 0):
        raise ValueError(f"{value} -+ {error}.")
    return Interval(max(0.0, value - _Z * error), min(1.0, value + _Z * error))


def difference_around(value: float, error: float) -> Interval:
    """`around` of a difference of two shares, within -1 and 1.

    Raises: ValueError unless -1 <= value <= 1 and error >= 0.
    """
    if not (-1 <= value <= 1 and error >= 0):
        raise ValueError(f"{value} -+ {error}.")
    return Interval(max(-1.0, value - _Z * error), min(1.0, value + _Z * error))


def difference_interval(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Interval of first - second from the intervals of both, which hang on nothing in common.

        d - sqrt((p - l_p)^2 + (u_q - q)^2)  to  d + sqrt((u_p - p)^2 + (q - l_q)^2)

    Each end takes from either estimate how far it may be off on that side, so that it is sound where intervals are not
    symmetric.
    Source: Zou and Donner, Statistics in Medicine 27 (2008) 1693; with Wilson's of both shares it is method 10 of
        Newcombe, Statistics in Medicine 17 (1998). Of two models on the same images it is wider than it need be, since
        it does not know which images both have right.
    """
    return Interval(first - second - math.hypot(first - of_first.low, of_second.high - second),
                    first - second + math.hypot(of_first.high - first, second - of_second.low))


def mean_interval(estimates: Sequence[tuple[float, Interval]]) -> Interval:
    """Interval of the mean of K estimates that hang on nothing in common, such as the recalls of K classes.

        m - sqrt(sum_k (p_k - l_k)^2) / K  to  m + sqrt(sum_k (u_k - p_k)^2) / K

    With p_k -+ z s_k for the ends it is m -+ z sqrt(sum_k s_k^2) / K: the variance of a mean. Unlike that it keeps
    within 0 and 1 and is not of no width where every image of a class is right.

    Args:
        estimates: each with its interval, at least one.
    Source: Zou and Donner, Statistics in Medicine 27 (2008) 1693, which gives it for sums of two.
    """
    count = len(estimates)
    middle = math.fsum(value for value, _ in estimates) / count
    return Interval(middle - math.hypot(*(value - of_it.low for value, of_it in estimates)) / count,
                    middle + math.hypot(*(of_it.high - value for value, of_it in estimates)) / count)


def dependent_mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Interval of the mean of estimates that may hang on one another in any way: the means of their ends.

    It is what there is when all err together, and wider than need be otherwise. Of areas under the curve, one class
    against the rest, all are measured on the same images: those of two classes are the same number.
    """
    return Interval(math.fsum(each.low for each in intervals) / len(intervals),
                    math.fsum(each.high for each in intervals) / len(intervals))


def area_error(area: float, *, inside: float, outside: float) -> float:
    """The standard error of an area under the curve A, from n images of the class and m others:

        A (1 - A) + (n - 1) (A / (2 - A) - A^2) + (m - 1) (2 A^2 / (1 + A) - A^2), over n m, and the root of that

    0 for a perfect order.
    Raises: ValueError unless 0 <= area <= 1 and both counts are at least 1.
    Source: Hanley and McNeil, Radiology 143 (1982), equation 1.
    """
    if not 0 <= area <= 1 or min(inside, outside) < 1:
        raise ValueError(f"area {area} of {inside} images against {outside}.")
    square = area * area
    variance = (area * (1 - area) + (inside - 1) * (area / (2 - area) - square)
                + (outside - 1) * (2 * square / (1 + area) - square)) / (inside * outside)
    return math.sqrt(max(0.0, variance))


def area_interval(area: float, *, inside: float, outside: float) -> Interval:
    """Interval of an area under the curve: all areas t that are not too far from what was measured, |A - t| <= z s(t),
    with `area_error` for s.

    To `area_error` it is what Wilson's is to the binomial's: sound for areas near 1, where A -+ z s(A) is of no width.
    Raises: ValueError as `area_error`.
    Source: Newcombe, Statistics in Medicine 25 (2006) 559, part 2, which inverts the same error; there with the mean of
        both counts, here with each.
    """
    return _areas_near(area, inside=inside, outside=outside, errors=_Z)


def area_spread(area: float, *, inside: int, outside: int) -> float:
    """How far an area under the curve lies from the true one, typically: half the width of `area_interval` at z = 1.

    To `area_error`, which is 0 for a perfect order, it is what `standard_error` is to the binomial's: with few images
    an area of 1 is no better than one of 0.99.
    Raises: ValueError as `area_error`.
    """
    found = _areas_near(area, inside=inside, outside=outside, errors=1.0)
    return (found.high - found.low) / 2


def _areas_near(area: float, *, inside: float, outside: float, errors: float) -> Interval:
    area_error(area, inside=inside, outside=outside)

    def end(far: float) -> float:
        """Between the area, which is never too far from itself, and the end of the scale."""
        near = area
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            if abs(area - middle) <= errors * area_error(middle, inside=inside, outside=outside):
                near = middle
            else:
                far = middle
        return near
    return Interval(end(0.0), end(1.0))
