"""Calibration of a class that is a yes or no of its own: against plain loops and scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from semisilo.common.measures.finding_calibration import (
    FindingCalibration,
    PlattScaling,
    finding_calibration,
    finding_probabilities,
    fit_platt,
)
from semisilo.common.measures.multi_label import sigmoid
from tests.each_of import each_of

RANDOM = np.random.default_rng(3)
LOGITS_N = RANDOM.normal(size=200) * 2
SHOWN_N = RANDOM.random(200) < sigmoid(0.4 * LOGITS_N - 2.0)


def test_the_expected_error_is_that_of_a_plain_loop_over_bins() -> None:
    p_N = np.append(sigmoid(LOGITS_N), [0.0, 1.0, 1 / 15])  # both ends, and the edge of the first two bins
    shown_N = np.append(SHOWN_N, [False, True, True])
    found = finding_calibration(p_N, shown_N)
    assert found is not None
    error = 0.0
    for index in range(15):
        inside = [(p, shown) for p, shown in zip(p_N, shown_N, strict=True)
                  if index / 15 < p <= (index + 1) / 15 or (index == 0 and p == 0)]
        assert found.bins[index].count == len(inside)
        if inside:
            error += abs(sum(shown for _, shown in inside) - sum(p for p, _ in inside)) / len(p_N)
            assert found.bins[index].shown == pytest.approx(sum(shown for _, shown in inside) / len(inside))
    assert found.expected_error == pytest.approx(error, abs=1e-12)
    assert found.brier == pytest.approx(sum((p - shown) ** 2 for p, shown in zip(p_N, shown_N, strict=True)) / len(p_N))
    assert finding_calibration(p_N[:0], shown_N[:0]) is None


def test_platts_scaling_is_logistic_regression_on_his_targets() -> None:
    """Each image once with its target and once with what is left of it, as scikit-learn takes whole labels alone."""
    inside, outside = int(SHOWN_N.sum()), int((~SHOWN_N).sum())
    targets_N = np.where(SHOWN_N, (inside + 1) / (inside + 2), 1 / (outside + 2))
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.tile(LOGITS_N, 2)[:, None], np.repeat([1, 0], len(LOGITS_N)),
        sample_weight=np.concatenate([targets_N, 1 - targets_N]))
    found = fit_platt(LOGITS_N.astype(np.float32), SHOWN_N)
    assert found is not None
    assert found.slope == pytest.approx(float(reference.coef_[0, 0]), rel=1e-4)
    assert found.offset == pytest.approx(float(reference.intercept_[0]), rel=1e-4)


def test_scaling_brings_probabilities_to_what_is_shown_and_keeps_their_order() -> None:
    found = fit_platt(LOGITS_N, SHOWN_N)
    assert found is not None
    p_N = finding_probabilities(LOGITS_N[:, None], [found])[:, 0]
    before, after = finding_calibration(sigmoid(LOGITS_N), SHOWN_N), finding_calibration(p_N, SHOWN_N)
    assert isinstance(before, FindingCalibration)
    assert isinstance(after, FindingCalibration)
    assert after.expected_error < before.expected_error / 3
    assert after.brier < before.brier
    assert np.array_equal(np.argsort(p_N), np.argsort(LOGITS_N))
    assert np.array_equal(finding_probabilities(LOGITS_N[:, None]), sigmoid(LOGITS_N[:, None]))


def test_a_class_that_is_ranked_worse_than_by_chance_is_not_turned_round() -> None:
    found = fit_platt(-LOGITS_N, SHOWN_N)
    assert found is not None
    assert found.slope == 1e-3
    share = float(SHOWN_N.mean())
    assert float(sigmoid(np.array([found.offset]))[0]) == pytest.approx(share, abs=0.02), "the offset gives the share"


@each_of("scale", [1e-6, 1.0, 1e4])
def test_images_that_are_told_apart_without_error_have_a_finite_scaling(scale: float) -> None:
    found = fit_platt(np.linspace(-1, 1, 40) * scale, np.arange(40) >= 20)
    assert found is not None
    assert np.isfinite([found.slope, found.offset]).all()
    assert 1e-3 <= found.slope <= 1e3


def test_nothing_is_fitted_to_images_that_are_all_alike() -> None:
    assert fit_platt(LOGITS_N, np.zeros(200, dtype=bool)) is None
    assert fit_platt(LOGITS_N, np.ones(200, dtype=bool)) is None
    for slope, offset in ((0.0, 0.0), (-1.0, 0.0), (float("inf"), 0.0), (1.0, float("nan"))):
        with pytest.raises(ValueError, match="scaling"):
            PlattScaling(slope, offset)
