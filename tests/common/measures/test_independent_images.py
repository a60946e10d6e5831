"""What images of few patients are worth: by hand, and how often two equally good models look different on them."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from semisilo.common.measures.gain import Gain, ImageCounts, describe_gain, gain_of, interval_of
from semisilo.common.measures.independent_images import IndependentImages, independent_images
from semisilo.common.measures.intervals import area_interval, share_interval
from semisilo.common.measures.study_measure import ACCURACY, parse_measure
from tests.each_of import each_of
from tests.newcombe import newcombe

CLASSES = ("a", "b")


def test_images_count_as_many_as_there_are_patients_and_less_where_one_has_most() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert independent_images(("p", "p", "q", "q", "r", "r"), labels, 2) == IndependentImages(
        3, 3.0, (9 / 5, 9 / 5), (9 / 5, 9 / 5))
    uneven = independent_images(("p", "p", "p", "p", "", ""), labels, 3)
    assert uneven == IndependentImages(3, 36 / 18, (1.0, 9 / 3, 0.0), (9 / 3, 1.0, 36 / 18)), \
        "those of unknown patients stand for themselves"


def test_of_several_labels_what_is_not_known_is_neither() -> None:
    rows = np.array([[1, 0], [1, -1], [0, 1]], dtype=np.int8)
    assert independent_images(("p", "p", "p"), rows, 2) == IndependentImages(1, 1.0, (1.0, 1.0), (1.0, 1.0))
    found = independent_images(("p", "q", "q"), rows, 2)
    assert found == IndependentImages(2, 9 / 5, (2.0, 1.0), (1.0, 1.0))


@each_of("patients", [(), ("", "", ""), ("p", "q", "")])
def test_where_no_two_are_of_one_patient_all_of_them_count(patients: tuple[str, ...]) -> None:
    assert independent_images(patients, np.array([0, 1, 1]), 2) is None


def test_intervals_go_by_patients_in_every_measure_and_say_so() -> None:
    """400 images of 40 patients, 10 of each and of one class: nothing but a tenth of the images."""
    worth = IndependentImages(40, 40.0, (30.0, 10.0), (10.0, 30.0))
    images, few = ImageCounts(400, (300, 100), independent=worth), ImageCounts(40, (30, 10))
    ours = {"accuracy": 0.9, "recall/a": 0.9, "recall/b": 0.9, "auroc/a": 0.8, "auroc/b": 0.8,
            "average_precision/a": 0.7, "average_precision/b": 0.6}
    for name in ("accuracy", "balanced_accuracy", "recall:b", "auroc", "average_precision"):
        measure = parse_measure(name)
        found, plain, fewer = (interval_of(measure, classes=CLASSES, images=each, metrics=ours)
                               for each in (images, ImageCounts(400, (300, 100)), few))
        assert found is not None
        assert fewer is not None
        assert plain is not None
        assert (found.low, found.high) == pytest.approx((fewer.low, fewer.high))
        assert found.high - found.low > 2 * (plain.high - plain.low)
    gain = gain_of(ACCURACY, classes=CLASSES, images=images, federated=ours, labels_alone={"accuracy": 0.8})
    assert gain is not None
    assert gain.interval is not None
    by_hand = newcombe(36, 32, 40)
    assert (gain.interval.low, gain.interval.high) == pytest.approx((by_hand.low, by_hand.high))
    assert describe_gain(gain) == "+10.0 points, 95 % interval −6.1 to +25.9 by 40 patients, no difference shown"
    assert not gain.is_shown
    assert newcombe(360, 320, 400).low > 0, "which as many independent images would have shown"


def test_of_an_earlier_study_all_patients_count_for_equally_many_images() -> None:
    assert IndependentImages.of_equal_patients(20, 1000, (990, 10, 0), (10, 990, 1000)) == IndependentImages(
        20, 20.0, (19.8, 1.0, 0.0), (1.0, 19.8, 20.0)), "no class with images is worth less than one"
    with pytest.raises(ValueError, match=r"a share of 1\.5"):
        share_interval(1.5, 10, 2.0)
    assert area_interval(0.8, inside=1.5, outside=2.5).low < area_interval(0.8, inside=3, outside=5).low


@each_of(("patients", "each", "correlation"), [(20, 50, 0.2), (20, 50, 0.4), (40, 10, 0.4), (400, 1, 0.0)])
def test_two_equally_good_models_look_different_no_more_often_than_is_said(patients: int, each: int,
                                                                           correlation: float) -> None:
    """Errors of a model hang on one another within a patient. By images 47 % of 20 patients' would show a difference,
    of a correlation of 0.2; here no more than 5 %."""
    generator = np.random.default_rng(1)
    keys = tuple(f"p{patient}" for patient in range(patients) for _ in range(each))
    labels = np.arange(len(keys)) % 2
    images = ImageCounts(len(keys), independent=independent_images(keys, labels, 2))

    def one() -> Gain:
        common, shares = generator.normal(size=(patients, 1)), []
        for _ in range(2):
            own = generator.normal(size=(patients, 1))
            drawn = sqrt(0.3) * common + sqrt(correlation) * own + sqrt(0.7 - correlation) * generator.normal(
                size=(patients, each))
            shares.append(float((drawn < 0.84).mean()))
        found = gain_of(ACCURACY, classes=CLASSES, images=images, federated={"accuracy": shares[0]},
                        labels_alone={"accuracy": shares[1]})
        assert found is not None
        return found
    assert np.mean([one().is_shown for _ in range(600)]) < 0.05
