"""An operating point: a threshold of one class's probability, chosen on validation images for a stated rate.

Shapes: N images.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.errors import UsageError
from semisilo.common.measures.independent_images import patient_keys, worth_of
from semisilo.common.measures.intervals import Interval, share_interval
from semisilo.common.models.exported import OperatingPoint

__all__ = ["EVERY_CLASS", "CardOperatingPoint", "PointRates", "WantedPoint", "choose_threshold", "operating_point_for",
           "point_of_class", "rates_at", "wanted_point", "wanted_points"]

EVERY_CLASS = "every class"
"""In the place of a class, where images may have several labels."""

_TEXT = re.compile(r"^\s*(sensitivity|specificity)\s+(\d+(?:\.\d+)?)\s*%\s+for\s+(.+?)\s*$")
_EXAMPLE = 'Write for example: --operating-point "sensitivity 95% for melanoma".'
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedPoint:
    """What somebody asks for."""

    measure: Literal["sensitivity", "specificity"]
    level: float
    """Above 0, at most 1."""
    label: str
    asked_of_all: bool = False
    """Whether it was asked for every class, so that a class that it cannot be had of is left as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointRates:
    """What an operating point gives on a set of images: the class against the rest."""

    images: int
    of_class: int
    """Images of the class."""
    found: int
    """Of these, with the threshold reached."""
    sensitivity: float | None
    """found / of_class; None without images of the class."""
    sensitivity_interval: Interval | None
    spared: int
    """Images of the rest, with the threshold not reached."""
    specificity: float | None
    """spared / rest; None without images of the rest."""
    specificity_interval: Interval | None
    patients: int = field(default=0, metadata=ABSENT_AT_DEFAULT)
    """How many patients intervals go by, where several images are of one; 0 where every image counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardOperatingPoint:
    """What a card says of it."""

    point: OperatingPoint
    validation: PointRates
    """On the images that the threshold was chosen on: by choice about as was asked."""
    test: PointRates | None
    """On test images, which had no part in it; None without any."""


def wanted_point(text: str, classes: Sequence[str]) -> WantedPoint:
    """What "sensitivity 95% for CLASS" or "specificity 90% for CLASS" asks for.

    Raises: UsageError for another text, a level that is not above 0 and at most 100 %, or a class that there is not.
    """
    match = _TEXT.match(text)
    if match is None:
        raise UsageError(f"--operating-point {text!r}: is not understood.", remedy=_EXAMPLE)
    level, label = float(match[2]) / 100, match[3]
    if not 0 < level <= 1:
        raise UsageError(f"--operating-point: {match[2]} % must be above 0 and at most 100.", remedy=_EXAMPLE)
    if label not in classes:
        near = difflib.get_close_matches(label, classes, n=1)
        raise UsageError(f"--operating-point: there is no class '{label}'.",
                         remedy=f"Did you mean '{near[0]}'?" if near else f"The classes are: {', '.join(classes)}.")
    return WantedPoint(measure=cast(Literal["sensitivity", "specificity"], match[1]), level=level, label=label)


def wanted_points(texts: Sequence[str], classes: Sequence[str]) -> tuple[WantedPoint, ...]:
    """What `texts` ask for where images may have several labels: of each class at most one, in label order.

    "sensitivity 90% for every class" is of all classes that no other text names.
    Raises: UsageError as `wanted_point`, and for a class that is named twice.
    """
    by_class: dict[str, WantedPoint] = {}
    for text in texts:
        match = _TEXT.match(text)
        if match is not None and match[3] == EVERY_CLASS and EVERY_CLASS not in classes:
            each = wanted_point(text, (EVERY_CLASS,))
            found = [replace(each, label=name, asked_of_all=True) for name in classes]
        else:
            found = [wanted_point(text, classes)]
        for point in found:
            before = by_class.get(point.label)
            if before is None or (before.asked_of_all and not point.asked_of_all):
                by_class[point.label] = point
            elif before.asked_of_all == point.asked_of_all:
                raise UsageError(f"--operating-point: '{EVERY_CLASS if point.asked_of_all else point.label}' is named"
                                 " twice.", remedy="Give each class one operating point.")
    return tuple(by_class[name] for name in classes if name in by_class)


def choose_threshold(p_N: NDArray[np.float64], is_class_N: NDArray[np.bool_], *,
                     measure: Literal["sensitivity", "specificity"], level: float) -> float:
    """The threshold t at which p >= t has at least this sensitivity, or specificity, and the most of the other.

        sensitivity: below the ceil(level n)-th largest of the class's n probabilities
        specificity: above the (floor((1 - level) m) + 1)-th largest of the rest's m

    halfway to the next probability of any image (or to 0 or 1), so that a last digit that another machine computes
    otherwise moves none over it.
    Args:
        p_N: the class's probability of each image.
        is_class_N: at least one image of each kind.
    Returns: 0..1.
    """
    own, rest = np.sort(p_N[is_class_N])[::-1], np.sort(p_N[~is_class_N])[::-1]
    if measure == "sensitivity":
        last = float(own[math.ceil(level * len(own) - _ROUNDING) - 1])
        below = p_N[p_N < last]
        return (last + (float(below.max()) if len(below) else 0.0)) / 2
    allowed = math.floor((1 - level) * len(rest) + _ROUNDING)
    if allowed >= len(rest):
        return 0.0
    first = float(rest[allowed])
    above = p_N[p_N > first]
    return (first + (float(above.min()) if len(above) else 1.0)) / 2


def rates_at(p_N: NDArray[np.float64], is_class_N: NDArray[np.bool_], threshold: float, *,
             patients: Sequence[str] = ()) -> PointRates:
    """Sensitivity and specificity of p >= threshold, with Wilson's intervals.

    Args:
        patients: a key of each image, "" where it is not known; () where every image counts.
    """
    reached_N = p_N >= threshold
    of_class, found = int(is_class_N.sum()), int((reached_N & is_class_N).sum())
    rest, spared = len(p_N) - of_class, int((~reached_N & ~is_class_N).sum())
    sensitivity, specificity = found / of_class if of_class else None, spared / rest if rest else None
    return PointRates(
        images=len(p_N), of_class=of_class, found=found, sensitivity=sensitivity,
        sensitivity_interval=share_interval(sensitivity, of_class, worth_of(patients, is_class_N)), spared=spared,
        specificity=specificity,
        specificity_interval=share_interval(specificity, rest, worth_of(patients, ~is_class_N)),
        patients=len(set(patient_keys(patients))))


def operating_point_for(wanted: WantedPoint, probabilities_NK: NDArray[np.float64], labels_N: NDArray[np.int64],
                        classes: Sequence[str]) -> OperatingPoint:
    """The operating point that validation images give.

    Raises: UsageError where they lack the class or the rest, or where certain mistakes leave no such threshold.
    """
    label = list(classes).index(wanted.label)
    return point_of_class(wanted, probabilities_NK[:, label], labels_N == label)


def point_of_class(wanted: WantedPoint, p_N: NDArray[np.float64], is_class_N: NDArray[np.bool_]) -> OperatingPoint:
    """`operating_point_for` by the probabilities of the class alone, of images of which it is known."""
    if not is_class_N.any() or is_class_N.all():
        what = "none is" if not is_class_N.any() else "all are"
        raise UsageError(f"An operating point needs validation images of '{wanted.label}' and of the rest; {what} of"
                         " it.", remedy="Add some to [data] validation of a study, or choose another class.")
    threshold = choose_threshold(p_N, is_class_N, measure=wanted.measure, level=wanted.level)
    found = rates_at(p_N, is_class_N, threshold)
    reached = found.sensitivity if wanted.measure == "sensitivity" else found.specificity
    if reached is None or reached < wanted.level - _ROUNDING:
        raise UsageError(f"No threshold gives {wanted.measure} {100 * wanted.level:g} % for '{wanted.label}': the model"
                         " is certain of images of the rest.", remedy="Ask for less, or export another round.")
    return OperatingPoint(label=wanted.label, measure=wanted.measure, level=wanted.level, threshold=threshold)
