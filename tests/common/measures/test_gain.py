"""Gains with their intervals, against Newcombe's, drawn images and their limits; and the words they are said in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from semisilo.common.measures.calibration import auroc
from semisilo.common.measures.gain import (
    Gain,
    ImageCounts,
    describe_gain,
    gain_of,
    gain_verdict,
    interval_of,
    mean_gain,
)
from semisilo.common.measures.intervals import Interval, area_interval
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, parse_measure
from tests.each_of import each_of
from tests.newcombe import newcombe

CLASSES = ("common", "rare")
IMAGES = ImageCounts(200, (160, 40))
BALANCED = StudyMeasure("balanced_accuracy")
FEDERATED = {"accuracy": 0.93, "balanced_accuracy": 0.875, "auroc": 0.95, "recall/common": 0.95, "recall/rare": 0.8,
             "auroc/common": 0.95, "auroc/rare": 0.95}
ALONE = {"accuracy": 0.9, "balanced_accuracy": 0.8, "auroc": 0.9, "recall/common": 0.9, "recall/rare": 0.7,
         "auroc/common": 0.9, "auroc/rare": 0.9}


def found(measure: str, images: ImageCounts = IMAGES, federated: Mapping[str, float] = FEDERATED,
          alone: Mapping[str, float] = ALONE) -> Gain:
    gain = gain_of(parse_measure(measure), classes=CLASSES, images=images, federated=federated, labels_alone=alone)
    assert gain is not None
    return gain


def test_of_accuracy_and_recall_it_is_newcombes() -> None:
    assert found("accuracy").interval == newcombe(186, 180, 200)
    assert found("recall:rare").interval == newcombe(32, 28, 40), "of the images of the class alone"
    assert found("accuracy", ImageCounts(200)).interval == newcombe(186, 180, 200), "which no other count is needed for"


def test_of_balanced_accuracy_it_holds_the_true_difference_as_often_as_it_says() -> None:
    """Over drawn test sets of a common and a rare class, with models that are right by themselves: 95 % or so; and with
    one class of two the whole set would be taken for `accuracy`, whose interval is far too narrow."""
    generator, covered = np.random.default_rng(5), 0
    recalls = np.array([[0.95, 0.8], [0.9, 0.7]])
    true = float((recalls[0] - recalls[1]).mean())
    for _ in range(2000):
        drawn = generator.binomial((160, 40), recalls) / (160, 40)
        gain = found("balanced_accuracy", federated=_recalls(drawn[0]), alone=_recalls(drawn[1]))
        assert gain.interval is not None
        covered += gain.interval.low <= true <= gain.interval.high
    assert 0.935 < covered / 2000 < 0.975


def _recalls(drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    return {"balanced_accuracy": float(drawn.mean()), "recall/common": float(drawn[0]), "recall/rare": float(drawn[1])}


@pytest.mark.slow
def test_of_an_auroc_it_holds_the_true_area_as_often_as_it_says() -> None:
    """Scores of two classes a normal distance apart: the area is Phi(d / sqrt 2). Of two classes both areas are the
    same number, so that their mean is no surer than each: the interval must not be that of two independent ones."""
    generator, covered = np.random.default_rng(6), 0
    true = 0.5 * (1 + math.erf(1.5 / 2))
    for _ in range(1000):
        scores_N = np.concatenate([generator.normal(0, 1, 160), generator.normal(1.5, 1, 40)])
        areas = auroc(np.stack([-scores_N, scores_N], axis=1), np.repeat([0, 1], (160, 40)))
        assert areas is not None
        metrics = {"auroc": areas.macro} | {f"auroc/{name}": area for name, area in
                                            zip(CLASSES, areas.per_class, strict=True) if area is not None}
        interval = interval_of(parse_measure("auroc"), classes=CLASSES, images=IMAGES, metrics=metrics)
        assert interval is not None
        covered += interval.low <= true <= interval.high
    assert covered / 1000 > 0.93


@each_of("measure", ["accuracy", "balanced_accuracy", "recall:rare", "auroc"])
def test_two_models_that_have_everything_right_show_no_difference_and_leave_some_doubt(measure: str) -> None:
    perfect = dict.fromkeys(FEDERATED, 1.0)
    gain = found(measure, federated=perfect, alone=perfect)
    assert gain.interval is not None
    assert gain.interval.low < -0.005
    assert gain.interval.high > 0.005
    assert not gain.is_shown


def test_the_interval_turns_with_the_models() -> None:
    for measure in ("accuracy", "balanced_accuracy", "auroc", "recall:rare"):
        one, other = found(measure), found(measure, federated=ALONE, alone=FEDERATED)
        assert one.interval is not None
        assert other.interval is not None
        assert (one.interval.low, one.interval.high) == pytest.approx((-other.interval.high, -other.interval.low))
        assert one.value == -other.value


def test_without_counts_by_class_or_a_number_nothing_is_made_up() -> None:
    assert found("balanced_accuracy", ImageCounts(200)).interval is None
    assert found("recall:rare", ImageCounts(200)).interval is None
    without = {name: value for name, value in FEDERATED.items() if name != "auroc"}
    auroc_of = parse_measure("auroc")
    assert gain_of(auroc_of, classes=CLASSES, images=IMAGES, federated=without, labels_alone=ALONE) is None
    assert gain_of(ACCURACY, classes=CLASSES, images=IMAGES, federated={"accuracy": math.nan},
                   labels_alone=ALONE) is None
    assert interval_of(ACCURACY, classes=CLASSES, images=ImageCounts(0), metrics=FEDERATED) is None


def test_images_of_which_a_class_is_not_known_make_the_interval_of_its_area_no_narrower() -> None:
    metrics, auroc_of = {"auroc": 0.8, "auroc/common": 0.8, "auroc/rare": 0.8}, parse_measure("auroc")
    known, ten, hundred = (interval_of(auroc_of, classes=CLASSES, images=images, metrics=metrics) for images in (
        ImageCounts(100, (5, 5), (5, 5)), ImageCounts(10, (5, 5)), ImageCounts(100, (5, 5))))
    assert known == ten == area_interval(0.8, inside=5, outside=5)
    assert hundred is not None
    assert known is not None
    assert hundred.high - hundred.low < known.high - known.low


def test_a_class_without_test_images_does_not_count() -> None:
    recalls = {"balanced_accuracy": 0.9, "recall/common": 0.9}
    one = interval_of(BALANCED, classes=CLASSES, images=ImageCounts(160, (160, 0)), metrics=recalls)
    assert one == interval_of(parse_measure("recall:common"), classes=CLASSES, images=ImageCounts(160, (160, 0)),
                              metrics=recalls)


def test_runs_on_the_same_images_are_no_surer_together() -> None:
    gain = found("balanced_accuracy")
    together = mean_gain([gain, gain])
    assert together is not None
    assert together.interval == gain.interval
    assert together.value == pytest.approx(gain.value)
    unknown = found("balanced_accuracy", ImageCounts(200))
    both = mean_gain([gain, unknown])
    assert both is not None
    assert both.interval is None
    assert mean_gain([]) is None


@each_of(("interval", "said"), [
    ((0.001, 0.04), "+2.0 points, 95 % interval +0.1 to +4.0, the silos have helped"),
    ((-0.01, 0.05), "+2.0 points, 95 % interval −1.0 to +5.0, no difference shown"),
    ((0.0, 0.04), "+2.0 points, 95 % interval +0.0 to +4.0, no difference shown"),
    (None, "+2.0 points, interval not known")])
def test_a_gain_is_said_with_its_interval_and_what_it_comes_to(interval: tuple[float, float] | None, said: str) -> None:
    gain = Gain(measure=BALANCED, federated=0.82, labels_alone=0.8,
                interval=None if interval is None else Interval(*interval))
    assert describe_gain(gain) == said


def test_of_an_auroc_it_is_said_as_a_number_and_a_loss_as_one() -> None:
    gain = Gain(measure=parse_measure("auroc"), federated=0.9004, labels_alone=0.9236, interval=Interval(-0.04, -0.01))
    assert describe_gain(gain) == "−0.024, 95 % interval −0.040 to −0.010, the silos have not helped"
    assert gain_verdict(gain) == "the silos have not helped"
