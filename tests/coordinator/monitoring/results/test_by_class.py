"""A model class by class: from its confusion, or from the recalls of rounds that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.common.measures.intervals import area_interval, precision_interval, wilson
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.progress import confusion_of
from semisilo.coordinator.monitoring.results.by_class import Mistake, by_class
from tests.coordinator.ledger_fixture import TEST_IMAGES, fill_study

CLASSES = ("basophil", "eosinophil", "lymphocyte")
COUNTS = ((8, 2, 0), (1, 3, 4), (0, 0, 0))


def test_recalls_with_their_intervals_and_mistakes_come_from_the_confusion() -> None:
    found = by_class(CLASSES, {}, images=(), confusion=COUNTS, round=4)
    assert found is not None
    assert [(line.images, line.recall, line.interval) for line in found.classes] == [
        (10, 0.8, wilson(8, 10)), (8, 0.375, wilson(3, 8)), (0, None, None)]
    assert found.confusion == COUNTS
    assert found.mistakes == (
        Mistake(true="eosinophil", predicted="lymphocyte", images=4, share=0.5),
        Mistake(true="basophil", predicted="eosinophil", images=2, share=0.2),
        Mistake(true="eosinophil", predicted="basophil", images=1, share=0.125))


def test_a_round_without_a_confusion_has_its_recalls_and_where_images_are_counted_intervals() -> None:
    metrics = {"recall/basophil": 0.7, "recall/eosinophil": 2 / 3}
    found = by_class(CLASSES, metrics, images=(10, 9, 0), confusion=(), round=1)
    assert found is not None
    assert [line.interval for line in found.classes] == [wilson(7, 10), wilson(6, 9), None]
    assert found.confusion == ()
    uncounted = by_class(CLASSES, metrics, images=(), confusion=(), round=1)
    assert uncounted is not None
    assert [(line.recall, line.interval) for line in uncounted.classes] == [(0.7, None), (2 / 3, None), (None, None)]
    assert by_class(CLASSES, {"accuracy": 0.5}, images=(), confusion=(), round=1) is None


def test_the_ledger_keeps_the_confusion_of_every_round_until_the_study_goes_back(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "hub", rounds=3).ledger
    for number in range(4):
        counts = confusion_of(ledger, "first", number)
        assert tuple(map(sum, counts)) == TEST_IMAGES
        right = sum(row[label] for label, row in enumerate(counts)) / sum(TEST_IMAGES)
        assert right == pytest.approx(ledger.round("first", number).metrics["accuracy"], abs=0.02)
    roll_back(ledger, "first", 1, operator="", reason="")
    assert [bool(confusion_of(ledger, "first", number)) for number in range(4)] == [True, True, False, False]


def test_of_images_with_several_labels_every_class_is_a_question_of_its_own() -> None:
    """Three images show the first class and seven do not; of the second it is known of six. The third nobody shows."""
    metrics = {"auroc/basophil": 0.9, "average_precision/basophil": 0.8, "calibration_error/basophil": 0.1,
               "auroc/eosinophil": 0.7, "average_precision/eosinophil": 0.5}
    found = by_class(CLASSES, metrics, images=(3, 2, 0), confusion=((2, 1, 3, 4), (1, 1, 0, 4), (0, 0, 1, 9)), round=2,
                     findings_of=10)
    assert found is not None
    assert (found.images, found.confusion, found.mistakes) == (10, (), ())
    first, second, third = found.findings
    assert (first.images, first.others, first.found, first.missed, first.falsely_found, first.spared) == (3, 7, 2, 1, 3,
                                                                                                          4)
    assert (first.sensitivity, first.specificity, first.calibration_error) == (2 / 3, 4 / 7, 0.1)
    assert first.auroc_interval == area_interval(0.9, inside=3, outside=7)
    assert first.average_precision_interval == precision_interval(0.8, inside=3)
    assert first.specificity_interval == wilson(4, 7)
    assert (second.images, second.others) == (2, 4)
    assert (third.auroc, third.sensitivity, third.specificity) == (None, None, 0.9)
    assert [line.recall for line in found.classes] == [2 / 3, 0.5, None]
    older = by_class(CLASSES, {"auroc/basophil": 0.9, "recall/basophil": 0.5}, images=(3, 2, 0), confusion=(), round=2,
                     findings_of=10)
    assert older is not None
    line = older.findings[0]
    assert (line.auroc, line.auroc_interval, line.sensitivity) == (0.9, None, 0.5)
    assert by_class(CLASSES, {}, images=(), confusion=(), round=2, findings_of=10) is None
