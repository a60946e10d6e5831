"""Measures of images that may have several labels or none, against scikit-learn's and against derivations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from semisilo.common.errors import BadData
from semisilo.common.measures.multi_label import (
    ClassCounts,
    area_parts,
    average_precisions,
    best_thresholds,
    counts_at,
    exact_match,
    f1_of,
    finding_areas,
    sigmoid,
)

RANDOM = np.random.default_rng(7)
ROWS_NK = (RANDOM.random((80, 4)) < (0.5, 0.2, 0.1, 0.9)).astype(np.int8)
SCORES_NK = np.round(sigmoid(RANDOM.normal(size=(80, 4)) + 1.5 * ROWS_NK), 1)  # many are equal


def test_areas_and_average_precisions_are_scikit_learns() -> None:
    areas, precisions = finding_areas(SCORES_NK, ROWS_NK), average_precisions(SCORES_NK, ROWS_NK)
    for label in range(4):
        truth_N, scores_N = ROWS_NK[:, label], SCORES_NK[:, label]
        assert areas.per_class[label] == pytest.approx(roc_auc_score(truth_N, scores_N), abs=1e-12)
        assert precisions.per_class[label] == pytest.approx(average_precision_score(truth_N, scores_N), abs=1e-12)
    assert areas.macro == pytest.approx(roc_auc_score(ROWS_NK, SCORES_NK, average="macro"), abs=1e-12)
    assert precisions.macro == pytest.approx(average_precision_score(ROWS_NK, SCORES_NK, average="macro"), abs=1e-12)


def test_f1_and_exact_match_at_cut_offs_are_scikit_learns() -> None:
    cuts_K = np.array([0.5, 0.7, 0.3, 0.9])
    counts, answers_NK = counts_at(SCORES_NK, ROWS_NK, cuts_K), cuts_K <= SCORES_NK
    for label, of_class in enumerate(counts):
        assert f1_of(of_class) == pytest.approx(f1_score(ROWS_NK[:, label], answers_NK[:, label]), abs=1e-12)
        assert of_class.images == 80
    assert exact_match(SCORES_NK, ROWS_NK, cuts_K) == (answers_NK == (ROWS_NK == 1)).all(axis=1).mean()


def test_the_chosen_cut_off_has_the_largest_f1_of_all() -> None:
    for label, cut in enumerate(best_thresholds(SCORES_NK, ROWS_NK)):
        truth_N, scores_N = ROWS_NK[:, label], SCORES_NK[:, label]
        best = max(f1_score(truth_N, scores_N >= each) for each in np.unique(scores_N))
        assert f1_score(truth_N, scores_N >= cut) == pytest.approx(best, abs=1e-12)


def test_a_class_without_images_has_no_measure_and_a_cut_off_of_a_half() -> None:
    rows_NK, scores_NK = np.array([[0, 1], [0, 1], [0, 0]]), np.array([[0.2, 0.9], [0.7, 0.8], [0.1, 0.3]])
    assert finding_areas(scores_NK, rows_NK).per_class == (None, 1.0)
    assert average_precisions(scores_NK, rows_NK).per_class == (None, 1.0)
    assert best_thresholds(scores_NK, rows_NK) == (0.5, pytest.approx(0.55))
    assert f1_of(ClassCounts(0, 0, 2, 1)) is None
    assert finding_areas(scores_NK[:2], rows_NK[:2]).macro is None


def test_images_of_which_a_class_is_not_known_do_not_count_for_it() -> None:
    unknown_NK = ROWS_NK.copy()
    unknown_NK[:30, 1] = -1
    areas, parts = finding_areas(SCORES_NK, unknown_NK), area_parts(SCORES_NK, unknown_NK)
    assert areas.per_class[1] == pytest.approx(roc_auc_score(ROWS_NK[30:, 1], SCORES_NK[30:, 1]), abs=1e-12)
    assert areas.per_class[0] == finding_areas(SCORES_NK, ROWS_NK).per_class[0]
    assert counts_at(SCORES_NK, unknown_NK, np.full(4, 0.5))[1].images == 50
    assert parts is not None
    assert parts.macro == pytest.approx(areas.macro, abs=1e-12)


def test_images_of_which_nothing_is_known_are_no_exact_matches() -> None:
    rows_NK, scores_NK, cuts_K = np.array([[1, 0], [0, -1], [-1, -1]]), np.full((3, 2), 0.2), np.full(2, 0.5)
    assert exact_match(scores_NK, rows_NK, cuts_K) == 0.5
    assert exact_match(scores_NK[2:], rows_NK[2:], cuts_K) == 0.0


def test_the_parts_of_an_area_give_delongs_variance() -> None:
    """Of one class: var(V10) / n + var(V01) / m with the variances' divisors n and m; V10 of an image of the class is
    the share of others below it."""
    rows_N1, scores_N1 = ROWS_NK[:, :1], SCORES_NK[:, :1]
    found = area_parts(scores_N1, rows_N1)
    assert found is not None
    inside, outside = scores_N1[rows_N1 == 1], scores_N1[rows_N1 == 0]
    wins = (inside[:, None] > outside[None]) + 0.5 * (inside[:, None] == outside[None])
    variance = wins.mean(axis=1).var() / len(inside) + wins.mean(axis=0).var() / len(outside)
    assert found.macro == pytest.approx(wins.mean(), abs=1e-12)
    assert (found.influence_N**2).sum() == pytest.approx(variance, rel=1e-9)
    assert found.influence_N.sum() == pytest.approx(0, abs=1e-12)


def test_a_sigmoid_of_large_logits_does_not_overflow() -> None:
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert sigmoid(np.array([[-1e4, 0.0, 1e4, 1.0]])).tolist() == [[0.0, 0.5, 1.0, 1 / (1 + math.exp(-1))]]


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        finding_areas(SCORES_NK, ROWS_NK[:, :3])
    with pytest.raises(BadData, match="has none"):
        exact_match(SCORES_NK[:0], ROWS_NK[:0], np.full(4, 0.5))
