"""What a model is worth, from its answers alone, on a set that is small enough to count by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semisilo.common.config import canonical_json
from semisilo.common.errors import ComputeFailed
from semisilo.common.measures.calibration import fit_temperature
from semisilo.common.measures.gain import ImageCounts, interval_of
from semisilo.common.measures.independent_images import independent_images
from semisilo.common.measures.intervals import wilson
from semisilo.common.measures.study_measure import parse_measure
from semisilo.coordinator.export.measures import measure, temperature_for

LOGITS = np.array([[2, 0, 0], [1, 0, 0], [0, 3, 0], [2, 1, 0], [1, 1, 0]], dtype=np.float32)
"""The predictions are 0, 0, 1, 0, and 0 again: of equal logits the lowest class."""
LABELS = np.array([0, 0, 1, 1, 0])
CLASSES = ("a", "b", "c")


def test_counts_shares_and_intervals_are_those_of_the_confusion_matrix() -> None:
    found = measure(LOGITS, LABELS, classes=CLASSES)
    assert found.confusion == ((3, 0, 0), (1, 1, 0), (0, 0, 0))
    assert (found.images, found.right, found.accuracy, found.accuracy_interval) == (5, 4, 0.8, wilson(4, 5))
    assert found.balanced_accuracy == pytest.approx((3 / 3 + 1 / 2) / 2), "classes that do not occur do not count"
    a, b, c = found.classes
    assert (a.images, a.predicted, a.right, a.recall, a.precision) == (3, 4, 3, 1.0, 0.75)
    assert (b.recall, b.recall_interval, b.precision_interval) == (0.5, wilson(1, 2), wilson(1, 1))
    assert (c.images, c.recall, c.recall_interval, c.precision, c.auroc) == (0, None, None, None, None)


def test_of_very_many_classes_only_cells_that_are_not_0_are_kept() -> None:
    number = 301
    labels = np.arange(number).repeat(2)
    logits = np.eye(number, dtype=np.float32)[labels]
    logits[1] = np.eye(number, dtype=np.float32)[7]
    found = measure(logits, labels, classes=[f"c{label}" for label in range(number)])
    assert found.confusion == ()
    assert found.confusion_cells[:3] == ((0, 0, 1), (0, 7, 1), (1, 1, 2))
    assert (len(found.confusion_cells), sum(cell[2] for cell in found.confusion_cells)) == (302, 602)
    assert (found.right, found.classes[7].predicted) == (601, 3)
    written = canonical_json(found)
    assert len(written) < 1000 * number, "each class has a line, not each pair of them"
    few = measure(LOGITS, LABELS, classes=CLASSES)
    assert "confusion_cells" not in canonical_json(few)


def test_the_area_under_the_curve_is_the_share_of_pairs_in_the_right_order() -> None:
    found = measure(LOGITS, LABELS, classes=CLASSES)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    for label in (0, 1):
        pairs = [(inside, outside) for inside in p[label == LABELS, label] for outside in p[label != LABELS, label]]
        assert found.classes[label].auroc == pytest.approx(
            sum(1.0 if inside > outside else 0.5 if inside == outside else 0.0 for inside, outside in pairs)
            / len(pairs))


def test_everything_right_on_a_handful_of_images_is_no_certainty() -> None:
    """Read as on the page: the intervals are those of the same numbers there."""
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    found = measure(np.eye(2, dtype=np.float32)[labels] * 3, labels, classes=("a", "b"))
    assert (found.balanced_accuracy, found.auroc_macro) == (1.0, 1.0)
    for kind, interval in (("balanced_accuracy", found.balanced_accuracy_interval),
                           ("auroc", found.auroc_macro_interval)):
        assert interval is not None
        assert interval.low < 0.7 < interval.high == 1.0
        assert interval == found.interval_of(parse_measure(kind)) == interval_of(
            parse_measure(kind), classes=("a", "b"), images=ImageCounts(8, (5, 3)), metrics=found.metrics)


def test_a_temperature_changes_the_calibration_and_no_prediction() -> None:
    plain = measure(LOGITS, LABELS, classes=CLASSES)
    assert (plain.temperature, plain.calibration_with_temperature) == (1.0, None)
    cool = measure(LOGITS, LABELS, classes=CLASSES, temperature=2.0)
    assert cool.calibration_with_temperature is not None
    assert (cool.confusion, cool.calibration) == (plain.confusion, plain.calibration)
    assert cool.calibration_with_temperature.negative_log_likelihood == pytest.approx(-np.mean([
        math.log(math.exp(row[label] / 2) / sum(math.exp(x / 2) for x in row))
        for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)]))
    assert temperature_for(LOGITS, LABELS) == fit_temperature(LOGITS, LABELS)


def test_answers_that_are_not_finite_are_not_measured() -> None:
    for wrong in (np.nan, np.inf):
        logits = LOGITS.copy()
        logits[0, 0] = wrong
        with pytest.raises(ComputeFailed, match="not finite"):
            measure(logits, LABELS, classes=CLASSES)
        with pytest.raises(ComputeFailed, match="not finite"):
            temperature_for(logits, LABELS)


def test_precisions_go_by_patient_as_the_other_intervals_do() -> None:
    logits, labels = np.repeat(LOGITS, 3, axis=0), np.repeat(LABELS, 3)
    patients = [str(image // 3) for image in range(15)]
    once = measure(LOGITS, LABELS, classes=CLASSES)
    thrice = measure(logits, labels, classes=CLASSES, independent=independent_images(patients, labels, 3),
                     patients=patients)
    for one, other in zip(once.classes, thrice.classes, strict=True):
        for found, wanted in ((other.precision_interval, one.precision_interval),
                              (other.recall_interval, one.recall_interval)):
            assert (found is None) == (wanted is None)
            if found is not None and wanted is not None:
                assert (found.low, found.high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))
