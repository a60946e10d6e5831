"""The numbers of a card where images may show several findings or none."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from semisilo.common.errors import ComputeFailed
from semisilo.common.measures.finding_calibration import PlattScaling
from semisilo.common.measures.findings import (
    CHOSEN_ON_VALIDATION,
    NOT_CHOSEN,
    FindingsMeasures,
    measure_findings,
    scaling_for,
    thresholds_for,
)
from semisilo.common.measures.independent_images import independent_images
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.multi_label import sigmoid
from semisilo.common.measures.study_measure import parse_measure

LOGITS_NK = np.array([[2.0, -1.0], [1.0, 1.0], [-1.0, 3.0], [-2.0, -2.0], [0.5, 0.2]], dtype=np.float32)
ROWS_NK = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [0, -1]], dtype=np.int8)


def test_every_class_is_measured_by_itself_and_at_its_own_threshold() -> None:
    """Class a: two images show it, ranked before all three others. Class b: two of the four that are known, likewise.
    At 0.5 class a is also found in the last image."""
    found = measure_findings(LOGITS_NK, ROWS_NK, classes=("a", "b"), thresholds=(), thresholds_from=NOT_CHOSEN)
    a, b = found.classes
    assert (a.images, a.others, a.found, a.spared, a.auroc, a.threshold) == (2, 3, 2, 2, 1.0, 0.5)
    assert (b.images, b.others, b.found, b.spared, b.auroc) == (2, 2, 2, 2, 1.0)
    assert (a.sensitivity, a.specificity, a.f1) == (1.0, 2 / 3, 0.8)
    assert found.f1_macro == pytest.approx(0.9)
    assert found.exact_match == 0.8, "all but the last, of which class b is not known"
    assert found.metrics == {"auroc": 1.0, "average_precision": 1.0, "auroc/a": 1.0, "auroc/b": 1.0,
                             "average_precision/a": 1.0, "average_precision/b": 1.0}
    for measure in ("auroc", "average_precision"):
        interval = found.interval_of(parse_measure(measure))
        assert interval is not None
        assert interval.low < 1.0 == interval.high, "few images, so that the interval is wide"


def test_images_of_which_nothing_is_known_change_neither_exact_match_nor_its_interval() -> None:
    def found(logits_NK: np.ndarray, rows_NK: np.ndarray) -> FindingsMeasures:
        return measure_findings(logits_NK, rows_NK, classes=("a", "b"), thresholds=(), thresholds_from=NOT_CHOSEN)

    alone, more = found(LOGITS_NK, ROWS_NK), found(np.concatenate([LOGITS_NK, LOGITS_NK]), np.concatenate(
        [ROWS_NK, np.full_like(ROWS_NK, -1)]))
    assert (more.exact_match, more.exact_match_interval) == (alone.exact_match, alone.exact_match_interval)


def test_thresholds_of_validation_images_part_what_can_be_parted() -> None:
    """Class a is shown by logits 2 and 1 and not by 0.5: halfway between their probabilities."""
    cuts = thresholds_for(LOGITS_NK, ROWS_NK)
    assert cuts[0] == pytest.approx((1 / (1 + np.exp(-1.0)) + 1 / (1 + np.exp(-0.5))) / 2, abs=1e-6)
    found = measure_findings(LOGITS_NK, ROWS_NK, classes=("a", "b"), thresholds=cuts,
                             thresholds_from=CHOSEN_ON_VALIDATION)
    assert (found.exact_match, found.f1_macro) == (1.0, 1.0)


def test_answers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ComputeFailed, match="not finite"):
        measure_findings(np.full((1, 2), np.nan, dtype=np.float32), ROWS_NK[:1], classes=("a", "b"), thresholds=(),
                         thresholds_from=NOT_CHOSEN)


def test_micro_measures_are_scikit_learns_over_all_pairs() -> None:
    random = np.random.default_rng(5)
    rows_NK = (random.random((60, 3)) < (0.5, 0.2, 0.1)).astype(np.int8)
    logits_NK = (random.normal(size=(60, 3)) + 2 * rows_NK - 1).astype(np.float32)
    rows_NK[:20, 2] = -1
    known_NK, cuts = rows_NK >= 0, (0.5, 0.4, 0.3)
    p_P, truth_P = sigmoid(logits_NK)[known_NK], rows_NK[known_NK]
    yes_P = (sigmoid(logits_NK) >= np.array(cuts))[known_NK]
    micro = measure_findings(logits_NK, rows_NK, classes=("a", "b", "c"), thresholds=cuts, thresholds_from="x").micro
    assert micro.auroc == pytest.approx(roc_auc_score(truth_P, p_P), abs=1e-12)
    assert micro.average_precision == pytest.approx(average_precision_score(truth_P, p_P), abs=1e-12)
    assert micro.f1 == pytest.approx(f1_score(truth_P, yes_P), abs=1e-12)
    assert micro.precision == pytest.approx(precision_score(truth_P, yes_P), abs=1e-12)
    assert micro.sensitivity == pytest.approx(recall_score(truth_P, yes_P), abs=1e-12)
    assert micro.specificity == pytest.approx(recall_score(1 - truth_P, ~yes_P), abs=1e-12)
    for value, interval in ((micro.auroc, micro.auroc_interval), (micro.f1, micro.f1_interval),
                            (micro.average_precision, micro.average_precision_interval)):
        assert interval is not None
        assert value is not None
        assert interval.low < value < interval.high


def test_findings_that_come_together_are_counted_as_shown_and_as_answered() -> None:
    found = measure_findings(LOGITS_NK, ROWS_NK, classes=("a", "b"), thresholds=(), thresholds_from=NOT_CHOSEN)
    assert found.together_shown == ((2, 1), (1, 2))
    assert found.together_found == ((3, 1), (1, 2)), "of the last image class b is not known"
    a, b = found.classes
    assert (a.missed, a.falsely_found, a.precision) == (0, 1, 2 / 3)
    assert (b.missed, b.falsely_found, b.precision) == (0, 0, 1.0)


def test_scaling_of_validation_images_changes_probabilities_and_not_what_is_found() -> None:
    random = np.random.default_rng(6)
    rows_NK = (random.random((300, 2)) < 0.2).astype(np.int8)
    rows_NK[:, 1] = 0
    logits_NK = (random.normal(size=(300, 2)) + 2 * rows_NK + 1).astype(np.float32)
    scaling = scaling_for(logits_NK, rows_NK)
    assert scaling[1] == PlattScaling(), "no image shows it"
    plain, scaled = (measure_findings(logits_NK, rows_NK, classes=("a", "b"), scaling=each, thresholds_from="x",
                                      thresholds=thresholds_for(logits_NK, rows_NK, scaling=each))
                     for each in ((), scaling))
    assert plain.expected_error_macro_with_scaling is None
    assert scaled.expected_error_macro == plain.expected_error_macro
    first, again = plain.classes[0], scaled.classes[0]
    assert (first.found, first.spared, first.auroc) == (again.found, again.spared, again.auroc)
    assert first.threshold != again.threshold
    assert again.scaling == scaling[0]
    assert again.calibration == first.calibration
    assert again.calibration_with_scaling is not None
    assert first.calibration is not None
    assert again.calibration_with_scaling.expected_error < first.calibration.expected_error / 3
    assert scaled.classes[1].scaling is None


def test_three_alike_images_of_every_patient_say_as_much_as_one_of_each() -> None:
    """Of shares, F1 and micro numbers; by image their intervals would be narrower."""
    generator = np.random.default_rng(4)
    rows_NK = generator.integers(-1, 2, (40, 2)).astype(np.int8)
    logits_NK = (rows_NK + generator.normal(size=(40, 2))).astype(np.float32)
    patients = [str(image // 3) for image in range(120)]

    def of(times: int, patients: list[str]) -> list[Interval]:
        rows = np.repeat(rows_NK, times, axis=0)
        found = measure_findings(np.repeat(logits_NK, times, axis=0), rows, classes=("a", "b"), thresholds=(),
                                 thresholds_from=NOT_CHOSEN, patients=patients, independent=independent_images(
                                     patients, rows, 2) if patients else None)
        a, micro = found.classes[0], found.micro
        intervals = [a.precision_interval, a.f1_interval, a.sensitivity_interval, found.exact_match_interval,
                     micro.auroc_interval, micro.average_precision_interval, micro.f1_interval,
                     micro.precision_interval, micro.sensitivity_interval, micro.specificity_interval]
        assert None not in intervals
        return [each for each in intervals if each is not None]
    for once, thrice, by_image in zip(of(1, []), of(3, patients), of(3, []), strict=True):
        assert (thrice.low, thrice.high) == (pytest.approx(once.low), pytest.approx(once.high))
        assert by_image.high - by_image.low < 0.7 * (once.high - once.low)
