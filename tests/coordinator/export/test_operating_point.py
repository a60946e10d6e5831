"""An operating point: its text, its threshold by hand, and what cannot be had."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.errors import UsageError
from semisilo.common.measures.intervals import wilson
from semisilo.coordinator.export.operating_point import (
    WantedPoint,
    choose_threshold,
    operating_point_for,
    rates_at,
    wanted_point,
)
from tests.each_of import each_of

CLASSES = ("melanoma", "naevus, benign", "other")
P = np.array([0.9, 0.8, 0.6, 0.2, 0.7, 0.5, 0.3, 0.1, 0.1, 0.05])
OWN = np.array([True] * 4 + [False] * 6)


def test_the_text_names_measure_level_and_class() -> None:
    assert wanted_point("sensitivity 95% for melanoma", CLASSES) == WantedPoint(
        measure="sensitivity", level=0.95, label="melanoma")
    assert wanted_point("specificity 97.5 % for naevus, benign", CLASSES) == WantedPoint(
        measure="specificity", level=0.975, label="naevus, benign")


@each_of(("text", "says"), [
    ("95% for melanoma", "not understood"), ("recall 95% for melanoma", "not understood"),
    ("sensitivity 0% for melanoma", "above 0"), ("sensitivity 101% for melanoma", "at most 100"),
    ("sensitivity 95% for melanom", "no class 'melanom'")])
def test_another_text_is_refused_with_an_example_or_the_nearest_class(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        wanted_point(text, CLASSES)
    assert raised.value.remedy


@each_of(("measure", "level", "threshold", "found", "spared"), [
    ("sensitivity", 0.75, 0.55, 3, 5),  # the third of four is 0.6, the next lower probability 0.5
    ("sensitivity", 0.76, 0.15, 4, 3),  # needs the fourth, 0.2, over 0.1
    ("sensitivity", 1.0, 0.15, 4, 3), ("sensitivity", 0.5, 0.75, 2, 6),  # 0.8 over 0.7
    ("specificity", 1.0, 0.75, 2, 6),  # above 0.7, halfway to 0.8
    ("specificity", 5 / 6, 0.55, 3, 5),  # one of six may be over: above 0.5, halfway to 0.6
    ("specificity", 0.4, 0.15, 4, 3)])  # three of six may be over: the fourth is 0.1, the next above 0.2
def test_thresholds_by_hand_lie_halfway(measure: str, level: float, threshold: float, found: int, spared: int) -> None:
    assert choose_threshold(P, OWN, measure=measure, level=level) == pytest.approx(threshold)  # type: ignore[arg-type]
    rates = rates_at(P, OWN, threshold)
    assert (rates.found, rates.spared, rates.of_class, rates.images) == (found, spared, 4, 10)
    assert rates.sensitivity == found / 4
    assert rates.specificity == spared / 6
    assert rates.sensitivity_interval == wilson(found, 4)
    assert rates.specificity_interval == wilson(spared, 6)


@each_of("measure", ["sensitivity", "specificity"])
@each_of("seed", range(20))
def test_the_rate_is_reached_and_no_better_threshold_reaches_it(measure: str, seed: int) -> None:
    """Against all thresholds there are, on coarse probabilities with many ties."""
    generator = np.random.default_rng(seed)
    p, own = generator.integers(1, 12, 40) / 12, generator.random(40) < 0.4
    level = float(generator.uniform(0.1, 1.0))
    threshold = choose_threshold(p, own, measure=measure, level=level)  # type: ignore[arg-type]
    ours = rates_at(p, own, threshold)
    both = {"sensitivity": ours.sensitivity or 0.0, "specificity": ours.specificity or 0.0}
    assert both[measure] >= level
    other = "specificity" if measure == "sensitivity" else "sensitivity"
    for each in [*np.unique(p), 1.1]:
        rates = rates_at(p, own, float(each))
        theirs = {"sensitivity": rates.sensitivity or 0.0, "specificity": rates.specificity or 0.0}
        assert theirs[measure] < level or theirs[other] <= both[other]


def test_a_point_needs_images_of_the_class_and_of_the_rest() -> None:
    probabilities = np.stack([P, 1 - P, np.zeros(10)], axis=1)
    wanted = WantedPoint(measure="sensitivity", level=0.9, label="melanoma")
    point = operating_point_for(wanted, probabilities, np.where(OWN, 0, 1), CLASSES)
    assert (point.label, point.level, point.measure) == ("melanoma", 0.9, "sensitivity")
    assert point.threshold == pytest.approx(0.15)
    assert point.describe() == "sensitivity 90 % for melanoma"
    for labels in (np.zeros(10, dtype=np.int64), np.ones(10, dtype=np.int64)):
        with pytest.raises(UsageError, match="and of the rest"):
            operating_point_for(wanted, probabilities, labels, CLASSES)


def test_certain_mistakes_leave_no_threshold() -> None:
    probabilities = np.array([[1.0, 0.0], [1.0, 0.0], [0.2, 0.8]])
    with pytest.raises(UsageError, match="No threshold gives specificity 100 %"):
        operating_point_for(WantedPoint(measure="specificity", level=1.0, label="a"), probabilities,
                            np.array([0, 1, 1]), ("a", "b"))


def test_three_alike_images_of_every_patient_say_as_much_as_one_of_each() -> None:
    once, thrice = rates_at(P, OWN, 0.55), rates_at(np.repeat(P, 3), np.repeat(OWN, 3), 0.55,
                                                    patients=[str(image // 3) for image in range(30)])
    assert (once.patients, thrice.patients, thrice.of_class) == (0, 10, 12)
    for name in ("sensitivity", "specificity"):
        one, other = getattr(once, f"{name}_interval"), getattr(thrice, f"{name}_interval")
        assert (other.low, other.high) == (pytest.approx(one.low), pytest.approx(one.high))
        by_image = getattr(rates_at(np.repeat(P, 3), np.repeat(OWN, 3), 0.55), f"{name}_interval")
        assert by_image.high - by_image.low < one.high - one.low
