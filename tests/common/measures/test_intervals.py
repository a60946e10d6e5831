"""Intervals of confidence, against their defining equations and reference samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semisilo.common.measures.intervals import (
    Interval,
    area_error,
    area_interval,
    clustered_share_interval,
    difference_interval,
    f1_interval,
    mean_interval,
    standard_error,
    wilson,
)
from tests.each_of import each_of


@each_of(("successes", "count"), [(1, 2), (7, 10), (95, 100), (999, 1000), (3, 200)])
def test_both_ends_of_wilsons_interval_are_shares_that_the_score_test_just_does_not_reject(successes: int, count: int
                                                                                            ) -> None:
    """The definition: (p - pi)^2 = z^2 pi (1 - pi) / n at pi = either end, and at nothing between."""
    found = wilson(successes, count)
    assert found is not None
    z = 1.959963984540054
    for end in (found.low, found.high):
        assert (successes / count - end) ** 2 == pytest.approx(z * z * end * (1 - end) / count, rel=1e-9)
    assert 0 <= found.low < successes / count < found.high <= 1


def test_wilsons_interval_has_its_analytic_limits() -> None:
    z2 = 1.959963984540054**2
    none, everything = wilson(0, 10), wilson(10, 10)
    assert none is not None
    assert everything is not None
    assert none.low == 0.0
    assert none.high == pytest.approx(z2 / (10 + z2))
    assert everything.high == 1.0
    assert everything.low == pytest.approx(10 / (10 + z2))
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)


def test_the_published_example_of_wilsons_interval_comes_out() -> None:
    """81 of 263 gives 0.2553 to 0.3662: Newcombe, Statistics in Medicine 17 (1998), Table I, method 3."""
    found = wilson(81, 263)
    assert found is not None
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)


def test_a_standard_error_is_the_reach_of_wilsons_interval_at_one() -> None:
    """(p - pi)^2 = pi (1 - pi) / n at both ends of the interval whose half width it is."""
    for successes, count in ((1, 2), (7, 10), (95, 100), (0, 10), (10, 10)):
        share, error = successes / count, standard_error(successes, count)
        middle = (share + 1 / (2 * count)) / (1 + 1 / count)
        for end in (middle - error, middle + error):
            assert (share - end) ** 2 == pytest.approx(end * (1 - end) / count, abs=1e-12)
    assert standard_error(5000, 10_000) == pytest.approx(0.005, rel=1e-3), "the binomial's, for many trials"
    for wrong in ((3, 2), (0, 0)):
        with pytest.raises(ValueError, match="successes of"):
            standard_error(*wrong)


def test_the_published_example_of_newcombes_interval_comes_out() -> None:
    """56 of 70 against 48 of 80 is 0.0524 to 0.3339: Newcombe, Statistics in Medicine 17 (1998) 873, Table II, method
    10."""
    first, second = wilson(56, 70), wilson(48, 80)
    assert first is not None
    assert second is not None
    found = difference_interval(56 / 70, first, 48 / 80, second)
    assert (round(found.low, 4), round(found.high, 4)) == (0.0524, 0.3339)


def test_of_symmetric_intervals_the_mean_has_the_variance_of_a_mean_and_the_difference_that_of_a_difference() -> None:
    estimates = [(0.5, Interval(0.4, 0.6)), (0.7, Interval(0.65, 0.75)), (0.2, Interval(0.0, 0.4))]
    found = mean_interval(estimates)
    reach = math.sqrt(0.1**2 + 0.05**2 + 0.2**2) / 3
    assert (found.low, found.high) == pytest.approx((1.4 / 3 - reach, 1.4 / 3 + reach))
    apart = difference_interval(*estimates[0], *estimates[1])
    assert (apart.low, apart.high) == pytest.approx((-0.2 - math.hypot(0.1, 0.05), -0.2 + math.hypot(0.1, 0.05)))


@each_of(("area", "inside", "outside"), [(0.95, 40, 160), (0.6, 10, 5), (0.5, 3, 300)])
def test_both_ends_of_an_areas_interval_are_areas_that_are_just_not_too_far(area: float, inside: int, outside: int
                                                                            ) -> None:
    found = area_interval(area, inside=inside, outside=outside)
    for end in (found.low, found.high):
        assert abs(area - end) == pytest.approx(1.959963984540054 * area_error(end, inside=inside, outside=outside))
    assert 0 <= found.low < area < found.high <= 1


def test_a_perfect_order_of_few_images_leaves_doubt() -> None:
    found = area_interval(1.0, inside=5, outside=5)
    assert found.high == 1.0
    assert 0.5 < found.low < 0.9


def test_trials_that_hang_on_one_another_count_as_fewer() -> None:
    """One trial an image: n* = p (1 - p) / v = n - 1, by the n / (n - 1) of the variance, in Wilson's formula. Each
    image's trials all alike: as many as images. Trials that do not hang on one another: about as many as there are."""
    hits = [1] * 30 + [0] * 70
    alone = clustered_share_interval(hits, [1] * 100)
    assert alone is not None
    z, effective = 1.959963984540054, 99
    middle, whole_of = 0.3 + z * z / (2 * effective), 1 + z * z / effective
    reach = z * math.sqrt(0.3 * 0.7 / effective + z * z / (4 * effective**2))
    assert (alone.low, alone.high) == pytest.approx(((middle - reach) / whole_of, (middle + reach) / whole_of))
    same = clustered_share_interval([5 * each for each in hits], [5] * 100)
    assert same is not None
    assert (same.low, same.high) == pytest.approx((alone.low, alone.high))
    free = np.random.default_rng(1).binomial(5, 0.3, size=100).tolist()
    found, whole = clustered_share_interval(free, [5] * 100), wilson(sum(free), 500)
    assert found is not None
    assert whole is not None
    assert 0.8 < (found.high - found.low) / (whole.high - whole.low) < 1.25
    assert clustered_share_interval([0, 0], [0, 0]) is None
    assert clustered_share_interval([3, 0, 4], [3, 0, 4]) == wilson(2, 2), "nothing goes wrong: images count"


def test_the_interval_of_f1_covers_what_is_true_as_often_as_it_says() -> None:
    """Of 60 images that are shown or answered, each is both with a chance J: F1 = 2 J / (1 + J)."""
    random, true = np.random.default_rng(4), 0.6
    covered = 0
    for hits in random.binomial(60, true, size=400).tolist():
        shared = wilson(hits, 60)
        assert shared is not None
        found = f1_interval(shared)
        covered += found.low <= 2 * true / (1 + true) <= found.high
    assert 0.92 < covered / 400 < 0.98
