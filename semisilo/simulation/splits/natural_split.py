"""Silos that have what was collected at their site: nothing is dealt but who holds labels.

Shapes: N images, K silos, C classes.

Tests: tests/semisilo/simulation/splits/test_natural_split.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning.seeds import numpy_generator
from semisilo.simulation.splits.splits import Indices, Split, checked_labels

__all__ = ["labelled_at_sites", "natural"]


def natural(sites_N: ArrayLike, num_silos: int, *, labelled: ArrayLike = ()) -> Split:
    """Silo k has the images of site k.

    Args:
        sites_N: whose each image is, from 0; -1 for those of no site.
        labelled: indices at the coordinator or, with labels, at silos; they are nobody's unlabelled images.
    Raises: BadConfiguration when a site has none left.
    Source: the natural partitions of LEAF (Caldas et al. 2018) and FLamby (Ogier du Terrail et al., NeurIPS 2022).
    """
    sites = np.asarray(sites_N)
    held = np.asarray(labelled, dtype=np.int64)
    silos = tuple(np.setdiff1d(np.flatnonzero(sites == silo), held) for silo in range(num_silos))
    if empty := [silo for silo, part in enumerate(silos) if not len(part) and not (sites[held] == silo).any()]:
        raise BadConfiguration(f"Site {empty[0] + 1} of {num_silos} has no image left.",
                               remedy="Remove it, or hold out fewer images.")
    return Split(silos, np.sort(held))


def labelled_at_sites(labels_N: ArrayLike, sites_N: ArrayLike, num_silos: int, *, per_class: int, num_classes: int,
                      seed: int, classes: Sequence[Collection[int]], without: ArrayLike = ()) -> tuple[Indices, ...]:
    """Which images are labelled at which site: `per_class` random ones of each class that it is to have labels of, all
    of a class of which it has no more.

    Args:
        sites_N: as of `natural`.
        classes: K collections, the classes that each silo has labels of.
        without: indices that no silo gets.
    Returns: K sorted int64 arrays, disjoint.
    Raises: BadConfiguration when `per_class` is not positive; BadData when a site has no image of any of these classes.
    """
    labels, sites = checked_labels(labels_N, num_classes), np.asarray(sites_N)
    if per_class < 1:
        raise BadConfiguration(f"labelled_per_class = {per_class}: must be at least 1.")
    generator = numpy_generator(seed, "split labelled at silos")
    parts: list[Indices] = []
    for silo in range(num_silos):
        own = np.setdiff1d(np.flatnonzero(sites == silo), without)
        pieces = [generator.permutation(own[labels[own] == label])[:per_class] for label in sorted(classes[silo])]
        part: Indices = np.sort(np.concatenate((np.empty(0, dtype=np.int64), *pieces)))
        if len(classes[silo]) and not len(part):
            raise BadData(f"Site {silo + 1} of {num_silos} has no image of the classes that it is to have labels of.",
                          remedy="Remove it, or change labelled_silos or labelled_classes.")
        parts.append(part)
    return tuple(parts)
