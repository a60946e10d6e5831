"""The splits of Fed-SHVR (Wang et al. 2021): uneven unlabelled images, and classes that a silo has no labels of.

The paper's text and its published numbers of local steps contradict each other (fedshvr.md section 10.3), so there are
two forms of each: "literal", and "range_matched", whose numbers of images give the published steps.

Shapes: N images, K silos, C classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning.seeds import numpy_generator
from semisilo.simulation.splits.class_pools import hand_out, shuffled_classes, spread_evenly
from semisilo.simulation.splits.splits import Indices, Split, checked_labels, largest_remainder, unlabelled_pool

__all__ = ["Sizes", "class_mismatch", "fit_to_margins", "labelled_classes", "shvr_noniid"]

Sizes = Literal["literal", "range_matched"]
_Floats = NDArray[np.float64]

_MNIST_RANGE = (4320.0, 8000.0)
_CIFAR_RANGE = (640.0, 1440.0)  # 16 x the published steps 40 to 90: 2 epochs in batches of 32
_CIFAR_SHARE = 46_000 / 40  # unlabelled images per silo of the published setting
_CIFAR_LITERAL = 20_000 / 46_000


def labelled_classes(num_silos: int, *, classes_per_silo: int, num_classes: int) -> tuple[tuple[int, ...], ...]:
    """The classes that each silo of `shvr_noniid` has labels of: with two, silo k has 2k and 2k + 1, modulo C.

    Raises: BadConfiguration when classes_per_silo is not in 1..C.
    Source: data.md section 3.6.
    """
    _check_classes(classes_per_silo, num_classes)
    return tuple(tuple((classes_per_silo * silo + offset) % num_classes for offset in range(classes_per_silo))
                 for silo in range(num_silos))


def shvr_noniid(labels_N: ArrayLike, num_silos: int, *, num_classes: int, seed: int, dirichlet: float = 0.1,
                sizes: Sizes = "range_matched", labelled: ArrayLike = ()) -> Split:
    """All unlabelled images, unevenly.

    literal: class by class in proportions q ~ Dir(dirichlet) over the silos; some silo may get next to nothing.
    range_matched: numbers of images M_k uniform in 4320..8000, rescaled to all images; class shares of a silo ~
    Dir(dirichlet), fitted to the silos' and the classes' numbers (`fit_to_margins`), then rounded class by class.
    Args:
        labelled: indices that no silo gets.
    Raises: BadConfiguration when dirichlet is not positive, or there are fewer images than silos.
    Source: data.md section 3.6 (Fed-SHVR, MNIST).
    """
    labels = checked_labels(labels_N, num_classes)
    held, pool = unlabelled_pool(len(labels), labelled, num_silos)
    _check_concentration(dirichlet)
    if len(pool) < num_silos:
        raise BadConfiguration(f"{len(pool)} unlabelled images cannot be dealt to {num_silos} silos.",
                               remedy="Choose fewer silos.")
    generator = numpy_generator(seed, "split shvr_noniid")
    by_class = shuffled_classes(labels, pool, num_classes, generator)
    size_C = np.array([len(members) for members in by_class])
    if sizes == "literal":
        share_KC = generator.dirichlet(np.full(num_silos, dirichlet), size=num_classes).T
    else:
        drawn_K = generator.uniform(*_MNIST_RANGE, size=num_silos)
        mix_KC = generator.dirichlet(np.full(num_classes, dirichlet), size=num_silos)
        share_KC, _ = fit_to_margins(mix_KC, rows_K=drawn_K * (len(pool) / drawn_K.sum()), columns_C=size_C)
    wanted_KC = np.stack([largest_remainder(share_K, int(size)) if size else np.zeros(num_silos, dtype=np.int64)
                          for share_K, size in zip(share_KC.T, size_C, strict=True)], axis=1)
    return Split(hand_out(by_class, wanted_KC), held)


def fit_to_margins(start_KC: ArrayLike, *, rows_K: ArrayLike, columns_C: ArrayLike, max_sweeps: int = 1000,
                   tolerance: float = 1e-6) -> tuple[_Floats, int]:
    """Iterative proportional fitting: scales rows and columns in turn until both add up as wanted.

    Args:
        start_KC: not negative; 1e-6 is added, so that no cell is closed.
        rows_K, columns_C: not negative, with equal sums.
        tolerance: largest error of a row's sum, in images; the columns are exact after every sweep.
    Returns: the fitted matrix (K, C) and the number of sweeps.
    Source: data.md section 3.6; Deming and Stephan 1940.
    """
    fitted_KC = np.asarray(start_KC, dtype=np.float64) + 1e-6
    rows, columns = np.asarray(rows_K, dtype=np.float64), np.asarray(columns_C, dtype=np.float64)
    sweeps = 0
    error = np.inf
    while sweeps < max_sweeps and not error < tolerance:
        sweeps += 1
        fitted_KC = fitted_KC * (rows / fitted_KC.sum(1))[:, None]
        sums = fitted_KC.sum(0)
        fitted_KC = fitted_KC * np.divide(columns, sums, out=np.zeros_like(columns), where=sums > 0)
        error = float(np.abs(fitted_KC.sum(1) - rows).max())
    return fitted_KC, sweeps


def class_mismatch(labels_N: ArrayLike, num_silos: int, *, mismatch_ratio: float, num_classes: int, seed: int,
                   classes_per_silo: int = 6, labelled_per_silo: int = 100, dirichlet: float = 0.025,
                   sizes: Sizes = "range_matched") -> Split:
    """Labels of `classes_per_silo` random classes; a share `mismatch_ratio` of the unlabelled images is of others.

    A silo's M_k unlabelled images: round(mismatch_ratio * M_k) of the classes it has no labels of, the rest of those
    it has, evenly within each group, without replacement from what the silos before have left. An exhausted class is
    replaced by others of the same group; when these are exhausted too, the silo gets fewer.
    literal: M_k in proportions Dir(dirichlet), in all 20,000 of the 46,000 images that are not labelled (many silos
    get none). range_matched: M_k uniform in 640..1440. Both in proportion where there are more or fewer images a silo.
    Raises: BadConfiguration for numbers that do not fit each other; BadData when a class has too few images to label.
    Source: data.md section 3.7 (Fed-SHVR, CIFAR-10).
    """
    labels = checked_labels(labels_N, num_classes)
    _, everything = unlabelled_pool(len(labels), (), num_silos)
    _check_classes(classes_per_silo, num_classes)
    _check_concentration(dirichlet)
    if not 0 <= mismatch_ratio <= 1:
        raise BadConfiguration(f"mismatch_ratio = {mismatch_ratio}: must be between 0 and 1.")
    if classes_per_silo == num_classes and mismatch_ratio > 0:
        raise BadConfiguration(f"With labels of all {num_classes} classes at each silo no image is of another class.",
                               remedy="Choose a smaller classes_per_silo, or mismatch_ratio = 0.")
    generator = numpy_generator(seed, "split class_mismatch")
    by_class = shuffled_classes(labels, everything, num_classes, generator)
    has_KC = np.zeros((num_silos, num_classes), dtype=bool)
    for has_C in has_KC:
        has_C[generator.permutation(num_classes)[:classes_per_silo]] = True
    labelled_KC = np.stack([largest_remainder(has_C, labelled_per_silo) for has_C in has_KC])
    left_C = np.array([len(members) for members in by_class]) - labelled_KC.sum(0)
    if (left_C < 0).any():
        label = int(np.flatnonzero(left_C < 0)[0])
        raise BadData(f"Class {label} has {len(by_class[label])} images, fewer than the {labelled_KC[:, label].sum()}"
                      " to be labelled.", remedy="Choose a smaller labelled_per_silo or fewer silos.")
    unlabelled_KC = []
    for size, has_C in zip(_mismatch_sizes(int(left_C.sum()), num_silos, sizes, dirichlet, generator), has_KC,
                           strict=True):
        strange = round(mismatch_ratio * int(size))
        given_C = spread_evenly(strange, left_C * ~has_C) + spread_evenly(int(size) - strange, left_C * has_C)
        left_C = left_C - given_C
        unlabelled_KC.append(given_C)
    dealt = hand_out(by_class, np.concatenate([labelled_KC, np.stack(unlabelled_KC)]))
    return Split(dealt[num_silos:], labelled=dealt[:num_silos])


def _mismatch_sizes(images: int, num_silos: int, sizes: Sizes, dirichlet: float,
                    generator: np.random.Generator) -> Indices:
    """M_k: how many unlabelled images each silo wants, of all `images` that are not labelled."""
    if sizes == "literal":
        return largest_remainder(generator.dirichlet(np.full(num_silos, dirichlet)), round(_CIFAR_LITERAL * images))
    scale = images / num_silos / _CIFAR_SHARE
    return np.rint(scale * generator.uniform(*_CIFAR_RANGE, size=num_silos)).astype(np.int64)


def _check_classes(classes_per_silo: int, num_classes: int) -> None:
    if not 1 <= classes_per_silo <= num_classes:
        raise BadConfiguration(f"classes_per_silo = {classes_per_silo}: must be between 1 and {num_classes}.")


def _check_concentration(dirichlet: float) -> None:
    if not 0 < dirichlet < float("inf"):
        raise BadConfiguration(f"dirichlet = {dirichlet}: must be above 0.")
