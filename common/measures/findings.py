"""A model measured on images that may show several findings or none, from its logits: the numbers of a model card, and
of predictions whose labels are known.

Every class has a threshold of its own, chosen on validation images; what hangs on thresholds is told at these. Macro is
the mean over classes; micro takes all pairs of an image and a class together, so that frequent classes count more.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.errors import ComputeFailed
from semisilo.common.measures.finding_calibration import (
    FindingCalibration,
    PlattScaling,
    finding_calibration,
    finding_probabilities,
    fit_platt,
)
from semisilo.common.measures.gain import ImageCounts
from semisilo.common.measures.independent_images import IndependentImages, summed_by_patient, worth_of
from semisilo.common.measures.intervals import (
    Interval,
    area_interval,
    around,
    clustered_share_interval,
    dependent_mean_interval,
    f1_interval,
    precision_interval,
    share_interval,
)
from semisilo.common.measures.multi_label import (
    AVERAGE_CUT,
    ClassCounts,
    average_precisions,
    best_thresholds,
    counts_at,
    exact_match,
    f1_of,
    finding_areas,
    pooled_area_parts,
    pooled_average_precision,
    together_counts,
)
from semisilo.common.measures.study_measure import StudyMeasure

__all__ = ["CHOSEN_ON_VALIDATION", "NOT_CHOSEN", "FindingMeasures", "FindingsMeasures", "MicroMeasures",
           "measure_findings", "scaling_for", "thresholds_for"]

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
    f1_interval: Interval | None
    missed: int
    """Of `images`, those that are answered without it."""
    falsely_found: int
    """Of `others`, those that are answered with it."""
    precision: float | None
    """found / (found + falsely_found); None for a class that is never answered."""
    precision_interval: Interval | None
    calibration: FindingCalibration | None
    """Of the probabilities as they come; None for a class that is known of no image."""
    scaling: PlattScaling | None
    """What was fitted on validation images; None without, and for a class that they do not allow it for."""
    calibration_with_scaling: FindingCalibration | None
    """None without `scaling`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroMeasures:
    """Of all pairs of an image and a class that is known of it. Intervals let the pairs of one image hang on one
    another."""

    auroc: float | None
    auroc_interval: Interval | None
    average_precision: float | None
    average_precision_interval: Interval | None
    """As if each image with a finding were one trial."""
    f1: float | None
    f1_interval: Interval | None
    precision: float | None
    precision_interval: Interval | None
    sensitivity: float | None
    sensitivity_interval: Interval | None
    specificity: float | None
    specificity_interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingsMeasures:
    """All classes together. Intervals have a confidence of 95 %."""

    images: int
    auroc_macro: float | None
    auroc_macro_interval: Interval | None
    average_precision_macro: float | None
    average_precision_macro_interval: Interval | None
    f1_macro: float | None
    f1_macro_interval: Interval | None
    exact_match: float
    """Share of the images of which every known class is answered rightly, at the thresholds; of those of which any is
    known."""
    exact_match_interval: Interval | None
    classes: tuple[FindingMeasures, ...]
    thresholds_from: str
    """How the thresholds were chosen, in words."""
    micro: MicroMeasures
    expected_error_macro: float | None
    """Mean of the expected calibration errors of the classes, of the probabilities as they come."""
    expected_error_macro_with_scaling: float | None
    """Likewise with what was fitted on validation images, of a class without as they come; None where none has."""
    together_shown: tuple[tuple[int, ...], ...]
    """(K, K): images that show both classes; on the diagonal the class alone."""
    together_found: tuple[tuple[int, ...], ...]
    """Images that are answered with both, at the thresholds; those of which either is not known do not count."""
    independent: IndependentImages | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """What the images are worth where several are of one patient; None where all of them count."""

    @property
    def metrics(self) -> dict[str, float]:
        """What a study may be compared by, named as among the metrics of a round; what is not known is not there."""
        found = {"auroc": self.auroc_macro, "average_precision": self.average_precision_macro}
        for each in self.classes:
            found |= {f"auroc/{each.name}": each.auroc, f"average_precision/{each.name}": each.average_precision}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def counts(self) -> ImageCounts:
        """The images."""
        return ImageCounts(self.images, tuple(each.images for each in self.classes),
                           tuple(each.others for each in self.classes), self.independent)

    def value_of(self, measure: StudyMeasure) -> float | None:
        """A study's measure on these images, 0 to 1; None where they do not give it."""
        return self.metrics.get(measure.metric)

    def interval_of(self, measure: StudyMeasure) -> Interval | None:
        """Its interval."""
        return self.auroc_macro_interval if measure.kind == "auroc" else self.average_precision_macro_interval


def thresholds_for(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8], *,
                   scaling: Sequence[PlattScaling] = ()) -> tuple[float, ...]:
    """A threshold for the probability of each class: the one with the largest F1 on these images; 0.5 for a class that
    none of them shows.

    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    return best_thresholds(finding_probabilities(logits_NK, scaling), rows_NK)


def scaling_for(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8]) -> tuple[PlattScaling, ...]:
    """What fits these images best, class by class; (1, 0) for a class of which they are all alike.

    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    found = []
    for label in range(rows_NK.shape[1]):
        known_N = rows_NK[:, label] >= 0
        found.append(fit_platt(logits_NK[known_N, label], rows_NK[known_N, label] == 1) or PlattScaling())
    return tuple(found)


def measure_findings(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8], *, classes: Sequence[str],
                     thresholds: Sequence[float], thresholds_from: str, scaling: Sequence[PlattScaling] = (),
                     independent: IndependentImages | None = None, patients: Sequence[str] = ()) -> FindingsMeasures:
    """Measures a model by what it answers to images whose findings are known; N >= 1.

    Args:
        rows_NK: 1 shown, 0 not shown, -1 not known.
        thresholds: one for each class; () for 0.5.
        scaling: of each class's logit; () for none. Thresholds are of the probabilities that it gives.
        independent: what the images are worth where several are of one patient.
        patients: whom each image is of then, "" where it is not known; () where that is not known of the images.
    Raises: ComputeFailed when a logit is not finite.
    """
    _check_finite(logits_NK)
    p_NK, plain_NK = finding_probabilities(logits_NK, scaling), finding_probabilities(logits_NK)
    cuts_K = np.array(thresholds or (AVERAGE_CUT,) * len(classes))
    areas, precisions = finding_areas(p_NK, rows_NK), average_precisions(p_NK, rows_NK)
    counts, found = counts_at(p_NK, rows_NK, cuts_K), []
    for label, name in enumerate(classes):
        area, precision, of = areas.per_class[label], precisions.per_class[label], counts[label]
        known_N = rows_NK[:, label] >= 0
        is_N, own = rows_NK[known_N, label] == 1, scaling[label] if scaling else PlattScaling()
        scaled = None if own == PlattScaling() else own
        yes_N, is_class_N = (p_NK[:, label] >= cuts_K[label]) & known_N, rows_NK[:, label] == 1
        inside, outside = (None, None) if independent is None else (
            independent.by_class[label], independent.without[label])
        found.append(FindingMeasures(
            name=name, images=of.with_class, others=of.without_class, auroc=area,
            auroc_interval=None if area is None else area_interval(
                area, inside=inside or of.with_class, outside=outside or of.without_class),
            average_precision=precision,
            average_precision_interval=None if precision is None else precision_interval(
                precision, inside=inside or of.with_class),
            threshold=float(cuts_K[label]), found=of.true_positives, sensitivity=of.sensitivity,
            sensitivity_interval=share_interval(of.sensitivity, of.with_class, inside), spared=of.true_negatives,
            specificity=of.specificity,
            specificity_interval=share_interval(of.specificity, of.without_class, outside),
            f1=f1_of(of), f1_interval=_f1_interval(of, worth_of(patients, yes_N | is_class_N)),
            missed=of.false_negatives, falsely_found=of.false_positives,
            precision=of.precision, precision_interval=share_interval(
                of.precision, of.predicted, worth_of(patients, yes_N)),
            calibration=finding_calibration(plain_NK[known_N, label], is_N), scaling=scaled,
            calibration_with_scaling=None if scaled is None else finding_calibration(p_NK[known_N, label], is_N)))
    f1s = [each.f1 for each in found if each.f1 is not None]
    exact, known_NK = exact_match(p_NK, rows_NK, cuts_K), rows_NK >= 0
    said_N: NDArray[np.bool_] = rows_NK.max(axis=1) >= 0
    said_worth = None if independent is None else worth_of(patients, said_N) or independent.total
    return FindingsMeasures(
        images=len(rows_NK), auroc_macro=areas.macro,
        auroc_macro_interval=_together([each.auroc_interval for each in found]),
        average_precision_macro=precisions.macro,
        average_precision_macro_interval=_together([each.average_precision_interval for each in found]),
        f1_macro=sum(f1s) / len(f1s) if f1s else None,
        f1_macro_interval=_together([each.f1_interval for each in found]), exact_match=exact,
        exact_match_interval=share_interval(exact, int(said_N.sum()), said_worth), classes=tuple(found),
        thresholds_from=thresholds_from, micro=_micro(p_NK, rows_NK, cuts_K, patients),
        expected_error_macro=_mean([each.calibration for each in found]),
        expected_error_macro_with_scaling=None if all(each.scaling is None for each in found) else
        _mean([each.calibration_with_scaling or each.calibration for each in found]),
        together_shown=together_counts(rows_NK == 1), together_found=together_counts((p_NK >= cuts_K) & known_NK),
        independent=independent)


def _micro(p_NK: NDArray[np.float64], rows_NK: NDArray[np.int8], cuts_K: NDArray[np.float64], patients: Sequence[str]
           ) -> MicroMeasures:
    """Summed by patient where these are known, so that all pairs of one may hang on one another."""
    yes_NK, is_NK, not_NK = p_NK >= cuts_K, rows_NK == 1, rows_NK == 0

    def counted(cells_NK: NDArray[np.bool_]) -> list[int]:
        return [int(each) for each in summed_by_patient(patients, cells_NK.sum(axis=1).tolist())]
    right_N, spared_N, shown_N, others_N = map(counted, (yes_NK & is_NK, ~yes_NK & not_NK, is_NK, not_NK))
    answered_N, either_N = map(counted, (yes_NK & (is_NK | not_NK), is_NK | (yes_NK & not_NK)))
    parts, precision = pooled_area_parts(p_NK, rows_NK), pooled_average_precision(p_NK, rows_NK)
    shared = clustered_share_interval(right_N, either_N)
    has_f1 = sum(shown_N) > 0
    return MicroMeasures(
        auroc=None if parts is None else parts[0],
        auroc_interval=None if parts is None else _pooled_interval(
            parts[0], np.array(summed_by_patient(patients, parts[1].tolist())), shown_N, others_N),
        average_precision=precision, average_precision_interval=None if precision is None else
        precision_interval(precision, inside=sum(each > 0 for each in shown_N)),
        f1=2 * sum(right_N) / (sum(answered_N) + sum(shown_N)) if has_f1 else None,
        f1_interval=None if shared is None or not has_f1 else f1_interval(shared),
        precision=sum(right_N) / sum(answered_N) if sum(answered_N) else None,
        precision_interval=clustered_share_interval(right_N, answered_N),
        sensitivity=sum(right_N) / sum(shown_N) if has_f1 else None,
        sensitivity_interval=clustered_share_interval(right_N, shown_N),
        specificity=sum(spared_N) / sum(others_N) if sum(others_N) else None,
        specificity_interval=clustered_share_interval(spared_N, others_N))


def _pooled_interval(area: float, influence_N: NDArray[np.float64], shown_N: Sequence[int], others_N: Sequence[int]
                     ) -> Interval:
    """Of the variance of the images' parts; where that is 0, the order being perfect, of images in the place of pairs.
    """
    error = float(np.sqrt((influence_N**2).sum()))
    if error > 0:
        return around(area, error)
    return area_interval(area, inside=sum(each > 0 for each in shown_N), outside=sum(each > 0 for each in others_N))


def _f1_interval(of: ClassCounts, worth: float | None) -> Interval | None:
    """None without an image of the class, like F1 itself.

    Args:
        worth: of the images that show the class or are answered with it; None where every image counts.
    """
    either = of.with_class + of.false_positives
    shared = share_interval(of.true_positives / either if either else None, either, worth)
    return None if shared is None or not of.with_class else f1_interval(shared)


def _mean(calibrations: Sequence[FindingCalibration | None]) -> float | None:
    errors = [each.expected_error for each in calibrations if each is not None]
    return sum(errors) / len(errors) if errors else None


def _together(intervals: Sequence[Interval | None]) -> Interval | None:
    """Of the mean, as if all err alike: they are measured on the same images."""
    known = [each for each in intervals if each is not None]
    return dependent_mean_interval(known) if known else None


def _check_finite(logits_NK: NDArray[np.float32]) -> None:
    if not bool(np.isfinite(logits_NK).all()):
        raise ComputeFailed("The model's answers are not finite, so there is nothing to measure.",
                            remedy="Export another round: --round N.")
