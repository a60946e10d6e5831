"""Measures of a model where an image may show several findings or none: each class is a separate question.

Accuracy means nothing here: who answers "no finding" to everything is right on most images for most classes. So the
measures are areas under curves, class by class, and what follows from a cut-off for each class.

numpy alone, as in `semisilo.common.measures.calibration`; the tests hold the numbers against scikit-learn's.

A row has 1 where the image shows the class, 0 where it does not and -1 where that is not known, which is left out.

Shapes: N images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadData
from semisilo.common.measures.calibration import area_under_curve
from semisilo.common.measures.class_counts import ClassCounts

__all__ = ["AVERAGE_CUT", "AreaParts", "ByClass", "ClassCounts", "area_parts", "average_precision",
           "average_precisions", "best_thresholds", "counts_at", "exact_match", "f1_of", "finding_areas",
           "pooled_area_parts", "pooled_average_precision", "precision_shares", "ranked_shares", "sigmoid",
           "together_counts"]

Floats = NDArray[np.floating]
AVERAGE_CUT = 0.5
"""Of a class's probability, where no cut-offs by class were chosen."""


@dataclass(frozen=True, slots=True)
class ByClass:
    """A measure of every class."""

    per_class: tuple[float | None, ...]
    """By label; None for a class that it cannot be measured of."""

    @property
    def macro(self) -> float | None:
        """Mean over the classes that have one; None where none has."""
        known = [value for value in self.per_class if value is not None]
        return math.fsum(known) / len(known) if known else None


def sigmoid(logits_NK: Floats) -> NDArray[np.float64]:
    """1 / (1 + exp(-f)), float64: the probability of every class by itself."""
    wide_NK = logits_NK.astype(np.float64)
    small_NK = np.exp(-np.abs(wide_NK))  # never overflows
    result: NDArray[np.float64] = np.where(wide_NK >= 0, 1.0, small_NK) / (1.0 + small_NK)
    return result


def finding_areas(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> ByClass:
    """Area under the receiver operating characteristic of each class: images that show it against those that do not.

    Source: Hanley and McNeil, Radiology 143 (1982). None for a class that no image or every image shows.
    """
    _check(scores_NK, rows_NK)
    return ByClass(tuple(area_under_curve(scores_n, is_class_n) for scores_n, is_class_n in _known(scores_NK, rows_NK)))


def average_precisions(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> ByClass:
    """`average_precision` of each class; None for one that no image shows."""
    _check(scores_NK, rows_NK)
    return ByClass(tuple(average_precision(scores_n, is_class_n)
                         for scores_n, is_class_n in _known(scores_NK, rows_NK)))


def average_precision(scores_N: Floats, is_class_N: NDArray[np.bool_]) -> float | None:
    """sum_n (R_n - R_{n-1}) P_n over the different scores from high to low, P and R precision and recall of answering
    "yes" from that score on; None without an image of the class. What guessing gives is the class's share.

    Source: as scikit-learn's `average_precision_score`; not interpolated, so that it is not optimistic.
    """
    inside = int(is_class_N.sum())
    if not inside:
        return None
    order_N = np.argsort(-scores_N, kind="stable")
    sorted_N, hits_N = scores_N[order_N], np.cumsum(is_class_N[order_N])
    last_N = np.append(np.flatnonzero(np.diff(sorted_N)), len(sorted_N) - 1)  # equal scores are answered together
    hits_G, answered_G = hits_N[last_N], last_N + 1
    gained_G = np.diff(hits_G, prepend=0)
    return math.fsum((gained_G * (hits_G / answered_G)).tolist()) / inside


def counts_at(scores_NK: Floats, rows_NK: NDArray[np.integer], thresholds_K: Floats) -> tuple[ClassCounts, ...]:
    """Of each class, where "yes" is a score of at least the class's threshold."""
    _check(scores_NK, rows_NK)
    yes_NK, is_NK, not_NK = scores_NK >= thresholds_K, rows_NK == 1, rows_NK == 0
    return tuple(ClassCounts(int((yes_NK & is_NK)[:, k].sum()), int((~yes_NK & is_NK)[:, k].sum()),
                             int((yes_NK & not_NK)[:, k].sum()), int((~yes_NK & not_NK)[:, k].sum()))
                 for k in range(rows_NK.shape[1]))


def exact_match(scores_NK: Floats, rows_NK: NDArray[np.integer], thresholds_K: Floats) -> float:
    """Share of the images of which every known class is answered rightly, of those of which any is known; 0 without
    such images."""
    _check(scores_NK, rows_NK)
    right_N = (((scores_NK >= thresholds_K) == (rows_NK == 1)) | (rows_NK < 0)).all(axis=1)
    known_N = (rows_NK >= 0).any(axis=1)
    return float(right_N[known_N].mean()) if known_N.any() else 0.0


def f1_of(counts: ClassCounts) -> float | None:
    """2 TP / (2 TP + FP + FN); None without an image of the class, of which there is nothing to be found."""
    if not counts.with_class:
        return None
    return 2 * counts.true_positives / (2 * counts.true_positives + counts.false_positives + counts.false_negatives)


def best_thresholds(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> tuple[float, ...]:
    """The cut-off of each class with the largest F1 on these images, of equal ones the highest; `AVERAGE_CUT` for a
    class that no image shows.

    The cut-off lies halfway to the next lower score, so that it does not hang on the last digit of one image.
    """
    _check(scores_NK, rows_NK)
    return tuple(_best_threshold(scores_n.astype(np.float64), is_class_n)
                 for scores_n, is_class_n in _known(scores_NK, rows_NK))


def _best_threshold(scores_N: NDArray[np.float64], is_class_N: NDArray[np.bool_]) -> float:
    inside = int(is_class_N.sum())
    if not inside:
        return AVERAGE_CUT
    order_N = np.argsort(-scores_N, kind="stable")
    sorted_N, hits_N = scores_N[order_N], np.cumsum(is_class_N[order_N])
    last_N = np.append(np.flatnonzero(np.diff(sorted_N)), len(sorted_N) - 1)
    f1_G = 2 * hits_N[last_N] / (last_N + 1 + inside)
    best = int(np.argmax(f1_G))  # the first, which has the highest score
    here = float(sorted_N[last_N[best]])
    below = float(sorted_N[last_N[best + 1]]) if best + 1 < len(last_N) else 0.0
    middle = (here + below) / 2
    return middle if below < middle <= here else here


@dataclass(frozen=True, slots=True)
class AreaParts:
    """The macro area under the curve, and what each image adds to its error."""

    macro: float
    influence_N: NDArray[np.float64]
    """How far each image moves the area, the sum of them 0: the squares add up to its variance. Of two models on the
    same images the differences give the error of the difference."""


def _placed_by_class(scores_NK: Floats, rows_NK: NDArray[np.integer]
                     ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_], Floats]]:
    """Of every class that has an area: the images of which it is known, which of them show it, and `_placements`."""
    for label in range(rows_NK.shape[1]):
        known_n = np.flatnonzero(rows_NK[:, label] >= 0)
        is_n = rows_NK[known_n, label] == 1
        if is_n.any() and not is_n.all():
            yield known_n, is_n, _placements(scores_NK[known_n, label], is_n)


def area_parts(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> AreaParts | None:
    """The mean of `finding_areas` with its parts image by image; None where no class has an area.

        psi_i = 1/C sum_k [ y_ik (V_ik - A_k) / n_k + (1 - y_ik) (V_ik - A_k) / m_k ]

    V_ik being the share of images of the other kind that image i is ranked rightly against, and n_k, m_k the images
    with and without class k of the C classes that have both.
    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), whose structural components these are; over several
        classes of the same images they add up image by image.
    """
    _check(scores_NK, rows_NK)
    influence_N, areas = np.zeros(len(rows_NK)), []
    for known_n, is_n, placed_n in _placed_by_class(scores_NK, rows_NK):
        areas.append(found := float(placed_n[is_n].mean()))
        influence_N[known_n] += (placed_n - found) / np.where(is_n, is_n.sum(), (~is_n).sum())
    if not areas:
        return None
    return AreaParts(math.fsum(areas) / len(areas), influence_N / len(areas))


def ranked_shares(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> tuple[float, NDArray[np.float64]] | None:
    """The macro area under the curve, and what each image adds to it, float (N,): `area_parts`, but that of each class
    the area is not taken off the images of the rarer kind, so that they add up to it. None where no class has an area.
    """
    _check(scores_NK, rows_NK)
    shares_N, areas = np.zeros(len(rows_NK)), []
    for known_n, is_n, placed_n in _placed_by_class(scores_NK, rows_NK):
        areas.append(found := float(placed_n[is_n].mean()))
        frequent_n = is_n == (2 * is_n.sum() > len(is_n))
        shares_N[known_n] += (placed_n - found * frequent_n) / np.where(is_n, is_n.sum(), (~is_n).sum())
    return (math.fsum(areas) / len(areas), shares_N / len(areas)) if areas else None


def precision_shares(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> tuple[float, NDArray[np.float64]] | None:
    """The macro average precision, and what each image adds to it, float (N,); None where no image shows any class.

        1/C sum_k 1/n_k [ y_j P_j + sum_{i: y_i = 1, s_i <= s_j} (y_j - P_i) / T_i ]

    P_i being the precision of answering "yes" from the score of image i on, T_i the images that are answered so, n_k
    those that show class k of the C that are shown. The second term is what the image moves the precisions of others
    by, and adds up to 0: it is the derivative by the image's weight.
    """
    _check(scores_NK, rows_NK)
    shares_N, found = np.zeros(len(rows_NK)), []
    for label in range(rows_NK.shape[1]):
        known_n = np.flatnonzero(rows_NK[:, label] >= 0)
        is_n, scores_n = rows_NK[known_n, label] == 1, scores_NK[known_n, label]
        inside = int(is_n.sum())
        if not inside:
            continue
        different_G, group_n = np.unique(-scores_n, return_inverse=True)  # from high to low
        hits_G = np.bincount(group_n, weights=is_n, minlength=len(different_G))
        answered_G = np.cumsum(np.bincount(group_n, minlength=len(different_G)))
        precision_G = np.cumsum(hits_G) / answered_G
        one_G = np.cumsum((hits_G / answered_G)[::-1])[::-1]  # over scores as low as this one and lower
        moved_G = np.cumsum((hits_G * precision_G / answered_G)[::-1])[::-1]
        found.append(math.fsum((hits_G * precision_G).tolist()) / inside)
        shares_N[known_n] += (is_n * (precision_G + one_G)[group_n] - moved_G[group_n]) / inside
    return (math.fsum(found) / len(found), shares_N / len(found)) if found else None


def pooled_area_parts(scores_NK: Floats, rows_NK: NDArray[np.integer]
                      ) -> tuple[float, NDArray[np.float64]] | None:
    """The micro area under the curve, of all pairs of an image and a class that is known of it in one order, and (N,)
    how far each image moves it, so that pairs of one image may hang on one another: the squares add up to its variance.
    None where all pairs are shown or none is.

    Source: Obuchowski, Biometrics 53 (1997) 567, for the variance with clusters.
    """
    _check(scores_NK, rows_NK)
    known_NK, images_P = rows_NK >= 0, np.nonzero(rows_NK >= 0)[0]
    is_P = rows_NK[known_NK] == 1
    inside = int(is_P.sum())
    if inside in (0, len(is_P)):
        return None
    placed_P = _placements(scores_NK[known_NK], is_P)
    area = float(placed_P[is_P].mean())
    parts_P = (placed_P - area) / np.where(is_P, inside, len(is_P) - inside)
    influence_N = np.zeros(len(rows_NK))
    np.add.at(influence_N, images_P, parts_P)
    return area, influence_N


def pooled_average_precision(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> float | None:
    """The micro average precision: of all pairs of an image and a class that is known of it; None if none is shown."""
    _check(scores_NK, rows_NK)
    known_NK = rows_NK >= 0
    return average_precision(scores_NK[known_NK], rows_NK[known_NK] == 1)


def together_counts(shown_NK: NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    """(K, K): images that show both classes; on the diagonal those that show the class."""
    wide_NK = shown_NK.astype(np.int64)
    return tuple(tuple(int(cell) for cell in row) for row in wide_NK.T @ wide_NK)


def _placements(scores_N: Floats, is_class_N: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of each image the share of the images of the other kind that it is ranked rightly against; ties count half."""
    placed_N = np.empty(len(scores_N))
    for kind_N, sign in ((is_class_N, 1.0), (~is_class_N, -1.0)):
        own_n, others_M = sign * scores_N[kind_N], np.sort(sign * scores_N[~kind_N])
        below_n = np.searchsorted(others_M, own_n, side="left")
        placed_N[kind_N] = (below_n + np.searchsorted(others_M, own_n, side="right")) / (2 * len(others_M))
    return placed_N


def _known(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
    """Of each class the scores of the images of which it is known, and whether they show it."""
    for label in range(rows_NK.shape[1]):
        known_N = rows_NK[:, label] >= 0
        yield scores_NK[known_N, label], rows_NK[known_N, label] == 1


def _check(scores_NK: Floats, rows_NK: NDArray[np.integer]) -> None:
    if scores_NK.ndim != 2 or rows_NK.shape != scores_NK.shape:
        raise ValueError(f"{scores_NK.shape} scores and {rows_NK.shape} labels do not belong together.")
    if len(rows_NK) == 0:
        raise BadData("Measuring needs labelled images; the set has none.")
