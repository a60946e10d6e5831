"""Whether the probability of a class by itself means what it says, and Platt scaling, which brings it nearer to that.

Where an image may show several classes or none, each class is a yes or no of its own: among the images that get 0.3 for
it about 30 % should show it. numpy alone, as in `semisilo.common.measures.calibration`.

Shapes: N images of which it is known whether they show the class, M bins, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.measures.calibration import BINS
from semisilo.common.measures.multi_label import ByClass, sigmoid

__all__ = ["FindingCalibration", "PlattScaling", "ProbabilityBin", "calibration_errors", "finding_calibration",
           "finding_probabilities", "fit_platt"]

Floats = NDArray[np.floating]

_LEAST_SLOPE, _MOST_SLOPE = 1e-3, 1e3
_STEPS = 100
_SMALLEST_STEP = 2.0**-40
_ENOUGH = 1e-9
"""Of the gradient of the mean loss."""


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """What is made of a class's logit f before it becomes a probability: sigmoid(slope f + offset).

    Raises: ValueError for a slope that would turn the order round, and for numbers that are not finite.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.slope < math.inf and math.isfinite(self.offset)):
            raise ValueError(f"scaling: slope {self.slope} must be above 0, and offset {self.offset} finite.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbabilityBin:
    """The images whose probability of a class lies above `low` and is at most `high`; 0 is in the first bin."""

    low: float
    high: float
    count: int
    probability: float | None
    """Their mean probability; None for an empty bin."""
    shown: float | None
    """Share of them that show the class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingCalibration:
    """How far the probability of a class and its frequency lie apart."""

    expected_error: float
    """ECE = sum_m |B_m| / N * |shown(B_m) - probability(B_m)|; 0 is best."""
    brier: float
    """Mean over the images of (p - y)^2; 0 is best, 1 worst."""
    bins: tuple[ProbabilityBin, ...]


def finding_probabilities(logits_NK: Floats, scaling: Sequence[PlattScaling] = ()) -> NDArray[np.float64]:
    """The probability of every class by itself, float64 (N, K).

    Args:
        scaling: of each class; () for the sigmoid of the logits as they come.
    """
    if not scaling:
        return sigmoid(logits_NK)
    slopes_K, offsets_K = (np.array([getattr(each, name) for each in scaling]) for name in ("slope", "offset"))
    return sigmoid(logits_NK.astype(np.float64) * slopes_K + offsets_K)


def finding_calibration(p_N: Floats, is_class_N: NDArray[np.bool_], *, bins: int = BINS) -> FindingCalibration | None:
    """Expected calibration error of one class over equal bins of its probability, and Brier score; None without images.

    Source: the class-wise error of Kull et al., NeurIPS 2019, section 2, for one class that is a yes or no; Brier,
        Monthly Weather Review 78 (1950).
    """
    count = len(p_N)
    if not count:
        return None
    index_N = np.clip(np.ceil(p_N * bins).astype(np.int64) - 1, 0, bins - 1)
    sizes_M = np.bincount(index_N, minlength=bins)
    sums_M = np.bincount(index_N, weights=p_N, minlength=bins)
    shown_M = np.bincount(index_N, weights=is_class_N, minlength=bins)
    found = tuple(ProbabilityBin(low=each / bins, high=(each + 1) / bins, count=int(sizes_M[each]),
                                 probability=float(sums_M[each] / sizes_M[each]) if sizes_M[each] else None,
                                 shown=float(shown_M[each] / sizes_M[each]) if sizes_M[each] else None)
                  for each in range(bins))
    return FindingCalibration(expected_error=float(np.abs(shown_M - sums_M).sum() / count),
                              brier=float(((p_N - is_class_N) ** 2).mean()), bins=found)


def calibration_errors(p_NK: Floats, rows_NK: NDArray[np.integer]) -> ByClass:
    """The expected calibration error of every class; None for one that is known of no image.

    Args:
        rows_NK: 1 shown, 0 not shown, -1 not known.
    """
    found = []
    for label in range(rows_NK.shape[1]):
        known_N = rows_NK[:, label] >= 0
        found.append(finding_calibration(p_NK[known_N, label], rows_NK[known_N, label] == 1))
    return ByClass(tuple(None if each is None else each.expected_error for each in found))


def fit_platt(logits_N: Floats, is_class_N: NDArray[np.bool_]) -> PlattScaling | None:
    """The scaling with the least mean cross-entropy against targets a little inside 0 and 1, so that it is finite:

        (n + 1) / (n + 2) for the n images that show the class, 1 / (m + 2) for the m others

    An offset is needed beside the slope: a class that is rare, or was trained with balanced or adjusted losses, is off
    by a constant of its logit, which no temperature corrects. The slope stays between 0.001 and 1000, so that the order
    of the images does not change, nor AUROC and average precision of the class.
    Returns: None without images of both kinds.
    Source: Platt, Probabilistic Outputs for Support Vector Machines (1999), section 2.2; by Newton's method with
        halving steps, as Lin, Lin and Weng, Machine Learning 68 (2007).
    """
    inside, count = int(is_class_N.sum()), len(logits_N)
    if inside in (0, count):
        return None
    f_N = logits_N.astype(np.float64)
    targets_N = np.where(is_class_N, (inside + 1) / (inside + 2), 1 / (count - inside + 2))
    found = _minimum(f_N, targets_N, np.array([1.0, 0.0]), both=True)
    if not _LEAST_SLOPE <= found[0] <= _MOST_SLOPE:
        found[0] = min(max(found[0], _LEAST_SLOPE), _MOST_SLOPE)
        found = _minimum(f_N, targets_N, found, both=False)
    return PlattScaling(float(found[0]), float(found[1]))


def _minimum(f_N: NDArray[np.float64], targets_N: NDArray[np.float64], start: NDArray[np.float64], *, both: bool
             ) -> NDArray[np.float64]:
    """Slope and offset with the least loss, a convex function of both; or the offset alone, at the slope of `start`."""
    def loss(at: NDArray[np.float64]) -> float:
        z_N = at[0] * f_N + at[1]
        return float((np.logaddexp(0.0, z_N) - targets_N * z_N).mean())

    at, here = start.copy(), loss(start)
    for _ in range(_STEPS):
        p_N = sigmoid(at[0] * f_N + at[1])
        off_N, weight_N = p_N - targets_N, np.maximum(p_N * (1 - p_N), 1e-12)
        slope = np.array([float((off_N * f_N).mean()) if both else 0.0, float(off_N.mean())])
        if float(np.abs(slope).max()) < _ENOUGH:
            break
        cross = float((weight_N * f_N).mean()) if both else 0.0
        bend = np.array([[float((weight_N * f_N * f_N).mean()) + 1e-12 if both else 1.0, cross],
                         [cross, float(weight_N.mean()) + 1e-12]])
        step, part = np.linalg.solve(bend, slope), 1.0
        while part > _SMALLEST_STEP and (there := loss(at - part * step)) > here - 1e-4 * part * float(slope @ step):
            part /= 2
        if part <= _SMALLEST_STEP:
            break
        at, here = at - part * step, there
    return at
