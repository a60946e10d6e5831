"""A model measured on a set of labelled images: the numbers of a model card, from its logits alone.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.errors import ComputeFailed
from semisilo.common.measures.calibration import Calibration, auroc, calibration_at, fit_temperature, probabilities
from semisilo.common.measures.gain import ImageCounts, interval_of
from semisilo.common.measures.independent_images import IndependentImages, worth_of
from semisilo.common.measures.intervals import Interval, share_interval
from semisilo.common.measures.study_measure import StudyMeasure, parse_measure

__all__ = ["MOST_DENSE", "ClassMeasures", "Measures", "measure", "temperature_for"]

MOST_DENSE = 300
"""Classes up to which every cell of the confusion matrix is written: of 3000 that would be 9 million."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMeasures:
    """One class."""

    name: str
    images: int
    """That have this class."""
    predicted: int
    """That the model gives it."""
    right: int
    recall: float | None
    """right / images; None for a class that does not occur."""
    recall_interval: Interval | None
    precision: float | None
    """right / predicted; None for a class that is never predicted."""
    precision_interval: Interval | None
    auroc: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measures:
    """All classes together. Intervals have a confidence of 95 %."""

    images: int
    right: int
    accuracy: float
    accuracy_interval: Interval
    balanced_accuracy: float
    """Mean recall of the classes that occur."""
    balanced_accuracy_interval: Interval
    auroc_macro: float | None
    """None where no class has both images and others."""
    auroc_macro_interval: Interval | None
    classes: tuple[ClassMeasures, ...]
    confusion: tuple[tuple[int, ...], ...]
    """confusion[true][predicted], in images; () for more than `MOST_DENSE` classes."""
    calibration: Calibration
    """Of the probabilities as they come, at temperature 1."""
    temperature: float
    """1, or what was fitted on validation images."""
    calibration_with_temperature: Calibration | None
    """None at temperature 1."""
    confusion_cells: tuple[tuple[int, int, int], ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Of more classes: (true, predicted, images) of all that is not 0, by the labels' order."""
    independent: IndependentImages | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """What the images are worth where several are of one patient; None where all of them count."""

    def value_of(self, measure: StudyMeasure) -> float | None:
        """A study's measure on these images, 0 to 1; None where they do not give it."""
        return self.metrics.get(measure.metric)

    def interval_of(self, measure: StudyMeasure) -> Interval | None:
        """Its interval; None where they do not give it."""
        return interval_of(measure, classes=tuple(each.name for each in self.classes), images=self.counts,
                           metrics=self.metrics)

    @property
    def counts(self) -> ImageCounts:
        """The images."""
        return ImageCounts(self.images, tuple(each.images for each in self.classes), independent=self.independent)

    @property
    def metrics(self) -> dict[str, float]:
        """What a study may be compared by, named as among the metrics of a round; what is not known is not there."""
        found = {"accuracy": self.accuracy, "balanced_accuracy": self.balanced_accuracy, "auroc": self.auroc_macro}
        for each in self.classes:
            found |= {f"recall/{each.name}": each.recall, f"auroc/{each.name}": each.auroc}
        return {name: value for name, value in found.items() if value is not None}


def measure(logits_NK: NDArray[np.float32], labels_N: NDArray[np.int64], *, classes: Sequence[str],
            temperature: float = 1.0, independent: IndependentImages | None = None, patients: Sequence[str] = ()
            ) -> Measures:
    """Measures a model by what it answers to images whose class is known; N >= 1.

    Predictions are the largest logit, of equal ones the lowest class, as in the rounds of a study.
    Args:
        independent: what the images are worth where several are of one patient.
        patients: whom each image is of then, "" where it is not known; () where that is not known of the images.
    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    number = len(classes)
    predicted_N = logits_NK.argmax(axis=1)
    counted = np.bincount(labels_N * number + predicted_N, minlength=number * number).reshape(number, number)
    confusion: tuple[tuple[int, ...], ...] = ()
    cells: tuple[tuple[int, int, int], ...] = ()
    if number <= MOST_DENSE:
        confusion = tuple(tuple(row) for row in counted.tolist())
    else:
        cells = tuple((true, answer, int(counted[true, answer])) for true, answer in np.argwhere(counted).tolist())
    p_NK = probabilities(logits_NK)
    areas, worth = auroc(p_NK, labels_N), independent
    images_K = tuple(counted.sum(axis=1).tolist())
    counts = ImageCounts(len(labels_N), images_K, independent=worth)
    found = []
    for label, name in enumerate(classes):
        images, predicted, right = (int(counted[label].sum()), int(counted[:, label].sum()), int(counted[label, label]))
        recall = right / images if images else None
        found.append(ClassMeasures(
            name=name, images=images, predicted=predicted, right=right, recall=recall,
            recall_interval=share_interval(recall, images, None if worth is None else worth.by_class[label]),
            precision=right / predicted if predicted else None, precision_interval=share_interval(
                right / predicted if predicted else None, predicted, worth_of(patients, predicted_N == label)),
            auroc=None if areas is None else areas.per_class[label]))
    right = int(np.trace(counted))
    recalls = [each.recall for each in found if each.recall is not None]
    numbers = {"accuracy": right / len(labels_N)} | {
        f"{kind}/{each.name}": value for each in found
        for kind, value in (("recall", each.recall), ("auroc", each.auroc)) if value is not None}

    def interval(kind: str) -> Interval | None:
        return interval_of(parse_measure(kind), classes=classes, images=counts, metrics=numbers)
    of_accuracy, balanced = interval("accuracy"), interval("balanced_accuracy")
    assert of_accuracy is not None
    assert balanced is not None
    return Measures(
        images=len(labels_N), right=right, accuracy=right / len(labels_N), accuracy_interval=of_accuracy,
        balanced_accuracy=sum(recalls) / len(recalls), balanced_accuracy_interval=balanced,
        auroc_macro=None if areas is None else areas.macro, auroc_macro_interval=interval("auroc"),
        classes=tuple(found), confusion=confusion, confusion_cells=cells,
        calibration=calibration_at(logits_NK, labels_N), temperature=temperature,
        calibration_with_temperature=None if temperature == 1.0 else
        calibration_at(logits_NK, labels_N, temperature=temperature), independent=worth)


def temperature_for(logits_NK: NDArray[np.float32], labels_N: NDArray[np.int64]) -> float:
    """The temperature that fits validation images best. Raises: ComputeFailed when a logit is not finite."""
    _check_finite(logits_NK)
    return fit_temperature(logits_NK, labels_N)


def _check_finite(logits_NK: NDArray[np.float32]) -> None:
    if not bool(np.isfinite(logits_NK).all()):
        raise ComputeFailed("The model's answers are not finite, so there is nothing to measure.",
                            remedy="Export another round: --round N.")
