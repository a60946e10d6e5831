"""Counts of one site, and what follows from them: impossible ones are refused, intervals are those of formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest

from semisilo.common.measures.gain import ImageCounts, interval_of
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.intervals import around, wilson
from semisilo.common.measures.site_evaluation import (
    MAX_IMAGES,
    ClassResult,
    Estimate,
    SiteEvaluation,
    estimate_text,
    site_scores,
)
from semisilo.common.measures.study_measure import ACCURACY, parse_measure
from tests.each_of import each_of

CLASSES = ("benign", "malignant", "never seen")
FOUND = SiteEvaluation(study="s", round=4, classes=(
    ClassResult(images=80, correct=72, auroc=0.9), ClassResult(images=20, correct=10, auroc=0.8),
    ClassResult(images=0, correct=0)))


def test_accuracy_and_recall_have_wilsons_interval() -> None:
    scores = site_scores(FOUND, parse_measure("recall:malignant"), CLASSES)
    all_images, malignant = wilson(82, 100), wilson(10, 20)
    assert all_images is not None
    assert malignant is not None
    assert scores.count == 100
    assert scores.accuracy == Estimate(value=0.82, low=all_images.low, high=all_images.high)
    assert scores.measure == Estimate(value=0.5, low=malignant.low, high=malignant.high)


def test_balanced_accuracy_is_over_classes_with_images_and_its_interval_is_that_of_a_mean_of_shares() -> None:
    """(0.9 + 0.5) / 2 = 0.7, with Wilson's interval of either."""
    first, second = wilson(72, 80), wilson(10, 20)
    assert first is not None
    assert second is not None
    found = site_scores(FOUND, ACCURACY, CLASSES).balanced_accuracy
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((
        0.7, 0.7 - math.hypot(0.9 - first.low, 0.5 - second.low) / 2,
        0.7 + math.hypot(first.high - 0.9, second.high - 0.5) / 2))


@each_of("measure", ["balanced_accuracy", "auroc"])
def test_everything_right_on_a_handful_of_images_is_no_certainty_and_reads_as_at_the_coordinator(measure: str) -> None:
    found = SiteEvaluation(study="s", round=1, classes=(ClassResult(images=2, correct=2, auroc=1.0),) * 2)
    here = site_scores(found, parse_measure(measure), ("a", "b")).measure
    there = interval_of(parse_measure(measure), classes=("a", "b"), images=ImageCounts(4, (2, 2)), metrics={
        "auroc/a": 1.0, "auroc/b": 1.0, "recall/a": 1.0, "recall/b": 1.0})
    assert here is not None
    assert there is not None
    assert (here.value, here.low, here.high) == (1.0, there.low, there.high)
    assert here.low < 0.7


def test_images_of_which_a_class_is_not_known_make_no_interval_narrower() -> None:
    """Of 100 images class a is known of 10."""
    few = ClassResult(images=5, correct=4, others=5, auroc=0.8, average_precision=0.8)
    alone = SiteEvaluation(study="s", round=1, classes=(few, few))
    beside = SiteEvaluation(study="s", round=1, classes=(
        few, few, ClassResult(images=0, correct=0, others=100, average_precision=0.5)))
    for measure in (parse_measure("auroc"), parse_measure("average_precision")):
        first, second = (site_scores(each, measure, CLASSES[:len(each.classes)]).measure for each in (alone, beside))
        assert first == second
        assert first is not None
        assert first.high - first.low > 0.4


def test_an_auroc_is_the_mean_over_classes_that_have_one() -> None:
    found = site_scores(FOUND, parse_measure("auroc"), CLASSES).measure
    assert found is not None
    assert found.value == pytest.approx(0.85)
    assert 0.7 < found.low < 0.85 < found.high <= 1


@pytest.mark.parametrize(("measure", "found"), [
    ("recall:never seen", FOUND),
    ("auroc", SiteEvaluation(study="s", round=1, classes=(ClassResult(images=3, correct=2), *(
        ClassResult(images=0, correct=0),) * 2)))])
def test_a_measure_that_these_images_cannot_give_is_none(measure: str, found: SiteEvaluation) -> None:
    assert site_scores(found, parse_measure(measure), CLASSES).measure is None


@each_of(("images", "correct", "auroc"), [
    (3, 4, None), (-1, 0, None), (3, -1, None), (MAX_IMAGES + 1, 0, None), (3, 1, 1.01), (3, 1, -0.1),
    (3, 1, math.nan), (3, 1, math.inf)])
def test_counts_of_a_class_that_cannot_be_are_refused(images: int, correct: int, auroc: float | None) -> None:
    with pytest.raises(ValueError, match=r"cannot be right|not an area"):
        ClassResult(images=images, correct=correct, auroc=auroc)


@each_of("changes", [
    {"round": -1}, {"classes": ()}, {"classes": (ClassResult(images=0, correct=0),)},
    {"classes": (ClassResult(images=MAX_IMAGES, correct=0), ClassResult(images=1, correct=0))},
    {"classes": (ClassResult(images=5, correct=5, auroc=0.5), ClassResult(images=0, correct=0))},
    {"classes": (ClassResult(images=5, correct=5), ClassResult(images=0, correct=0, auroc=0.5))},
    {"labels_alone": True}])
def test_an_evaluation_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"study": "s", "round": 2, "classes": (ClassResult(images=1, correct=1),)}
    SiteEvaluation(**good)
    with pytest.raises(ValueError, match=r"cannot be|no round|no area"):
        SiteEvaluation(**good | changes)


def test_scores_need_the_study_s_own_classes() -> None:
    with pytest.raises(ValueError, match="3 classes; the study has 2"):
        site_scores(FOUND, ACCURACY, CLASSES[:2])
    with pytest.raises(ValueError, match="no class 'other'"):
        site_scores(FOUND, parse_measure("recall:other"), CLASSES)


def test_an_interval_around_a_value_stays_within_0_and_1() -> None:
    assert (around(0.5, 0.1).low, around(0.5, 0.1).high) == pytest.approx((0.5 - 0.1959964, 0.5 + 0.1959964))
    assert (around(0.99, 0.1).high, around(0.01, 0.1).low) == (1.0, 0.0)
    for value, error in ((1.1, 0.1), (0.5, -0.1), (math.nan, 0.1)):
        with pytest.raises(ValueError, match="-\\+"):
            around(value, error)


def test_a_person_reads_percentages_of_shares_and_digits_of_areas() -> None:
    found = Estimate(value=0.8123, low=0.76, high=0.8549)
    assert estimate_text(found, ACCURACY) == "81.2 % (76.0 to 85.5 %)"
    assert estimate_text(found, parse_measure("auroc")) == "0.812 (0.760 to 0.855)"
    assert estimate_text(None, ACCURACY) == "not measurable here"


SEVERAL = SiteEvaluation(study="s", round=3, classes=(
    ClassResult(images=30, correct=20, auroc=0.9, others=70, correct_others=65, average_precision=0.8),
    ClassResult(images=5, correct=1, auroc=0.7, others=95, correct_others=95, average_precision=0.4),
    ClassResult(images=0, correct=0, others=40, correct_others=40)))


def test_where_images_have_several_labels_the_measure_alone_is_told_of_a_site() -> None:
    """Of the third class only 40 images are known, and the first two are of 100 images each."""
    for name, value in (("auroc", 0.8), ("average_precision", 0.6)):
        scores = site_scores(SEVERAL, parse_measure(name), CLASSES)
        assert (scores.count, scores.accuracy, scores.balanced_accuracy) == (100, None, None)
        assert scores.measure is not None
        assert scores.measure.value == pytest.approx(value)
        assert list(scores.by_measure(parse_measure(name))) == [parse_measure(name)]
    assert site_scores(SEVERAL, ACCURACY, CLASSES).measure is None


@each_of("wrong", [
    {"others": 5, "correct_others": 6}, {"others": 5, "average_precision": 1.5}, {"correct_others": 1}])
def test_counts_of_other_images_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be right|not an average precision"):
        ClassResult(**{"images": 5, "correct": 3, **wrong})
    with pytest.raises(ValueError, match="all classes"):
        SiteEvaluation(study="s", round=1, classes=(ClassResult(images=1, correct=1, others=3),
                                                    ClassResult(images=1, correct=1)))


def test_where_the_site_knows_its_patients_all_intervals_go_by_them() -> None:
    worth = IndependentImages(patients=10, total=10.0, by_class=(8.0, 2.0, 0.0), without=(2.0, 8.0, 10.0))
    for measure in ("accuracy", "balanced_accuracy", "recall:malignant", "auroc"):
        wide, narrow = (site_scores(FOUND, parse_measure(measure), CLASSES, each).measure for each in (worth, None))
        assert wide is not None
        assert narrow is not None
        assert wide.value == narrow.value
        assert wide.high - wide.low > 1.4 * (narrow.high - narrow.low)
    accuracy = site_scores(FOUND, ACCURACY, CLASSES, worth).accuracy
    assert accuracy is not None
    assert accuracy.high - accuracy.low > 0.4
