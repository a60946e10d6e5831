"""Calibration and ranking, against plain counting, scikit-learn, scipy and derivations by hand."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from semisilo.common.errors import BadData
from semisilo.common.measures.calibration import (
    auroc,
    calibration_at,
    calibration_of,
    fit_temperature,
    negative_log_likelihood,
    probabilities,
)

RANDOM = np.random.default_rng(7)
LABELS = RANDOM.integers(0, 4, 400)
LOGITS = (RANDOM.normal(size=(400, 4)) + 1.5 * np.eye(4)[LABELS]).astype(np.float32)


def test_the_expected_calibration_error_of_a_case_that_can_be_done_by_hand() -> None:
    """Two bins of (0.5, 1]: at 10 bins 0.6 lies in (0.5, 0.6] and 0.9 in (0.8, 0.9].

    0.6 twice, one right: |0.5 - 0.6| = 0.1; 0.9 three times, all right: |1 - 0.9| = 0.1; ECE = 2/5 * 0.1 + 3/5 * 0.1.
    """
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    found = calibration_of(p, np.array([0, 1, 0, 0, 1]), bins=10)
    assert found.expected_error == pytest.approx(0.1)
    filled = {round(each.high, 1): (each.count, each.accuracy) for each in found.bins if each.count}
    assert filled == {0.6: (2, 0.5), 0.9: (3, 1.0)}
    assert found.brier == pytest.approx((2 * 0.16 + 2 * 0.36 + 3 * 2 * 0.01) / 5)


def test_a_model_that_is_always_sure_and_half_right_is_off_by_a_half() -> None:
    found = calibration_of(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert found.expected_error == 0.5
    assert found.brier == 1.0
    assert math.isinf(found.negative_log_likelihood)


def test_the_likelihood_is_that_of_scikit_learn_and_the_brier_score_that_of_its_formula() -> None:
    from sklearn.metrics import log_loss

    p = probabilities(LOGITS)
    found = calibration_of(p, LABELS)
    assert found.negative_log_likelihood == pytest.approx(log_loss(LABELS, p))
    assert negative_log_likelihood(LOGITS, LABELS) == pytest.approx(log_loss(LABELS, p))
    assert found.brier == pytest.approx(((p - np.eye(4)[LABELS]) ** 2).sum() / len(LABELS), rel=1e-14)


def test_the_brier_score_counts_both_of_two_classes_and_classes_that_do_not_occur() -> None:
    """(0.75, 0.25) with class 0: 0.0625 twice; (0.5, 0.25, 0.25) with class 0: 0.25 + 0.0625 + 0.0625."""
    assert calibration_of(np.array([[0.75, 0.25]]), np.array([0])).brier == 0.125
    assert calibration_of(np.array([[0.5, 0.25, 0.25]]), np.array([0])).brier == 0.375


def test_bins_hold_every_image_once_also_at_the_ends() -> None:
    p = np.array([[0.5, 0.5], [1.0, 0.0], [0.75, 0.25]])
    for bins in (1, 2, 3, 4, 15):
        assert sum(each.count for each in calibration_of(p, np.array([0, 0, 0]), bins=bins).bins) == 3
    assert [each.count for each in calibration_of(p, np.array([0, 0, 0]), bins=2).bins] == [1, 2]  # 0.5 is not above


def _area(scores_N: np.ndarray, is_class_N: np.ndarray) -> float:
    """The share of pairs (an image of the class, another) in which the first has the higher score; ties count half."""
    inside, outside = scores_N[is_class_N][:, None], scores_N[~is_class_N][None, :]
    return float((inside > outside).mean() + 0.5 * (inside == outside).mean())


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order_with_ties_too() -> None:
    p = probabilities(LOGITS)
    coarse = np.round(p, 1)
    for scores in (p, coarse):
        found = auroc(scores, LABELS)
        assert found is not None
        expected = [_area(scores[:, label], label == LABELS) for label in range(4)]
        assert found.per_class == pytest.approx(expected, rel=1e-12)
        assert found.macro == pytest.approx(np.mean(expected), rel=1e-12)


@pytest.mark.parametrize("decimals", [None, 2, 1, 0])
def test_areas_and_brier_score_are_those_of_scikit_learn_with_ties_too(decimals: int | None) -> None:
    from sklearn.metrics import brier_score_loss, roc_auc_score

    p = probabilities(LOGITS)
    scores = p if decimals is None else np.round(p, decimals)
    found = auroc(scores, LABELS)
    assert found is not None
    for label, area in enumerate(found.per_class):
        assert area == pytest.approx(roc_auc_score(label == LABELS, scores[:, label]), rel=1e-12)
    assert calibration_of(p, LABELS).brier == pytest.approx(
        brier_score_loss(LABELS, p, labels=range(4), scale_by_half=False), rel=1e-12)


def test_measuring_does_not_load_scikit_learn_nor_torch() -> None:
    """It is done in every round, and by people who predict without torch."""
    code = ("import sys, numpy, semisilo.common.measures.calibration as c; p = c.probabilities(numpy.zeros((2, 2)));"
            "c.auroc(p, numpy.array([0, 1])); c.calibration_of(p, numpy.array([0, 1]));"
            "print('sklearn' in sys.modules, 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])})
    assert done.stdout.split() == ["False", "False"]


def test_a_class_that_does_not_occur_has_no_area() -> None:
    p = probabilities(LOGITS)[:3]
    found = auroc(p, np.array([0, 0, 2]))
    assert found is not None
    assert found.per_class[1] is None
    assert found.per_class[3] is None
    assert auroc(p, np.array([0, 0, 0])) is None


def _with_targets(logits_NK: np.ndarray, labels_N: np.ndarray, temperature: float) -> float:
    """Mean cross-entropy against the targets of `fit_temperature`, image by image and class by class."""
    count, classes = logits_NK.shape
    total = 0.0
    for row, label in zip(logits_NK.astype(float) / temperature, labels_N, strict=True):
        log_p = row - np.logaddexp.reduce(row)
        for each in range(classes):
            target = (count + 1) / (count + 2) if each == label else 1 / (count + 2) / (classes - 1)
            total -= target * log_p[each]
    return total / count


def test_the_temperature_is_the_one_that_scipy_finds_and_never_worse_than_none() -> None:
    from scipy.optimize import minimize_scalar

    sharp = LOGITS * 6
    found = fit_temperature(sharp, LABELS)
    by_scipy = minimize_scalar(lambda t: _with_targets(sharp, LABELS, t), bounds=(0.1, 50), method="bounded",
                               options={"xatol": 1e-8})
    assert found == pytest.approx(by_scipy.x, rel=1e-4)
    assert found == pytest.approx(6 * fit_temperature(LOGITS, LABELS), rel=1e-6)
    assert negative_log_likelihood(sharp, LABELS, temperature=found) < negative_log_likelihood(sharp, LABELS)


@pytest.mark.slow
def test_labels_drawn_from_the_probabilities_themselves_need_no_temperature() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(60_000, 3)) * 2
    p = probabilities(logits)
    labels = (p.cumsum(axis=1) < generator.random((60_000, 1))).sum(axis=1)
    assert fit_temperature(logits, labels) == pytest.approx(1.0, abs=0.03)
    assert calibration_of(p, labels).expected_error < 0.01


@pytest.mark.parametrize(("count", "classes", "margin"), [(2, 2, 1.0), (40, 2, 9.0), (40, 10, 9.0), (1000, 10, 0.5)])
def test_a_model_that_is_right_on_all_images_is_as_sure_as_their_number_allows(count: int, classes: int, margin: float
                                                                               ) -> None:
    """All K - 1 others are m lower: e^(m/T) / (e^(m/T) + K - 1) = (N + 1) / (N + 2) at T = m / ln((N + 1)(K - 1)).

    Without the targets the least loss is at T = 0, where a probability of 1.000000 belongs to every later error.
    """
    labels = np.arange(count) % classes
    logits = margin * np.eye(classes)[labels]
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(margin / math.log((count + 1) * (classes - 1)), rel=1e-9)
    assert probabilities(logits, temperature=found).max(axis=1) == pytest.approx((count + 1) / (count + 2))


def test_a_temperature_where_nothing_fits_is_the_end_of_the_range_and_none_where_nothing_is_told_apart() -> None:
    assert fit_temperature(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1, 0])) == pytest.approx(1e3)
    assert fit_temperature(np.array([[3.0, 3.0], [-1.0, -1.0]]), np.array([1, 0])) == 1.0


def test_the_likelihood_from_logits_is_finite_where_a_probability_is_too_small_for_a_float() -> None:
    """One image of two is wrong by 4000: ln(1 + e^-4000) = 0 and 4000, a mean of 2000; at T = 2 half of that."""
    logits, labels = np.array([[4000.0, 0.0], [4000.0, 0.0]]), np.array([0, 1])
    assert probabilities(logits)[1, 1] == 0.0
    assert calibration_at(logits, labels).negative_log_likelihood == 2000.0
    found = calibration_at(logits, labels, temperature=2.0)
    assert found.negative_log_likelihood == 1000.0
    assert (found.expected_error, found.brier) == (0.5, 1.0)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(BadData, match="labelled images"):
        calibration_of(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueError, match="belong together"):
        calibration_of(np.full((2, 2), 0.5), np.array([0]))
    with pytest.raises(ValueError, match="temperature"):
        probabilities(LOGITS, temperature=0)
