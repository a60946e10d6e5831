"""The study's measure: its names, the rule that decides it, its values against counting, its errors against drawing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from semisilo.common.measures.calibration import auroc
from semisilo.common.measures.intervals import area_error, area_spread, standard_error
from semisilo.common.measures.round_choice import ScoredRound, chosen_round
from semisilo.common.measures.study_measure import (
    ACCURACY,
    StudyMeasure,
    common_measure,
    decided_measure,
    parse_measure,
    score_of,
)
from tests.each_of import each_of

CLASSES = ("a", "b", "rare")


@each_of(("text", "metric", "title"), [
    ("accuracy", "accuracy", "accuracy"), ("balanced_accuracy", "balanced_accuracy", "balanced accuracy"),
    ("auroc", "auroc", "AUROC"), ("recall:rare", "recall/rare", "recall of rare"),
    ("recall:a:b", "recall/a:b", "recall of a:b")])
def test_a_measure_has_one_name_in_files_one_among_metrics_and_one_for_people(text: str, metric: str, title: str
                                                                             ) -> None:
    found = parse_measure(text)
    assert (str(found), found.metric, found.title) == (text, metric, title)


@each_of("text", ["", "acuracy", "recall", "recall:", "AUROC"])
def test_another_name_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="recall:CLASS"):
        parse_measure(text)


@each_of(("images", "kind"), [
    ((10, 10, 10), "accuracy"), ((15, 10, 10), "accuracy"), ((16, 10, 12), "balanced_accuracy"),
    ((3, 0, 3), "balanced_accuracy"), ((0, 0, 0), "accuracy"), ((), "accuracy")])
def test_more_than_one_and_a_half_to_one_is_imbalanced_and_so_is_a_class_without_images(images: tuple[int, ...],
                                                                                       kind: str) -> None:
    assert decided_measure(images).kind == kind


def _score(text: str, hits: list[int], images: list[int], areas: list[float | None] | None = None
           ) -> tuple[float, float]:
    found = score_of(parse_measure(text), classes=CLASSES, hits_K=hits, images_K=images, areas_K=areas or [None] * 3)
    assert found is not None
    return found.value, found.error


def test_values_are_those_of_their_definitions() -> None:
    """9 of 10, 3 of 10 and 1 of 2."""
    hits, images = [9, 3, 1], [10, 10, 2]
    assert _score("accuracy", hits, images)[0] == 13 / 22
    assert _score("balanced_accuracy", hits, images)[0] == pytest.approx((0.9 + 0.3 + 0.5) / 3)
    assert _score("recall:b", hits, images)[0] == 0.3
    assert _score("auroc", hits, images, [0.9, None, 0.5])[0] == pytest.approx(0.7)
    assert _score("balanced_accuracy", [9, 3, 0], [10, 10, 0])[0] == pytest.approx(0.6), "a class without images"


def test_what_cannot_be_measured_has_no_score() -> None:
    for text in ("accuracy", "balanced_accuracy", "auroc", "recall:a"):
        assert score_of(parse_measure(text), classes=CLASSES, hits_K=[0] * 3, images_K=[0] * 3,
                        areas_K=[None] * 3) is None
    assert score_of(StudyMeasure("recall", "rare"), classes=CLASSES, hits_K=[1, 1, 0], images_K=[2, 2, 0],
                    areas_K=[None] * 3) is None


def test_only_images_of_which_a_class_is_known_count_in_the_error_of_its_area() -> None:
    def error(**counts: Any) -> float:
        found = score_of(parse_measure("auroc"), classes=("a", "b"), hits_K=[0, 0], areas_K=[0.8, 0.8], **counts)
        assert found is not None
        return found.error

    ten = math.hypot(*(area_spread(0.8, inside=5, outside=5),) * 2) / 2
    assert error(images_K=[5, 5], without_K=[5, 5]) == ten
    assert error(images_K=[5, 5], without_K=[95, 95]) < ten


def test_both_areas_of_two_classes_are_the_same_one_and_err_alike() -> None:
    generator, area = np.random.default_rng(5), 0.8
    means = []
    for _ in range(2000):
        scores = np.concatenate([generator.exponential(area / (1 - area), 60), generator.exponential(1.0, 60)])
        found = auroc(np.stack([scores, -scores], axis=1), np.repeat([0, 1], 60))
        assert found is not None
        means.append(found.macro)
    score = score_of(parse_measure("auroc"), classes=("a", "b"), hits_K=[0, 0], images_K=[60, 60],
                     areas_K=[area, area])
    assert score is not None
    assert score.error == pytest.approx(np.std(means), rel=0.1)


def test_errors_of_shares_are_the_spread_of_drawing_images_anew() -> None:
    """For many images; for few they are wider, and never 0."""
    hits, images, generator = [180, 90, 30], [200, 100, 60], np.random.default_rng(3)
    drawn = np.stack([generator.binomial(n, h / n, 40_000) for h, n in zip(hits, images, strict=True)], axis=1)
    balanced = (drawn / images).mean(axis=1).std()
    assert _score("balanced_accuracy", hits, images)[1] == pytest.approx(balanced, rel=0.03)
    share = sum(hits) / sum(images)
    assert _score("accuracy", hits, images)[1] == pytest.approx(math.sqrt(share * (1 - share) / 360), rel=0.02)
    assert _score("accuracy", [10, 0, 0], [10, 0, 0])[1] > 0


def test_the_error_of_an_area_is_the_spread_over_samples_of_its_model() -> None:
    """Hanley and McNeil's model: exponential scores, of which an area A has the ratio of means A / (1 - A)."""
    generator, area = np.random.default_rng(5), 0.8
    areas = []
    for _ in range(3000):
        scores = np.concatenate([generator.exponential(area / (1 - area), 30), generator.exponential(1.0, 50)])
        found = auroc(np.stack([scores, -scores], axis=1), np.repeat([0, 1], [30, 50]))
        assert found is not None
        assert found.per_class[0] is not None
        areas.append(found.per_class[0])
    assert np.mean(areas) == pytest.approx(area, abs=0.005)
    assert area_error(area, inside=30, outside=50) == pytest.approx(np.std(areas), rel=0.05)


def test_an_area_of_single_images_is_a_coin_and_a_perfect_order_has_no_error() -> None:
    """One image against one: the area is 0 or 1, with the variance A (1 - A)."""
    assert area_error(0.8, inside=1, outside=1) == pytest.approx(math.sqrt(0.8 * 0.2))
    assert area_error(1.0, inside=3, outside=4) == 0.0
    with pytest.raises(ValueError, match="0 images"):
        area_error(0.5, inside=0, outside=3)


@pytest.mark.slow
@each_of(("area", "inside", "outside"), [(1.0, 15, 85), (0.999, 15, 85), (0.8, 50, 50), (0.0, 3, 4), (1.0, 1, 1)])
def test_the_spread_of_an_area_is_half_of_all_areas_that_are_within_their_error_of_it(area: float, inside: int,
                                                                                     outside: int) -> None:
    near = [each for each in np.linspace(0, 1, 100_001)
            if abs(each - area) <= area_error(float(each), inside=inside, outside=outside)]
    found = area_spread(area, inside=inside, outside=outside)
    assert found == pytest.approx((max(near) - min(near)) / 2, abs=2e-5)
    assert found > 0


@each_of("measure", ["auroc", "average_precision"])
def test_rounds_with_a_perfect_order_of_few_images_are_no_better_than_later_ones_that_are_nearly_perfect(measure: str
                                                                                                        ) -> None:
    """The errors of 0 that there were chose the first round here."""
    rounds = []
    for number, area in ((1, 1.0), (2, 0.9995), (9, 0.999)):
        found = score_of(parse_measure(measure), classes=("a", "b"), hits_K=[0, 0], images_K=[85, 15],
                         areas_K=[area, area])
        assert found is not None
        rounds.append(ScoredRound(number, found.value, found.error))
    chosen = chosen_round(rounds)
    assert chosen is not None
    assert chosen.number == 9


def test_the_error_of_an_average_precision_is_that_of_a_share() -> None:
    found = score_of(parse_measure("average_precision"), classes=("a",), hits_K=[0], images_K=[20], areas_K=[0.9])
    assert found is not None
    assert found.error == pytest.approx(standard_error(18, 20))


def test_a_measure_that_is_not_named_is_the_accuracy() -> None:
    assert str(ACCURACY) == "accuracy"


def test_studies_of_different_measures_are_compared_by_one_that_all_have() -> None:
    area, precision = StudyMeasure("auroc"), StudyMeasure("average_precision")
    assert common_measure([precision, precision], has_accuracy=False) == precision
    assert common_measure([area, precision], has_accuracy=False) == area
    assert common_measure([area, ACCURACY], has_accuracy=True) == ACCURACY
