"""The global model on one site's own test images: counts by class, and what follows from them.

Counts cross from a silo to the coordinator, never images or answers one by one; whoever receives them checks them here.

Shapes: K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.measures.intervals import Interval, around, wilson
from semisilo.common.measures.study_measure import StudyMeasure, score_of

__all__ = ["BALANCED", "MAX_IMAGES", "ClassResult", "Estimate", "SiteEvaluation", "SiteScores", "estimate_text",
           "site_scores"]

MAX_IMAGES = 10**9
"""Images that a site may claim, all classes together."""
BALANCED = StudyMeasure("balanced_accuracy")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassResult:
    """The test images of one class."""

    images: int
    correct: int
    """Of these."""
    auroc: float | None = None
    """Area under the curve of this class against the rest, 0 to 1; None where no image or every image has the class, or
    an answer was not finite."""

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.images <= MAX_IMAGES:
            raise ValueError(f"{self.correct} of {self.images} images cannot be right.")
        if self.auroc is not None and not 0 <= self.auroc <= 1:
            raise ValueError(f"{self.auroc} is no area under a curve.")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteEvaluation:
    """The global model of one round on the test images of one site.

    Raises: ValueError for numbers that cannot be.
    """

    study: str
    round: int
    """After which the model is what it is; 0: before any silo had a part in it."""
    labels_alone: bool = False
    """Whether it is the model of labels alone, which no round has given: `round` is 0 then."""
    classes: tuple[ClassResult, ...]
    """By label, (K,)."""

    def __post_init__(self) -> None:
        if self.round < 0 or (self.labels_alone and self.round):
            raise ValueError(f"There is no round {self.round}.")
        if not 1 <= self.count <= MAX_IMAGES:
            raise ValueError(f"{self.count} images cannot be.")
        for each in self.classes:
            if each.auroc is not None and each.images in (0, self.count):
                raise ValueError("A class without images, or without others, has no area under a curve.")

    @property
    def count(self) -> int:
        """Images of all classes."""
        return sum(each.images for each in self.classes)

    @property
    def correct(self) -> int:
        """Images that are classified right."""
        return sum(each.correct for each in self.classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A share, and between which two the true one lies with confidence `semisilo.common.measures.intervals.LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteScores:
    """What follows from the counts of a site."""

    count: int
    """Test images."""
    accuracy: Estimate
    balanced_accuracy: Estimate
    """Over the classes of which the site has images."""
    measure: Estimate | None
    """The study's measure; None where it cannot be measured on these images."""


def site_scores(found: SiteEvaluation, measure: StudyMeasure, classes: Sequence[str]) -> SiteScores:
    """Accuracy, balanced accuracy and the study's measure, with intervals.

    Of accuracy and recall Wilson's interval; of the others value -+ z times the standard error of `score_of`.
    Args:
        classes: names in label order, (K,).
    Raises: ValueError where the counts are of another number of classes, or the measure is about a class that is not
        among them.
    """
    if len(classes) != len(found.classes):
        raise ValueError(f"Counts of {len(found.classes)} classes; the study has {len(classes)}.")
    if measure.kind == "recall" and measure.class_name not in classes:
        raise ValueError(f"There is no class '{measure.class_name}'.")
    accuracy = _share(found.correct, found.count)
    balanced = _score(found, BALANCED, classes)
    assert accuracy is not None, "there is at least one image"
    assert balanced is not None, "and so one class that has some"
    return SiteScores(count=found.count, accuracy=accuracy, balanced_accuracy=balanced,
                      measure=_score(found, measure, classes))


def _score(found: SiteEvaluation, measure: StudyMeasure, classes: Sequence[str]) -> Estimate | None:
    if measure.kind == "accuracy":
        return _share(found.correct, found.count)
    if measure.kind == "recall":
        own = found.classes[list(classes).index(measure.class_name)]
        return _share(own.correct, own.images)
    score = score_of(measure, classes=classes, hits_K=[each.correct for each in found.classes],
                     images_K=[each.images for each in found.classes], areas_K=[each.auroc for each in found.classes])
    return None if score is None else _within(score.value, around(score.value, score.error))


def _share(correct: int, count: int) -> Estimate | None:
    interval = wilson(correct, count)
    return None if interval is None else _within(correct / count, interval)


def _within(value: float, interval: Interval) -> Estimate:
    assert math.isfinite(value)
    return Estimate(value=value, low=interval.low, high=interval.high)


def estimate_text(found: Estimate | None, measure: StudyMeasure) -> str:
    """For a person: "81.2 % (76.0 to 85.4 %)", of an AUROC "0.912 (0.870 to 0.954)"."""
    if found is None:
        return "not measurable here"
    if measure.kind == "auroc":
        return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f} %)"
