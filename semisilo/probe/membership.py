"""Was an image trained on? LiRA, the likelihood ratio attack, and how well it does.

Pure functions of numbers; who trains the updates that are compared is `semisilo.probe.probe`.

Shapes: U updates, N images, K classes, T thresholds. Updates come in pairs (0, 1), (2, 3), ...: the second of a pair
was trained on just those images that the first was not, so that every image is in exactly U / 2 of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.measures.intervals import LEVEL

__all__ = ["Attacked", "Measured", "allowed_area", "allowed_hits", "attacked", "confidence_logits", "halves",
           "likelihood_ratios", "of_replacement"]

Floats = NDArray[np.float64]
_RESAMPLES = 1000
_LEAST_SPREAD = 1e-12
_FEWEST_BEYOND = 10
"""Images outside that a false-positive rate must let through: of fewer it is not known."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with its interval of confidence `LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Attacked:
    """How well an attack tells images that were trained on from those that were not."""

    area: Measured
    """Area under the ROC curve: how often of two images the one that was trained on is named. 0.5 is chance."""
    hits: tuple[tuple[float, Measured], ...]
    """(false-positive rate, true-positive rate): the share of images trained on that are found when so large a share of
    the others is accused. By chance both are equal. Rates that the number of images does not allow are left out."""
    trials: int
    """Images times updates: what was guessed at."""


def halves(count: int, pairs: int, *, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Which image each update is trained on, bool (2 pairs, N): a random half of the images, then the other half.

    Args:
        count: N, even.
    Raises: ValueError for an odd number.
    """
    if count % 2:
        raise ValueError(f"{count} images cannot be halved.")
    members_UN = np.zeros((2 * pairs, count), dtype=bool)
    for pair in range(pairs):
        members_UN[2 * pair, generator.permutation(count)[:count // 2]] = True
        members_UN[2 * pair + 1] = ~members_UN[2 * pair]
    return members_UN


def confidence_logits(logits_NK: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """phi = log(p_y / (1 - p_y)) of the class y of each image, float64 (N,); from logits, so that nothing overflows.

        phi = z_y - log sum_{k != y} exp z_k

    Over models trained alike it is nearly normal, which neither p_y nor the loss is.
    Raises: ValueError for fewer than two classes.
    Source: Carlini et al., IEEE S&P 2022, section V-A.
    """
    if logits_NK.shape[1] < 2:
        raise ValueError("Confidence needs two classes.")
    rows = np.arange(len(labels_N))
    others_NK = logits_NK.astype(np.float64)
    own_N = others_NK[rows, labels_N].copy()
    others_NK[rows, labels_N] = -np.inf
    top_N = others_NK.max(axis=1)
    result: Floats = own_N - (top_N + np.log(np.exp(others_NK - top_N[:, None]).sum(axis=1)))
    return result


def likelihood_ratios(scores_UN: Floats, members_UN: NDArray[np.bool_]) -> Floats:
    """log of the likelihood that each image was in each update over that it was not, float64 (U, N).

    Every update is attacked with all others as shadows, but for the other one of its pair. So each image is in as many
    shadows as it is not, whichever update is attacked, and where nothing leaks the area is 0.5 on average, not less:

        (phi - mu_out)^2 / (2 s^2) - (phi - mu_in)^2 / (2 s^2)

    mu_in, mu_out: means of an image's scores over the shadows with and without it; s^2: their common variance, of each
    image its own. The paper's two variances an image need hundreds of shadows.

    Args:
        scores_UN: of every image under the model of every update (`confidence_logits`).
        members_UN: as `halves` gives them; at least three pairs.
    Raises: ValueError for fewer, and for updates that are not in pairs.
    Source: Carlini et al., IEEE S&P 2022, Algorithm 1 (online); the variance as in section VI-B, for few shadows.
    """
    updates, _ = scores_UN.shape
    if updates < 6 or updates % 2 or not (members_UN[0::2] ^ members_UN[1::2]).all():
        raise ValueError("At least three pairs of updates, each of two halves, are needed.")
    sums, squares = {}, {}
    for inside in (True, False):
        chosen_UN = members_UN == inside
        sums[inside] = np.where(chosen_UN, scores_UN, 0.0).sum(axis=0)
    centre_N = (sums[True] + sums[False]) / updates
    moved_UN = scores_UN - centre_N  # so that squares lose no digits
    for inside in (True, False):
        chosen_UN = members_UN == inside
        sums[inside] = np.where(chosen_UN, moved_UN, 0.0).sum(axis=0)
        squares[inside] = np.where(chosen_UN, moved_UN ** 2, 0.0).sum(axis=0)
    shadows = updates // 2 - 1  # of each kind
    ratios_UN = np.zeros_like(scores_UN)
    rows = np.arange(scores_UN.shape[1])
    for pair in range(updates // 2):
        two_2N = moved_UN[2 * pair:2 * pair + 2]
        first_N = members_UN[2 * pair]
        in_N = two_2N[np.where(first_N, 0, 1), rows]
        out_N = two_2N[np.where(first_N, 1, 0), rows]
        mean_in_N, mean_out_N = (sums[True] - in_N) / shadows, (sums[False] - out_N) / shadows
        rest_N = (squares[True] - in_N ** 2 - shadows * mean_in_N ** 2
                  + squares[False] - out_N ** 2 - shadows * mean_out_N ** 2)
        spread_N = np.maximum(rest_N / (2 * shadows - 2), _LEAST_SPREAD)
        ratios_UN[2 * pair:2 * pair + 2] = ((two_2N - mean_out_N) ** 2 - (two_2N - mean_in_N) ** 2) / (2 * spread_N)
    return ratios_UN


def attacked(ratios_UN: Floats, members_UN: NDArray[np.bool_], *, rates: Sequence[float],
             generator: np.random.Generator) -> Attacked:
    """How well a threshold on the ratios tells members from others, with one threshold for all images.

    The intervals are those of a bootstrap over pairs of updates and, at once, over images: both would be others another
    time, and every pair of updates has met the same images. It is wider rather than narrower than it need be.

    Args:
        rates: false-positive rates to look at.
        generator: of the bootstrap.
    Source: Owen, Annals of Applied Statistics 1 (2007), "The pigeonhole bootstrap".
    """
    pairs, count = len(ratios_UN) // 2, ratios_UN.shape[1]
    curve = _Curve(ratios_UN, members_UN)
    known = [rate for rate in rates if rate * members_UN.size / 2 >= _FEWEST_BEYOND]
    whole = curve.measured(np.ones(members_UN.size), known)
    drawn = np.empty((_RESAMPLES, len(whole)))
    for number in range(_RESAMPLES):
        by_pair = generator.multinomial(pairs, np.full(pairs, 1 / pairs)).repeat(2).astype(np.float64)
        by_image = generator.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
        drawn[number] = curve.measured(np.outer(by_pair, by_image).ravel(), known)
    ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    area, *hits = (Measured(float(value), float(low), float(high))
                   for value, low, high in zip(whole, *ends, strict=True))
    return Attacked(area=area, hits=tuple(zip(known, hits, strict=True)), trials=members_UN.size)


class _Curve:
    """The ROC curve of scores that are sorted once and weighed many times."""

    def __init__(self, scores: Floats, members: NDArray[np.bool_]) -> None:
        flat = scores.ravel()
        self._order = np.argsort(-flat, kind="stable")
        self._members = members.ravel()[self._order]
        ranked = flat[self._order]
        self._ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # equal scores are accused together

    def measured(self, weights: Floats, rates: Sequence[float]) -> list[float]:
        """The area, and the true-positive rate at each false-positive rate, between the points of the curve."""
        weights = weights[self._order]
        found_T = np.append(0.0, np.cumsum(weights * self._members)[self._ends])
        wrong_T = np.append(0.0, np.cumsum(weights * ~self._members)[self._ends])
        if not (found_T[-1] and wrong_T[-1]):
            return [0.5, *rates]
        true_T, false_T = found_T / found_T[-1], wrong_T / wrong_T[-1]
        area = float(((false_T[1:] - false_T[:-1]) * (true_T[1:] + true_T[:-1])).sum() / 2)
        return [area, *(float(np.interp(rate, false_T, true_T)) for rate in rates)]


# What differential privacy allows -------------------------------------------------------------------------------------


def of_replacement(epsilon: float, delta: float) -> tuple[float, float]:
    """(epsilon, delta) of two sets in which one image is exchanged for another, from those of sets in which it is
    exchanged for one that contributes nothing: two such steps lie between.

        2 epsilon, (1 + e^epsilon) delta

    Source: group privacy; Dwork and Roth, Foundations and Trends 9 (2014), theorem 2.2 for delta = 0; Vadhan, The
        Complexity of Differential Privacy (2017), lemma 2.2.
    """
    return 2 * epsilon, min(1.0, (1 + _exp(epsilon)) * delta)


def allowed_hits(rate: float, *, epsilon: float, delta: float) -> float:
    """The largest true-positive rate that any attack can have at a false-positive rate f, against (epsilon, delta).

        min(e^epsilon f + delta, 1 - e^-epsilon (1 - delta - f)), at most 1

    Source: Kairouz et al., ICML 2015, section 2.2; Wasserman and Zhou, JASA 105 (2010).
    """
    return max(0.0, min(1.0, _exp(epsilon) * rate + delta, 1 - _exp(-epsilon) * (1 - delta - rate)))


def allowed_area(*, epsilon: float, delta: float) -> float:
    """The largest area under the ROC curve that any attack can have: that under `allowed_hits`, whose curve has three
    straight pieces."""
    corner = max(0.0, 1 - delta) / (1 + _exp(epsilon))
    points = [0.0, corner, max(corner, 1 - delta), 1.0]
    heights = [allowed_hits(rate, epsilon=epsilon, delta=delta) for rate in points]
    return math.fsum((right - left) * (low + high) / 2
                     for left, right, low, high in zip(points, points[1:], heights, heights[1:], strict=False))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
