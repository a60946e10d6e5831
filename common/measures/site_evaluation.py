"""The global model on one site's own test images: counts by class, and what follows from them.

Counts cross from a silo to the coordinator, never images or answers one by one; whoever receives them checks them here.

Shapes: K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.measures.gain import ImageCounts, interval_of
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.intervals import Interval, share_interval
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, score_of

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
    others: int | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """Test images without the class, where an image may have several labels or none; None where it has one, and the
    others are those of the other classes."""
    correct_others: int = field(default=0, metadata=ABSENT_AT_DEFAULT)
    """Of these, at a probability of 0.5 as `correct`."""
    average_precision: float | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """Of this class, likewise there; 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.correct_others <= (self.others or 0) <= MAX_IMAGES:
            raise ValueError(f"{self.correct_others} of {self.others or 0} other images cannot be right.")
        if self.average_precision is not None and not 0 <= self.average_precision <= 1:
            raise ValueError(f"{self.average_precision} is not an average precision.")
        if not 0 <= self.correct <= self.images <= MAX_IMAGES:
            raise ValueError(f"{self.correct} of {self.images} images cannot be right.")
        if self.auroc is not None and not 0 <= self.auroc <= 1:
            raise ValueError(f"{self.auroc} is not an area under a curve.")


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
    model_digest: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """Which model of that round, in hex, as the coordinator named it: after a study has gone back, it has another one.
    Empty where it was not named."""
    classes: tuple[ClassResult, ...]
    """By label, (K,)."""

    def __post_init__(self) -> None:
        if self.round < 0 or (self.labels_alone and self.round):
            raise ValueError(f"There is no round {self.round}.")
        if not 1 <= self.count <= MAX_IMAGES:
            raise ValueError(f"{self.count} images cannot be.")
        for each in self.classes:
            if (each.others is None) != (self.classes[0].others is None):
                raise ValueError("Either all classes have other images or none has.")
            if each.auroc is not None and (each.images == 0 or each.images == (
                    self.count if each.others is None else each.images + each.others)):
                raise ValueError("A class without images, or without others, has no area under a curve.")

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels or none."""
        return bool(self.classes) and self.classes[0].others is not None

    @property
    def count(self) -> int:
        """Images of all classes. Where a class may not be known of some, as many as the one that is known of most
        has."""
        if self.multi_label:
            return max(each.images + (each.others or 0) for each in self.classes)
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
    accuracy: Estimate | None
    """None where images may have several labels or none, like the next."""
    balanced_accuracy: Estimate | None
    """Over the classes of which the site has images."""
    measure: Estimate | None
    """The study's measure; None where it cannot be measured on these images."""

    def by_measure(self, measure: StudyMeasure) -> dict[StudyMeasure, Estimate | None]:
        """What is shown of a site, in order: accuracy, balanced accuracy and the study's measure, which is among them.
        Where images may have several labels or none, the measure alone."""
        if self.accuracy is None:
            return {measure: self.measure}
        return {ACCURACY: self.accuracy, BALANCED: self.balanced_accuracy, measure: self.measure}


def site_scores(found: SiteEvaluation, measure: StudyMeasure, classes: Sequence[str],
                independent: IndependentImages | None = None) -> SiteScores:
    """Accuracy, balanced accuracy and the study's measure, with intervals; where images may have several labels or none
    the measure alone.

    Intervals as the coordinator's own (`semisilo.common.measures.gain.interval_of`).
    Args:
        classes: names in label order, (K,).
        independent: what the images are worth where several are of one patient, which the site alone knows; None where
            every image counts.
    Raises: ValueError where the counts are of another number of classes, or the measure is about a class that is not
        among them.
    """
    if len(classes) != len(found.classes):
        raise ValueError(f"Counts of {len(found.classes)} classes; the study has {len(classes)}.")
    if measure.kind == "recall" and measure.class_name not in classes:
        raise ValueError(f"There is no class '{measure.class_name}'.")
    if found.multi_label:
        return SiteScores(count=found.count, accuracy=None, balanced_accuracy=None,
                          measure=_score(found, measure, classes, independent) if measure.is_area else None)
    accuracy = _score(found, ACCURACY, classes, independent)
    balanced = _score(found, BALANCED, classes, independent)
    assert accuracy is not None, "there is at least one image"
    assert balanced is not None, "and so one class that has some"
    return SiteScores(count=found.count, accuracy=accuracy, balanced_accuracy=balanced,
                      measure=_score(found, measure, classes, independent))


def _score(found: SiteEvaluation, measure: StudyMeasure, classes: Sequence[str], independent: IndependentImages | None
           ) -> Estimate | None:
    if measure.kind == "accuracy":
        return _share(found.correct, found.count, None if independent is None else independent.total)
    if measure.kind == "recall":
        label = list(classes).index(measure.class_name)
        return _share(found.classes[label].correct, found.classes[label].images,
                      None if independent is None else independent.by_class[label])
    areas = [each.average_precision if measure.kind == "average_precision" else each.auroc for each in found.classes]
    without = tuple(each.others or 0 for each in found.classes) if found.multi_label else ()
    score = score_of(measure, classes=classes, hits_K=[each.correct for each in found.classes],
                     images_K=[each.images for each in found.classes], areas_K=areas,
                     without_K=without or None)
    with_images = [(name, each, area) for name, each, area in zip(classes, found.classes, areas, strict=True)
                   if each.images]
    metrics = {f"{measure.kind}/{name}": area for name, _, area in with_images if area is not None} \
        if measure.is_area else {f"recall/{name}": each.correct / each.images for name, each, _ in with_images}
    interval = interval_of(measure, classes=classes, metrics=metrics, images=ImageCounts(
        found.count, tuple(each.images for each in found.classes), without, independent))
    return None if score is None or interval is None else _within(score.value, interval)


def _share(correct: int, count: int, worth: float | None) -> Estimate | None:
    interval = share_interval(correct / count if count else None, count, worth)
    return None if interval is None else _within(correct / count, interval)


def _within(value: float, interval: Interval) -> Estimate:
    assert math.isfinite(value)
    return Estimate(value=value, low=interval.low, high=interval.high)


def estimate_text(found: Estimate | None, measure: StudyMeasure) -> str:
    """For a person: "81.2 % (76.0 to 85.4 %)", of an AUROC "0.912 (0.870 to 0.954)"."""
    if found is None:
        return "not measurable here"
    if measure.is_area:
        return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f} %)"
