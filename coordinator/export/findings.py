"""A model measured on images that may show several findings or none: the numbers of a model card, from its logits.

Every class has a threshold of its own, chosen on validation images; what hangs on thresholds is told at these.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import ComputeFailed
from semisilo.common.measures.intervals import (
    Interval,
    area_interval,
    dependent_mean_interval,
    precision_interval,
    wilson,
)
from semisilo.common.measures.multi_label import (
    AVERAGE_CUT,
    average_precisions,
    best_thresholds,
    counts_at,
    exact_match,
    f1_of,
    finding_areas,
    sigmoid,
)
from semisilo.common.measures.study_measure import StudyMeasure

__all__ = ["CHOSEN_ON_VALIDATION", "NOT_CHOSEN", "FindingMeasures", "FindingsMeasures", "measure_findings",
           "thresholds_for"]

CHOSEN_ON_VALIDATION = "the largest F1 on the validation images"
NOT_CHOSEN = "0.5, since there are no validation images to choose by"


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingMeasures:
    """One class."""

    name: str
    images: int
    """That show it."""
    others: int
    """That do not."""
    auroc: float | None
    """None for a class that no image or every image shows."""
    auroc_interval: Interval | None
    average_precision: float | None
    """None for a class that no image shows. Guessing has the share of images that show it."""
    average_precision_interval: Interval | None
    threshold: float
    """The class counts as shown where its probability is at least this."""
    found: int
    """Of `images`, at the threshold."""
    sensitivity: float | None
    sensitivity_interval: Interval | None
    spared: int
    """Of `others`, those that are answered so."""
    specificity: float | None
    specificity_interval: Interval | None
    f1: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingsMeasures:
    """All classes together. Intervals have a confidence of 95 %."""

    images: int
    auroc_macro: float | None
    auroc_macro_interval: Interval | None
    average_precision_macro: float | None
    average_precision_macro_interval: Interval | None
    f1_macro: float | None
    exact_match: float
    """Share of the images of which every class is answered rightly, at the thresholds."""
    exact_match_interval: Interval | None
    classes: tuple[FindingMeasures, ...]
    thresholds_from: str
    """How the thresholds were chosen, in words."""

    @property
    def metrics(self) -> dict[str, float]:
        """What a study may be compared by, named as among the metrics of a round; what is not known is not there."""
        found = {"auroc": self.auroc_macro, "average_precision": self.average_precision_macro}
        for each in self.classes:
            found |= {f"auroc/{each.name}": each.auroc, f"average_precision/{each.name}": each.average_precision}
        return {name: value for name, value in found.items() if value is not None}

    def value_of(self, measure: StudyMeasure) -> float | None:
        """A study's measure on these images, 0 to 1; None where they do not give it."""
        return self.metrics.get(measure.metric)

    def interval_of(self, measure: StudyMeasure) -> Interval | None:
        """Its interval."""
        return self.auroc_macro_interval if measure.kind == "auroc" else self.average_precision_macro_interval


def thresholds_for(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8]) -> tuple[float, ...]:
    """A threshold for the probability of each class: the one with the largest F1 on these images; 0.5 for a class that
    none of them shows.

    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    return best_thresholds(sigmoid(logits_NK), rows_NK)


def measure_findings(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8], *, classes: Sequence[str],
                     thresholds: Sequence[float], thresholds_from: str) -> FindingsMeasures:
    """Measures a model by what it answers to images whose findings are known; N >= 1.

    Args:
        rows_NK: 1 shown, 0 not shown, -1 not known.
        thresholds: one for each class; () for 0.5.
    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    p_NK, cuts_K = sigmoid(logits_NK), np.array(thresholds or (AVERAGE_CUT,) * len(classes))
    areas, precisions = finding_areas(p_NK, rows_NK), average_precisions(p_NK, rows_NK)
    counts, found = counts_at(p_NK, rows_NK, cuts_K), []
    for label, name in enumerate(classes):
        area, precision, of = areas.per_class[label], precisions.per_class[label], counts[label]
        found.append(FindingMeasures(
            name=name, images=of.with_class, others=of.without_class, auroc=area,
            auroc_interval=None if area is None else area_interval(area, inside=of.with_class,
                                                                   outside=of.without_class),
            average_precision=precision,
            average_precision_interval=None if precision is None else precision_interval(precision,
                                                                                         inside=of.with_class),
            threshold=float(cuts_K[label]), found=of.true_positives, sensitivity=of.sensitivity,
            sensitivity_interval=wilson(of.true_positives, of.with_class), spared=of.true_negatives,
            specificity=of.specificity, specificity_interval=wilson(of.true_negatives, of.without_class),
            f1=f1_of(of)))
    f1s = [each.f1 for each in found if each.f1 is not None]
    exact = exact_match(p_NK, rows_NK, cuts_K)
    return FindingsMeasures(
        images=len(rows_NK), auroc_macro=areas.macro,
        auroc_macro_interval=_together([each.auroc_interval for each in found]),
        average_precision_macro=precisions.macro,
        average_precision_macro_interval=_together([each.average_precision_interval for each in found]),
        f1_macro=sum(f1s) / len(f1s) if f1s else None, exact_match=exact,
        exact_match_interval=wilson(round(exact * len(rows_NK)), len(rows_NK)), classes=tuple(found),
        thresholds_from=thresholds_from)


def _together(intervals: Sequence[Interval | None]) -> Interval | None:
    """Of the mean, as if all err alike: they are measured on the same images."""
    known = [each for each in intervals if each is not None]
    return dependent_mean_interval(known) if known else None


def _check_finite(logits_NK: NDArray[np.float32]) -> None:
    if not bool(np.isfinite(logits_NK).all()):
        raise ComputeFailed("The model's answers are not finite, so there is nothing to measure.",
                            remedy="Export another round: --round N.")
