"""Intervals of confidence, against their defining equations and reference samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semisilo.coordinator.export.intervals import balanced_accuracy_interval, wilson


@pytest.mark.parametrize(("successes", "count"), [(1, 2), (7, 10), (95, 100), (999, 1000), (3, 200)])
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


CONFUSION = [[40, 10, 0], [5, 90, 5], [8, 2, 10]]


def test_the_bootstrap_of_the_balanced_accuracy_agrees_with_drawing_images_themselves() -> None:
    found = balanced_accuracy_interval(CONFUSION, seed=1, resamples=20_000)
    assert found is not None
    generator = np.random.default_rng(0)
    right = [np.repeat([1, 0], [row[label], sum(row) - row[label]]) for label, row in enumerate(CONFUSION)]
    balanced = [np.mean([generator.choice(each, len(each)).mean() for each in right]) for _ in range(20_000)]
    low, high = np.quantile(balanced, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.004)
    assert found.high == pytest.approx(high, abs=0.004)


def test_the_bootstrap_approaches_the_normal_interval_for_many_images() -> None:
    many = [[4000 * cell for cell in row] for row in CONFUSION]
    recalls = [0.8, 0.9, 0.5]
    sizes = [4000 * sum(row) for row in CONFUSION]
    error = math.sqrt(sum(p * (1 - p) / n for p, n in zip(recalls, sizes, strict=True))) / 3
    found = balanced_accuracy_interval(many, seed=3, resamples=20_000)
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.95996 * error, rel=0.03)


def test_the_bootstrap_follows_from_its_seed_alone() -> None:
    once, again, other = (balanced_accuracy_interval(CONFUSION, seed=seed) for seed in (1, 1, 2))
    assert once == again != other


def test_a_class_without_images_does_not_count() -> None:
    with_empty = [[*row, 0] for row in CONFUSION] + [[0, 0, 0, 0]]
    assert balanced_accuracy_interval(with_empty, seed=1) == balanced_accuracy_interval(CONFUSION, seed=1)
    assert balanced_accuracy_interval([[0, 0], [0, 0]], seed=1) is None
