"""Whether colour alone tells the classes of labelled images apart: then strong views do not change it.

Stained cells are told by their dye. A view that inverts or equalises the colours takes from such an image what its
class depends on, and the network learns to ignore it (docs/decisions/0057-views-that-keep-colours.md).

Shapes: N labelled images, C channels, K classes, F = 2 C features.

Tests: tests/coordinator/studies/test_colour_views.py.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.image_set import ImageSet

__all__ = ["COLOUR_OPERATIONS", "left_out_views", "told_apart"]

COLOUR_OPERATIONS = ("AutoContrast", "Color", "Equalize", "Invert", "Posterize", "Solarize")
"""Operations of RandAugment that change an image's colours beyond its brightness and contrast."""
_TOLD_APART = 1 / 3
"""Share of the way from chance to always right. Blood cells: 0.42 to 0.58 with 2 to 25 labels a class; CIFAR-10,
Fashion-MNIST and the digits: at most 0.18."""
_SURE = 2.0
"""Standard errors by which chance must be exceeded."""
_MOST_OF_A_CLASS = 100
"""Images of a class that are looked at."""
_LEAST_SPREAD = 1.0
"""Grey levels of 255: channels that differ by less in all images are one."""
_FLOOR = 1e-3
"""Least standard deviation of a feature, on the scale 0 to 1."""


def left_out_views(labelled: ImageSet | None, *, num_classes: int) -> tuple[tuple[str, ...], str]:
    """The operations that the strong views of a study leave out because of its labelled images, and why, for a person;
    ((), "") where none is left out: also without labelled images, for grey images, and with several labels an image.
    """
    if labelled is None or labelled.labels_N is None or labelled.labels_N.ndim != 1 \
            or labelled.images_NCHW.shape[1] != 3:
        return (), ""
    labels_N = labelled.labels_N.numpy()
    index_n = np.concatenate([np.flatnonzero(labels_N == label)[:_MOST_OF_A_CLASS] for label in range(num_classes)])
    features_nF, coloured = _features(labelled, index_n)
    if not coloured:
        return (), ""
    right, chance, error = told_apart(features_nF, labels_N[index_n])
    if right <= chance + max(_TOLD_APART * (1 - chance), _SURE * error):
        return (), ""
    return COLOUR_OPERATIONS, (f"mean and spread of its colours alone give {100 * right:.0f} % of the labelled images"
                               f" the right class, where guessing gives {100 * chance:.0f} %")


def told_apart(features_nF: NDArray[np.floating], labels_n: NDArray[np.integer]) -> tuple[float, float, float]:
    """Balanced accuracy of the nearest class mean, each image left out of its own class's mean; that of guessing,
    1 / K; and the standard error of guessing, sqrt(sum_k (1/K)(1 - 1/K) / n_k) / K.

    Features are measured in pooled standard deviations within classes. K is the number of classes with two images or
    more; others do not count. (0, 1, 0) with fewer than two such classes.
    Source: nearest centroids with pooled variances, Tibshirani et al., PNAS 99 (2002), Eq. 1 without shrinkage; the
        leave-one-out estimate of Lachenbruch and Mickey, Technometrics 10 (1968).
    """
    present, count_K = np.unique(labels_n, return_counts=True)
    present, count_K = present[count_K > 1], count_K[count_K > 1]
    classes = len(count_K)
    if classes < 2:
        return 0.0, 1.0, 0.0
    kept_n = np.isin(labels_n, present)
    features_nF, label_n = features_nF[kept_n], np.searchsorted(present, labels_n[kept_n])
    sum_KF = np.zeros((classes, features_nF.shape[1]))
    np.add.at(sum_KF, label_n, features_nF)
    mean_KF = sum_KF / count_K[:, None]
    within_nF = features_nF - mean_KF[label_n]
    spread_F = np.maximum(np.sqrt((within_nF ** 2).sum(axis=0) / max(1, len(label_n) - classes)), _FLOOR)
    distance_nK = (((features_nF[:, None, :] - mean_KF[None]) / spread_F) ** 2).sum(axis=2)
    # Without the image itself its class mean is further from it by n / (n - 1).
    own = np.arange(len(label_n)), label_n
    distance_nK[own] *= (count_K[label_n] / (count_K[label_n] - 1)) ** 2
    right_n = distance_nK.argmin(axis=1) == label_n
    right_K = np.bincount(label_n, weights=right_n) / count_K
    chance = 1 / classes
    return (float(right_K.mean()), chance,
            math.sqrt(float((chance * (1 - chance) / count_K).sum())) / classes)


def _features(images: ImageSet, index_n: NDArray[np.integer]) -> tuple[NDArray[np.floating], bool]:
    """Mean and standard deviation of each channel, (n, F) on the scale 0 to 1; and whether the channels differ, so that
    there are colours."""
    rows, coloured = [], False
    for index in index_n.tolist():
        image_CHW = images.images_NCHW[index].numpy().astype(np.float64)
        rows.append(np.concatenate([image_CHW.mean(axis=(1, 2)), image_CHW.std(axis=(1, 2))]) / 255)
        coloured = coloured or float((image_CHW.max(axis=0) - image_CHW.min(axis=0)).mean()) > _LEAST_SPREAD
    return np.array(rows).reshape(len(rows), 2 * images.images_NCHW.shape[1]), coloured
