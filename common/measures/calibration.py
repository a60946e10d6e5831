"""Whether a model's probabilities mean what they say, and whether they rank the classes well.

All of it needs numpy alone: these numbers are found in every round of a study, and importing scikit-learn there would
cost seconds and a hundred MB. The tests hold them against its own.

Shapes: N images, K classes, M bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadData

__all__ = ["BINS", "Auroc", "Bin", "Calibration", "area_under_curve", "auroc", "calibration_at",
           "calibration_of", "fit_temperature", "negative_log_likelihood", "probabilities"]

Floats = NDArray[np.floating]

BINS = 15
_LEAST_SHARPNESS, _MOST_SHARPNESS = 1e-3, 1e3
_HALVINGS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """The images whose confidence lies above `low` and is at most `high`."""

    low: float
    high: float
    count: int
    confidence: float | None
    """Mean probability of the predicted class; None for an empty bin."""
    accuracy: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """How far confidence and accuracy lie apart."""

    expected_error: float
    """ECE = sum_m |B_m| / N * |accuracy(B_m) - confidence(B_m)|; 0 is best."""
    brier: float
    """Mean over the images of sum_k (p_k - y_k)^2 with y one-hot; 0 is best, 2 worst."""
    negative_log_likelihood: float
    """Mean of -ln p of the true class; infinite where a probability is 0 and the logits are not known."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Auroc:
    """Areas under the receiver operating characteristic, one class against the rest."""

    macro: float
    """Mean over the classes that have one."""
    per_class: tuple[float | None, ...]
    """By label; None for a class that no image or every image has."""


def probabilities(logits_NK: Floats, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """softmax(logits / temperature), float64 (N, K).

    Raises: ValueError unless the temperature is above 0 and finite.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature = {temperature}: must be above 0 and finite.")
    scaled_NK = logits_NK.astype(np.float64) / temperature
    raised_NK = np.exp(scaled_NK - scaled_NK.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = raised_NK / raised_NK.sum(axis=1, keepdims=True)
    return result


def calibration_of(probabilities_NK: NDArray[np.float64], labels_N: NDArray[np.int64], *, bins: int = BINS
                   ) -> Calibration:
    """Expected calibration error over equal bins of confidence, Brier score and mean negative log-likelihood.

    Bin m of M holds the images with (m - 1) / M < confidence <= m / M; confidence is the largest probability, and of
    equal ones the class of the lowest label is the prediction.
    Raises: BadData without images; ValueError for labels that are not one per image.
    Source: ECE: Naeini, Cooper and Hauskrecht, AAAI 2015, and Guo et al., ICML 2017 (15 bins); Brier, Monthly Weather
        Review 78 (1950), in its form for several classes.
    """
    count, _ = _checked(probabilities_NK, labels_N)
    confidence_N, right_N = probabilities_NK.max(axis=1), probabilities_NK.argmax(axis=1) == labels_N
    bin_index_N = np.clip(np.ceil(confidence_N * bins).astype(np.int64) - 1, 0, bins - 1)
    found, error = [], 0.0
    for bin_index in range(bins):
        inside_N = bin_index_N == bin_index
        size = int(inside_N.sum())
        confidence = float(confidence_N[inside_N].mean()) if size else None
        accuracy = float(right_N[inside_N].mean()) if size else None
        if confidence is not None and accuracy is not None:
            error += size / count * abs(accuracy - confidence)
        found.append(Bin(low=bin_index / bins, high=(bin_index + 1) / bins, count=size, confidence=confidence,
                         accuracy=accuracy))
    true_N = probabilities_NK[np.arange(count), labels_N]
    off_NK = probabilities_NK.copy()
    off_NK[np.arange(count), labels_N] -= 1.0
    brier = float((off_NK * off_NK).sum(axis=1).mean())
    with np.errstate(divide="ignore"):
        likelihood = float(-np.log(true_N).mean())
    return Calibration(expected_error=error, brier=brier, negative_log_likelihood=likelihood, bins=tuple(found))


def calibration_at(logits_NK: Floats, labels_N: NDArray[np.int64], *, temperature: float = 1.0) -> Calibration:
    """`calibration_of` softmax(logits / temperature), with the negative log-likelihood from the logits: it is finite
    even where the probability of the true class is too small for a float.

    Raises: as `calibration_of` and `probabilities`.
    """
    return replace(calibration_of(probabilities(logits_NK, temperature=temperature), labels_N),
                   negative_log_likelihood=negative_log_likelihood(logits_NK, labels_N, temperature=temperature))


def negative_log_likelihood(logits_NK: Floats, labels_N: NDArray[np.int64], *, temperature: float = 1.0) -> float:
    """Mean of -ln softmax(logits / temperature) of the true class; from logits it does not overflow."""
    count, _ = _checked(logits_NK, labels_N)
    scaled_NK = logits_NK.astype(np.float64) / temperature
    top_N = scaled_NK.max(axis=1)
    total_N = top_N + np.log(np.exp(scaled_NK - top_N[:, None]).sum(axis=1))
    return float((total_N - scaled_NK[np.arange(count), labels_N]).mean())


def fit_temperature(logits_NK: Floats, labels_N: NDArray[np.int64]) -> float:
    """The temperature T, from 0.001 to 1000, with the least mean cross-entropy of softmax(logits / T) against targets a
    little inside 0 and 1:

        (N + 1) / (N + 2) for the class of an image, the rest in equal parts for the other classes

    Without them the answer would be T = 0 where all images are right, as happens with few of them, and the model would
    be sure of everything. With them it is about as sure as N right answers of N allow (Laplace's rule of succession):
    of two classes whose logits are always m apart, T = m / ln(N + 1). In 1 / T the loss is convex; its derivative, the
    mean over the images of E_p[logit] - E_target[logit], is brought to 0 by halving. Predictions do not change with T.
    Returns: 1 where no image tells classes apart.
    Raises: BadData without images.
    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017; the targets as in Platt, Probabilistic
        Outputs for Support Vector Machines (1999), section 2.2, for one number that all classes share.
    """
    count, classes = _checked(logits_NK, labels_N)
    wide_NK = logits_NK.astype(np.float64)
    if not np.ptp(wide_NK, axis=1).any():
        return 1.0
    true_N = wide_NK[np.arange(count), labels_N]
    others_N = (wide_NK.sum(axis=1) - true_N) / (classes - 1)
    wanted_N = ((count + 1) * true_N + others_N) / (count + 2)

    def slope(sharpness: float) -> float:
        p_NK = probabilities(wide_NK, temperature=1 / sharpness)
        return float(((p_NK * wide_NK).sum(axis=1) - wanted_N).mean())

    low, high = _LEAST_SHARPNESS, _MOST_SHARPNESS
    if slope(high) <= 0:
        return 1 / high
    if slope(low) >= 0:
        return 1 / low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def auroc(scores_NK: Floats, labels_N: NDArray[np.int64]) -> Auroc | None:
    """How often an image of a class has a higher score for it than an image of another class; ties count half.

    Args:
        scores_NK: probabilities, say; column k ranks class k.
    Returns: None when no class has both images and others.
    Source: Hanley and McNeil, Radiology 143 (1982); macro mean of one class against the rest.
    """
    _, classes = _checked(scores_NK, labels_N)
    found = [area_under_curve(scores_NK[:, label], labels_N == label) for label in range(classes)]
    known = [area for area in found if area is not None]
    return Auroc(macro=math.fsum(known) / len(known), per_class=tuple(found)) if known else None


def area_under_curve(scores_N: Floats, is_class_N: NDArray[np.bool_]) -> float | None:
    """The area under the curve of one class, or None without images of both kinds: Mann and Whitney's U over the number
    of pairs, from ranks: equal scores share the mean of their ranks.

        (sum of the ranks of the class - n (n + 1) / 2) / (n (N - n))

    Twice the ranks are whole numbers, so the sum is exact.
    """
    inside, count = int(is_class_N.sum()), len(scores_N)
    if inside in (0, count):
        return None
    _, group_N, sizes_G = np.unique(scores_N, return_inverse=True, return_counts=True)
    ends_G = np.cumsum(sizes_G)
    doubled_G = 2 * ends_G - sizes_G + 1  # of ranks end - size + 1 .. end the mean is end - (size - 1) / 2
    doubled = int(doubled_G[group_N[is_class_N]].sum())
    return (doubled - inside * (inside + 1)) / (2 * inside * (count - inside))


def _checked(scores_NK: Floats, labels_N: NDArray[np.int64]) -> tuple[int, int]:
    if scores_NK.ndim != 2 or labels_N.shape != scores_NK.shape[:1]:
        raise ValueError(f"{scores_NK.shape} scores and {labels_N.shape} labels do not belong together.")
    if len(labels_N) == 0:
        raise BadData("Calibration needs labelled images; the set has none.")
    return int(scores_NK.shape[0]), int(scores_NK.shape[1])
