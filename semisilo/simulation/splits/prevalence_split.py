"""Silos of equal size whose class shares differ: what a rare finding's prevalence does from hospital to hospital.

Shapes: N images, K silos, C classes.

Tests: tests/semisilo/simulation/splits/test_imbalanced_splits.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning.seeds import numpy_generator
from semisilo.simulation.splits.class_pools import hand_out, shuffled_classes
from semisilo.simulation.splits.splits import Split, checked_labels, largest_remainder, unlabelled_pool

__all__ = ["prevalence_shift"]


def prevalence_shift(labels_N: ArrayLike, num_silos: int, *, num_classes: int, seed: int, dirichlet: float = 1.0,
                     prevalences: Sequence[Sequence[float]] | None = None, labelled: ArrayLike = ()) -> Split:
    """Every silo gets m images with class shares q_k of its own, whole numbers by largest remainders.

        q_k ~ Dir(dirichlet C pi), pi the class shares of the unlabelled images, or as given
        m = floor(min over classes of images_c / sum_k q_kc), less what rounding would take beyond a class's end

    Shares are kept exactly and silos are of one size; so images of classes that are wanted less are unused.
    Args:
        dirichlet: above 0; small is uneven. With C equal classes it is the concentration of every class.
        prevalences: q_k for every silo, rows of C shares that sum to 1.
        labelled: indices that no silo gets.
    Raises: BadConfiguration for rows of another length, and when silos would have no images.
    Source: label shift of Lipton et al., ICML 2018, section 4 (Dirichlet shift), dealt to silos; ours.
    """
    labels = checked_labels(labels_N, num_classes)
    coordinator, pool = unlabelled_pool(len(labels), labelled, num_silos)
    generator = numpy_generator(seed, "split prevalence_shift")
    size_C = np.bincount(labels[pool], minlength=num_classes)
    shares_KC = _shares(size_C, num_silos, dirichlet, prevalences, generator)
    wanted_C = shares_KC.sum(axis=0)
    each = int(np.floor((size_C[wanted_C > 0] / wanted_C[wanted_C > 0]).min()))
    while each > 0 and (_counts(shares_KC, each).sum(axis=0) > size_C).any():
        each -= 1
    if each < 1:
        raise BadConfiguration(f"{len(pool)} unlabelled images cannot give {num_silos} silos these class shares.",
                               remedy="Choose fewer silos, a larger dirichlet, or smaller shares of rare classes.")
    by_class = shuffled_classes(labels, pool, num_classes, generator)
    return Split(hand_out(by_class, _counts(shares_KC, each)), coordinator)


def _shares(size_C: NDArray[np.int64], num_silos: int, dirichlet: float, prevalences: Sequence[Sequence[float]] | None,
            generator: np.random.Generator) -> NDArray[np.float64]:
    classes = len(size_C)
    if prevalences is None:
        if size_C.min() < 1:
            raise BadConfiguration(f"Class {int(size_C.argmin())} has no unlabelled images to share.",
                                   remedy="Choose fewer labelled images.")
        drawn_KC: NDArray[np.float64] = generator.dirichlet(dirichlet * classes * size_C / size_C.sum(), size=num_silos)
        return drawn_KC
    if any(len(row) != classes for row in prevalences):
        raise BadConfiguration(f"prevalences: every row needs a share for each of {classes} classes.")
    given_KC = np.asarray(prevalences, dtype=np.float64)
    scaled_KC: NDArray[np.float64] = given_KC / given_KC.sum(axis=1, keepdims=True)
    return scaled_KC


def _counts(shares_KC: NDArray[np.float64], each: int) -> NDArray[np.int64]:
    return np.stack([largest_remainder(row, each) for row in shares_KC])
