"""The one number that a study is about: how it is named, decided and computed, and how far it may be off by chance.

Shapes: K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semisilo.common.measures.intervals import area_spread, share_error, standard_error

__all__ = ["ACCURACY", "AUROC", "AVERAGE_PRECISION", "BALANCED_ACCURACY", "IMBALANCED", "VALIDATION_PREFIX",
           "MeasureKind", "Score", "StudyMeasure", "common_measure", "decided_measure", "parse_measure", "score_of",
           "tells_class", "why_not_for"]

MeasureKind = Literal["accuracy", "balanced_accuracy", "auroc", "average_precision", "recall"]
VALIDATION_PREFIX = "validation_"
"""Before the names of metrics that are measured on validation images."""
IMBALANCED = 1.5
"""Classes of which the largest has more than so many times the images of the smallest are imbalanced."""
_RECALL = "recall:"
_WITHOUT_CLASS: tuple[MeasureKind, ...] = ("accuracy", "balanced_accuracy", "auroc", "average_precision")
_OF_FINDINGS: tuple[MeasureKind, ...] = ("auroc", "average_precision")


@dataclass(frozen=True, slots=True)
class StudyMeasure:
    """What a study chooses, stops and compares by; more is better."""

    kind: MeasureKind
    class_name: str = ""
    """Of "recall"; empty otherwise."""

    def __str__(self) -> str:
        """As a study file has it."""
        return f"{_RECALL}{self.class_name}" if self.kind == "recall" else self.kind

    @property
    def metric(self) -> str:
        """The name of this number among the metrics of a round."""
        return f"recall/{self.class_name}" if self.kind == "recall" else self.kind

    @property
    def title(self) -> str:
        """For a person."""
        if self.kind == "recall":
            return f"recall of {self.class_name}"
        return "AUROC" if self.kind == "auroc" else self.kind.replace("_", " ")

    @property
    def heading(self) -> str:
        """For a person, at the beginning of a line: "Balanced accuracy"."""
        return f"{self.title[:1].upper()}{self.title[1:]}"

    @property
    def with_article(self) -> str:
        """In a sentence: "a balanced accuracy", "an AUROC"."""
        return f"{'a' if self.kind in ('balanced_accuracy', 'recall') else 'an'} {self.title}"

    def label_in(self, classes: Sequence[str]) -> int | None:
        """Label of the class that it is about; None unless it is a recall. Raises: ValueError where that is none of
        these."""
        return list(classes).index(self.class_name) if self.kind == "recall" else None

    def unseen(self, classes: Sequence[str], images_K: Sequence[int]) -> tuple[str, ...]:
        """Classes that it should count and cannot, since no image is of them.

        Args:
            images_K: images of each class; () where that is not known, or there are none at all.
        """
        if self.kind == "accuracy" or not any(images_K):
            return ()
        return tuple(name for name, images in zip(classes, images_K, strict=True)
                     if not images and (self.kind != "recall" or name == self.class_name))

    @property
    def weighs_classes_alike(self) -> bool:
        """Whether a rare class counts as much as a frequent one: not of accuracy alone, where images count alike."""
        return self.kind != "accuracy"

    @property
    def is_area(self) -> bool:
        """Whether it is an area under a curve, which people write as 0.912 and not as a percentage."""
        return self.kind in _OF_FINDINGS


ACCURACY = StudyMeasure("accuracy")
BALANCED_ACCURACY = StudyMeasure("balanced_accuracy")
AUROC = StudyMeasure("auroc")
AVERAGE_PRECISION = StudyMeasure("average_precision")


@dataclass(frozen=True, slots=True)
class Score:
    """A measure on some images."""

    value: float
    """0 to 1."""
    error: float
    """Its standard error: how far it lies from what all images to come would give, typically."""


def parse_measure(text: str) -> StudyMeasure:
    """A measure as a study file names it: "accuracy", "balanced_accuracy", "auroc", "average_precision" or
    "recall:CLASS".

    Raises: ValueError for anything else.
    """
    if text.startswith(_RECALL) and len(text) > len(_RECALL):
        return StudyMeasure("recall", text.removeprefix(_RECALL))
    for kind in _WITHOUT_CLASS:
        if text == kind:
            return StudyMeasure(kind)
    raise ValueError(f'"{text}": choose "accuracy", "balanced_accuracy", "auroc" or "recall:CLASS". With several labels'
                     ' for an image: "auroc" or "average_precision".')


def why_not_for(measure: StudyMeasure, *, multi_label: bool) -> str:
    """Why a study cannot be about this measure; empty where it can.

    Args:
        multi_label: whether its images have several labels.
    """
    if multi_label and not measure.is_area:
        return ("it hangs on a cut-off of each class, which is chosen only when a model is handed over; choose"
                ' "auroc" or "average_precision"')
    if not multi_label and measure.kind == "average_precision":
        return 'it is for studies with task = "multi_label"; choose "auroc"'
    return ""


def common_measure(measures: Sequence[StudyMeasure], *, has_accuracy: bool) -> StudyMeasure:
    """What studies are compared by: the measure that they share; else accuracy, or AUROC where one has none.

    Args:
        has_accuracy: whether every study has it: not where images may have several labels or none.
    """
    if len(set(measures)) == 1:
        return measures[0]
    return ACCURACY if has_accuracy else AUROC


def decided_measure(images_K: Sequence[int]) -> StudyMeasure:
    """Balanced accuracy where the largest class has more than `IMBALANCED` times the images of the smallest, or a class
    has none; else accuracy, also where there are no images at all.

    Args:
        images_K: images of each class, (K,).
    """
    if not any(images_K) or max(images_K) <= IMBALANCED * min(images_K):
        return ACCURACY
    return BALANCED_ACCURACY


def score_of(measure: StudyMeasure, *, classes: Sequence[str], hits_K: Sequence[int], images_K: Sequence[int],
             areas_K: Sequence[float | None], without_K: Sequence[int] | None = None) -> Score | None:
    """A measure and its standard error, from counts and areas under the curve.

    | measure           | standard error                                                                 |
    |-------------------|--------------------------------------------------------------------------------|
    | accuracy, recall  | Wilson's at z = 1 (`standard_error`)                                           |
    | balanced accuracy | sqrt(sum of the squares of those of the recalls) / number of classes           |
    | AUROC             | the same of `area_spread`, as if the areas did not hang on one another; where  |
    |                   | each image is of one of two classes, both areas are the same one               |
    | average precision | the same of Wilson's, with as many trials as images of the class               |

    Args:
        classes: names in label order, (K,).
        hits_K: images of each class that are classified right.
        images_K: images of each class.
        areas_K: area under the curve of each class against the rest, or its average precision where the measure is
            that; None where it has none.
        without_K: images known not to show each class, where they may have several labels or none; None: those of
            the other classes.
    Returns: None where it cannot be measured: no images, none of the class, or no class with an area.
    Raises: ValueError for a class that is not among `classes`.
    None of them is 0, also where all is right: of few images that may be luck.
    Source: of average precision the binomial interval of Boyd, Eng and Page, ECML PKDD 2013, section 4, in Wilson's
        form.
    """
    if measure.kind == "accuracy":
        return _share(sum(hits_K), sum(images_K))
    if measure.kind == "recall":
        label = list(classes).index(measure.class_name)
        return _share(hits_K[label], images_K[label])
    if measure.kind == "balanced_accuracy":
        return _mean([_share(hits, images) for hits, images in zip(hits_K, images_K, strict=True)])
    if measure.kind == "average_precision":
        return _mean([None if area is None or not images else Score(area, share_error(area, images))
                      for area, images in zip(areas_K, images_K, strict=True)])
    total, one_of_two = sum(images_K), without_K is None and len(classes) == 2
    without_K = [total - images for images in images_K] if without_K is None else without_K
    scores = [None if area is None else Score(area, area_spread(area, inside=images, outside=without))
              for area, images, without in zip(areas_K, images_K, without_K, strict=True)]
    return scores[0] if one_of_two and None not in scores else _mean(scores)


def tells_class(label: int, confusion: Sequence[Sequence[int]]) -> bool:
    """Whether a model answers a class more often to its images than to others, by more than the standard error of the
    difference. Of one that does not, recall is no measure: always answering the class has a recall of 1.

    Args:
        confusion: confusion[true][predicted], in images, (K, K).
    Returns: False as well where no image, or every one, is of the class.
    Source: Youden, Cancer 3 (1950) 32: sensitivity + specificity - 1, which is 0 of an answer that tells nothing.
    """
    own = sum(confusion[label])
    others = sum(map(sum, confusion)) - own
    if not own or not others:
        return False
    found = confusion[label][label]
    falsely = sum(row[label] for row in confusion) - found
    return found / own - falsely / others > math.hypot(standard_error(found, own), standard_error(falsely, others))


def _share(hits: int, images: int) -> Score | None:
    return Score(hits / images, standard_error(hits, images)) if images else None


def _mean(scores: Sequence[Score | None]) -> Score | None:
    """The mean of independent scores, over those that there are."""
    found = [each for each in scores if each is not None]
    if not found:
        return None
    return Score(math.fsum(each.value for each in found) / len(found),
                 math.sqrt(math.fsum(each.error**2 for each in found)) / len(found))
