"""Drift of pseudo-labels: against SciPy, against analytic values, and against chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semisilo.coordinator.monitoring.drift import (
    EARLIER_ROUNDS,
    FLOOR,
    chi_squared_quantile,
    class_shares,
    drift_of,
    jensen_shannon_distance,
    pseudo_label_counts,
)
from tests.each_of import each_of


def counts(*numbers: float) -> dict[int, float]:
    return {label: float(number) for label, number in enumerate(numbers) if number}


@each_of(("p", "q", "distance"), [
    (counts(1, 1), counts(1, 1), 0.0),
    (counts(1, 0), counts(0, 1), 1.0),
    # H(3/4, 1/4) - H(1/2, 1/2) / 2 with H(1, 0) = 0: 0.811278 - 0.5
    (counts(1, 0), counts(1, 1), math.sqrt(2 - 0.75 * math.log2(3) - 0.5)),
])
def test_the_distance_has_its_analytic_values(p: dict[int, float], q: dict[int, float], distance: float) -> None:
    assert jensen_shannon_distance(class_shares(p), class_shares(q)) == pytest.approx(distance)


def test_the_distance_is_that_of_scipy_in_bits() -> None:
    from scipy.spatial.distance import jensenshannon

    generator = np.random.default_rng(3)
    for _ in range(20):
        p, q = generator.dirichlet([0.4] * 7), generator.dirichlet([0.4] * 7)
        found = jensen_shannon_distance(dict(enumerate(p)), dict(enumerate(q)))
        assert found == pytest.approx(jensenshannon(p, q, base=2), abs=1e-9)


@each_of("degrees", [1, 2, 9, 99])
def test_the_quantile_is_at_most_four_per_cent_too_high(degrees: int) -> None:
    from scipy.stats import chi2

    assert 0.999 < chi_squared_quantile(degrees, 0.999) / chi2.ppf(0.999, degrees) < 1.04


@pytest.mark.parametrize("labels", [8, 40, 300, 5000])
def test_labels_of_one_distribution_are_hardly_ever_marked(labels: int) -> None:
    """At most once in a thousand rounds by design; of 400 rounds five would be a wonder (probability 2e-6)."""
    generator = np.random.default_rng(labels)
    shares = [0.4, 0.2, 0.2, 0.1, 0.1]
    marked = 0
    for _ in range(400):
        earlier = [counts(*generator.multinomial(labels, shares)) for _ in range(4)]
        drift = drift_of(counts(*generator.multinomial(labels, shares)), earlier)
        assert drift is not None
        marked += drift.marked
    assert marked < 5


def test_enough_labels_of_another_distribution_are_marked() -> None:
    earlier = [counts(100, 100, 100, 100)] * 3
    drift = drift_of(counts(10, 10, 10, 370), earlier)
    assert drift is not None
    assert drift.marked
    assert drift.distance > 0.4


def test_few_labels_are_not_marked_however_uneven_they_are() -> None:
    drift = drift_of(counts(0, 0, 0, 3), [counts(100, 100, 100, 100)] * 3)
    assert drift is not None
    assert drift.distance > 0.5
    assert not drift.marked


def test_a_small_change_is_not_marked_however_many_labels_show_it() -> None:
    drift = drift_of(counts(520_000, 480_000), [counts(500_000, 500_000)])
    assert drift is not None
    assert drift.threshold == FLOOR
    assert not drift.marked


def test_without_anything_to_compare_nothing_is_said() -> None:
    assert drift_of(counts(5), []) is None
    assert drift_of({}, [counts(5)]) is None
    assert drift_of(counts(5), [{}, {}]) is None


def test_only_the_last_rounds_count() -> None:
    old = [counts(1000, 0)] * 50
    recent = [counts(500, 500)] * EARLIER_ROUNDS
    drift = drift_of(counts(500, 500), [*old, *recent])
    assert drift is not None
    assert drift.distance == 0.0


def test_counts_are_read_from_metrics_and_nothing_else_is() -> None:
    found = pseudo_label_counts({"label_ratio": 0.5, "pseudo_labels/0": 3.0, "pseudo_labels/12": 1.5,
                                 "pseudo_labels/-1": 4.0, "pseudo_labels/x": 4.0, "pseudo_labels/99999999": 1.0,
                                 "pseudo_labels/3": math.nan, "pseudo_labels/4": -2.0, "pseudo_labels/²": 1.0})
    assert found == {0: 3.0, 12: 1.5}
