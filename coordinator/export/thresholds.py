"""The thresholds of a model whose images may show several classes or none: one for each class, chosen on validation
images, with what its probability is fitted to there.

Shapes: N images, K classes.

Tests: tests/coordinator/export/test_thresholds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.measures.finding_calibration import PlattScaling, finding_probabilities
from semisilo.common.measures.findings import CHOSEN_ON_VALIDATION, NOT_CHOSEN, scaling_for, thresholds_for
from semisilo.common.models.exported import ModelFacts, OperatingPoint
from semisilo.common.text.describe import counted
from semisilo.coordinator.export.operating_point import PointRates, WantedPoint, point_of_class, rates_at

__all__ = ["ClassThresholds", "choose_thresholds", "threshold_in_words", "thresholds_in_words"]

_MOST_NAMED = 3
"""Classes of one level that are told by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassThresholds:
    """What validation images give."""

    thresholds: tuple[float, ...]
    """Of each class's probability, in label order; so are the others."""
    scaling: tuple[PlattScaling, ...]
    """() unless asked for."""
    operating_points: tuple[OperatingPoint, ...]
    """What thresholds were chosen for, of the classes of which that was asked; those of the others have the largest
    F1."""
    rates: tuple[PointRates, ...]
    """At the thresholds, on these same images."""


def choose_thresholds(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8], *, classes: Sequence[str],
                      wanted: Sequence[WantedPoint], calibrate: bool, patients: Sequence[str] = ()
                      ) -> ClassThresholds:
    """Chooses on images that nothing was trained on, and that are no test images.

    Args:
        rows_NK: 1 shown, 0 not shown, -1 not known.
        wanted: at most one for each class. A class of which these images are all alike keeps its other threshold where
            the point was asked for every class.
        patients: whom each image is of, "" where it is not known; () where every image counts.
    Raises: UsageError for a point that cannot be had; ComputeFailed when a logit is not finite.
    """
    scaling = scaling_for(logits_NK, rows_NK) if calibrate else ()
    p_NK = finding_probabilities(logits_NK, scaling)
    cuts, points = list(thresholds_for(logits_NK, rows_NK, scaling=scaling)), []
    known = [rows_NK[:, label] >= 0 for label in range(len(classes))]
    for each in wanted:
        label = list(classes).index(each.label)
        is_class_N = rows_NK[known[label], label] == 1
        if each.asked_of_all and (not is_class_N.any() or is_class_N.all()):
            continue
        points.append(point_of_class(each, p_NK[known[label], label], is_class_N))
        cuts[label] = points[-1].threshold
    rates = tuple(rates_at(p_NK[known[label], label], rows_NK[known[label], label] == 1, cut,
                           patients=[patients[image] for image in np.flatnonzero(known[label]).tolist()]
                           if patients else ())
                  for label, cut in enumerate(cuts))
    return ClassThresholds(thresholds=tuple(cuts), scaling=scaling, operating_points=tuple(points), rates=rates)


def threshold_in_words(facts: ModelFacts, name: str, *, shown: int) -> str:
    """What the threshold of one class was chosen for.

    Args:
        shown: validation images that show it.
    """
    point = next((each for each in facts.operating_points if each.label == name), None)
    if point is not None:
        return f"{point.measure} {100 * point.level:g} %"
    return "largest F1" if shown else "0.5: no validation image shows it"


def thresholds_in_words(facts: ModelFacts) -> str:
    """How all of them were chosen."""
    points = facts.operating_points
    if not facts.thresholds or not points:
        return CHOSEN_ON_VALIDATION if facts.thresholds else NOT_CHOSEN
    by_level: dict[str, list[str]] = {}
    for point in points:
        by_level.setdefault(f"{point.measure} {100 * point.level:g} %", []).append(point.label)
    what = ", ".join(f"{level} for {counted(len(names), 'class', 'classes')}" if len(names) > _MOST_NAMED else
                     f"{level} for {' and '.join(names)}" for level, names in by_level.items())
    rest = "" if len(points) == len(facts.model.classes) else f"; for the others {CHOSEN_ON_VALIDATION}"
    return f"{what} on the validation images{rest}"
