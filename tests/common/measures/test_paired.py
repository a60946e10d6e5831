"""Intervals of what one model is better by than another on the same images: against McNemar's and DeLong's, by drawn
test sets, and where there is next to nothing to compare."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from semisilo.common.measures.calibration import auroc, probabilities
from semisilo.common.measures.gain import ImageCounts, PairedGain, gain_of
from semisilo.common.measures.independent_images import independent_images
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.multi_label import average_precisions, finding_areas, precision_shares, ranked_shares
from semisilo.common.measures.paired import paired_interval, shares_of_images
from semisilo.common.measures.study_measure import parse_measure
from tests.each_of import each_of

CLASSES = ("a", "b c", "d:e")
MEASURES = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "recall:d:e")
Z = 1.959963984540054
Numbers = NDArray[np.float64]


def answers(labels: list[int], given: list[int]) -> Numbers:
    """Logits of a model that answers so."""
    return np.eye(len(CLASSES))[given] * (3.0 + np.arange(len(labels))[:, None] / 100)


def drawn(generator: np.random.Generator, *, patients: int, images: int, alike: float, common: float = 0.5
          ) -> tuple[Numbers, Numbers, NDArray[np.int64], list[str]]:
    """Two equally good models on images of patients: logits, labels, patients. What makes an image hard is to `alike`
    its patient's, and to `common` the same for both models; a patient has one class."""
    owner_N = np.repeat(np.arange(patients), images)
    labels_N = generator.integers(0, len(CLASSES), patients)[owner_N]

    def noise() -> Numbers:
        of_patient = generator.normal(size=(patients, len(CLASSES)))[owner_N]
        own = generator.normal(size=(len(owner_N), len(CLASSES)))
        return math.sqrt(alike) * of_patient + math.sqrt(1 - alike) * own
    shared = noise()
    first, second = (1.2 * np.eye(len(CLASSES))[labels_N] + math.sqrt(common) * shared + math.sqrt(1 - common) * noise()
                     for _ in range(2))
    return first, second, labels_N, [str(each) for each in owner_N]


def found(measure: str, first: Numbers, second: Numbers, labels: NDArray[np.integer], patients: list[str] | None = None
          ) -> Interval:
    interval = paired_interval(parse_measure(measure), first, second, labels, classes=CLASSES,
                               patients=patients or [""] * len(labels))
    assert interval is not None
    if patients is None:
        assert interval == paired_interval(parse_measure(measure), first, second, labels, classes=CLASSES, patients=())
    return interval


def test_of_accuracy_it_is_mcnemars_and_by_patients_that_of_matched_pairs_in_clusters() -> None:
    labels = [0] * 6 + [1] * 6
    first, second = labels.copy(), labels.copy()
    for image in (0, 1, 2, 6):
        second[image] = 2
    first[7] = 2
    one, other, of = answers(labels, first), answers(labels, second), np.array(labels)
    reach = Z * math.sqrt(4 + 1) / 12
    assert found("accuracy", one, other, of) == Interval(pytest.approx(3 / 12 - reach), pytest.approx(3 / 12 + reach))
    patients = ["p", "p", "p", "q", "r", "r", "s", "s", "t", "t", "u", "u"]
    reach = Z * math.sqrt(3**2 + (1 - 1)**2) / 12
    assert found("accuracy", one, other, of, patients) == Interval(pytest.approx(3 / 12 - reach),
                                                                   pytest.approx(3 / 12 + reach))
    reach = Z * math.sqrt(1 + 1) / 6
    assert found("recall:b c", one, other, of) == Interval(pytest.approx(-reach), pytest.approx(reach))


def test_of_an_area_it_is_nearly_delongs() -> None:
    """Whose variance is taken from the mean of the rarer class's images too: of 200 images that is hardly another."""
    generator = np.random.default_rng(3)
    shown_N, scores = generator.random(400) < 0.4, generator.normal(size=(2, 400))
    scores += np.array([[1.1], [0.9]]) * shown_N + generator.normal(size=400)
    rows_N1 = shown_N[:, None].astype(np.int8)
    interval = paired_interval(parse_measure("auroc"), scores[0][:, None], scores[1][:, None], rows_N1, classes=("a",),
                               patients=[""] * 400)
    wins = [(each[shown_N][:, None] > each[~shown_N][None]).astype(float) for each in scores]
    tens, ones = wins[0].mean(axis=1) - wins[1].mean(axis=1), wins[0].mean(axis=0) - wins[1].mean(axis=0)
    error = math.sqrt(tens.var() / len(tens) + ones.var() / len(ones))
    assert interval is not None
    assert (interval.high + interval.low) / 2 == pytest.approx(wins[0].mean() - wins[1].mean())
    assert Z * error <= (interval.high - interval.low) / 2 <= 1.02 * Z * error


@each_of("several", [False, True])
def test_what_images_add_comes_to_the_measure(several: bool) -> None:
    generator = np.random.default_rng(1)
    logits_NK = np.round(generator.normal(size=(60, 3)), 1)  # with ties
    labels = generator.integers(-1, 2, (60, 3)) if several else generator.integers(0, 3, 60)
    rows_NK = labels if several else (labels[:, None] == np.arange(3)).astype(int)
    for measure, wanted in (("auroc", finding_areas), ("average_precision", average_precisions)):
        parts = shares_of_images(parse_measure(measure), logits_NK, labels, classes=CLASSES)
        assert parts is not None
        value = wanted(1 / (1 + np.exp(-logits_NK)) if several else probabilities(logits_NK), rows_NK).macro
        assert parts[0] == pytest.approx(value, abs=1e-12)
        assert parts[1].sum() == pytest.approx(value, abs=1e-12)


def test_an_image_adds_to_the_average_precision_what_more_of_it_would() -> None:
    generator = np.random.default_rng(2)
    scores_N, is_N = np.round(generator.random(30), 1), generator.random(30) < 0.4

    def weighted(weights_N: Numbers) -> float:
        above_NN = scores_N[None] >= scores_N[:, None]
        precision_N = (above_NN * weights_N * is_N).sum(axis=1) / (above_NN * weights_N).sum(axis=1)
        return float((weights_N * is_N * precision_N).sum() / (weights_N * is_N).sum())
    parts = precision_shares(scores_N[:, None], is_N[:, None].astype(int))
    assert parts is not None
    for image in range(30):
        more_N = np.ones(30)
        more_N[image] += 1e-6
        slope = (weighted(more_N) - weighted(np.ones(30))) / 1e-6
        assert parts[1][image] - is_N[image] * parts[0] / is_N.sum() == pytest.approx(slope, abs=1e-5)


@pytest.mark.slow
@each_of(("patients", "images", "alike"), [(100, 1, 0.0), (30, 8, 0.4)])
def test_equally_good_models_differ_as_seldom_as_it_says_and_it_is_narrower_than_without_pairs(
        patients: int, images: int, alike: float) -> None:
    """Images of one patient hang on one another: 95 % intervals allow 5 %, of 200 drawn test sets 9.5 % by chance."""
    generator, times, checked = np.random.default_rng(patients), 200, ("accuracy", "auroc", "recall:d:e")
    wrong, widths, wide = dict.fromkeys(checked, 0), dict.fromkeys(checked, 0.0), dict.fromkeys(checked, 0.0)
    for time in range(times):
        first, second, labels_N, of = drawn(generator, patients=patients, images=images, alike=alike)
        for measure in checked:
            interval = found(measure, first, second, labels_N, of)
            wrong[measure] += not interval.low <= 0 <= interval.high
            widths[measure] += interval.high - interval.low
            if time < 10:
                wide[measure] += _unpaired(measure, first, second, labels_N, of) * times / 10
    assert all(0.005 * times <= count <= 0.095 * times for count in wrong.values()), wrong
    assert 0.02 * times <= wrong["accuracy"], "and it is no wider than need be"
    assert all(widths[measure] < 0.95 * wide[measure] for measure in checked)


def _unpaired(measure: str, first: Numbers, second: Numbers, labels_N: NDArray[np.int64], of: list[str]) -> float:
    """The width of the interval that follows from the numbers of each model."""
    numbers = []
    for logits_NK in (first, second):
        areas = auroc(probabilities(logits_NK), labels_N)
        assert areas is not None
        right_N = logits_NK.argmax(axis=1) == labels_N
        recalls = {f"recall/{name}": float(right_N[labels_N == label].mean()) for label, name in enumerate(CLASSES)}
        numbers.append({"accuracy": float(right_N.mean()), "auroc": areas.macro, **recalls,
                        **{f"auroc/{name}": area for name, area in zip(CLASSES, areas.per_class, strict=True)
                           if area is not None}})
    counts = ImageCounts(len(labels_N), tuple(np.bincount(labels_N, minlength=len(CLASSES)).tolist()),
                         independent=independent_images(of, labels_N, len(CLASSES)))
    gain = gain_of(parse_measure(measure), classes=CLASSES, images=counts, federated=numbers[0],
                   labels_alone=numbers[1])
    return 0.0 if gain is None or gain.interval is None else gain.interval.high - gain.interval.low


@each_of("measure", MEASURES)
def test_an_only_image_or_patient_of_a_class_shows_nothing(measure: str) -> None:
    """Of either model all its images are right, or none is: taken from its mean it would not err at all."""
    labels = [0] * 5 + [1] * 5 + [2] * 4
    worse = [0] * 5 + [1] * 5 + [0] * 4
    first, second = answers(labels, labels), answers(labels, worse)
    for count, patients in ((1, [""] * 11), (4, [str(image) for image in range(10)] + ["p"] * 4)):
        cut = slice(0, 10 + count)
        interval = found(measure, first[cut], second[cut], np.array(labels[cut]), patients)
        assert interval.low <= 0 < interval.high


def test_the_same_answers_to_few_images_do_not_prove_the_same_models() -> None:
    labels = np.array([0] * 40 + [1] * 50 + [2] * 10)
    same = answers(labels.tolist(), labels.tolist())
    reach = {measure: found(measure, same, same, labels).high for measure in MEASURES
             if not parse_measure(measure).is_area}
    assert reach == pytest.approx({"accuracy": Z / 100, "recall:d:e": Z / 10,
                                   "balanced_accuracy": Z * math.hypot(1 / 40, 1 / 50, 1 / 10) / 3})
    patients = [str(image // 5) for image in range(100)]
    assert found("accuracy", same, same, labels, patients).high == pytest.approx(Z / math.sqrt(100 * 20))


def test_two_perfect_orders_do_not_prove_the_same_models() -> None:
    """Of areas the interval was from 0 to 0; now it is the one of each model's own numbers."""
    labels, metrics = np.array([0] * 40 + [1] * 50 + [2] * 10), dict.fromkeys(
        ("auroc", *(f"auroc/{name}" for name in CLASSES)), 1.0)
    first, second = answers(labels.tolist(), labels.tolist()), 2 * answers(labels.tolist(), labels.tolist())
    for measure in ("auroc", "average_precision"):
        assert paired_interval(parse_measure(measure), first, second, labels, classes=CLASSES, patients=()) is None
    gain = gain_of(parse_measure("auroc"), classes=CLASSES, images=ImageCounts(100, (40, 50, 10)), federated=metrics,
                   labels_alone=metrics, paired=PairedGain(round=1, patients=0, intervals={}))
    assert gain is not None
    assert gain.interval is not None
    assert (gain.paired, gain.value) == (False, 0)
    assert gain.interval.high == -gain.interval.low > 0.02


def test_what_images_do_not_give_has_no_interval() -> None:
    labels, several = np.array([0, 0, 1]), np.array([[1, 0, 0], [0, 1, -1], [1, 1, 0]])
    logits = answers([0, 0, 1], [0, 1, 1])

    def of(measure: str, labels: NDArray[np.int64], logits: Numbers = logits) -> Interval | None:
        return paired_interval(parse_measure(measure), logits, logits[:, ::-1], labels, classes=CLASSES,
                               patients=[""] * 3)
    assert of("recall:d:e", labels) is None
    assert of("accuracy", several) is None
    assert of("auroc", several) is not None
    assert of("auroc", np.zeros(3, dtype=np.int64)) is None
    assert of("accuracy", labels, np.full((3, 3), np.nan)) is None
    assert ranked_shares(logits, np.zeros((3, 3), dtype=int)) is None
    assert precision_shares(logits, np.zeros((3, 3), dtype=int)) is None
