"""Dealing images class by class: each class is shuffled once and handed out from the front, silo after silo.

Shapes: N images, K silos, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from semisilo.simulation.splits.splits import Indices, largest_remainder

__all__ = ["hand_out", "shuffled_classes", "spread_evenly"]


def shuffled_classes(labels_N: Indices, pool: Indices, num_classes: int,
                     generator: np.random.Generator) -> tuple[Indices, ...]:
    """The images of the pool class by class, each class in random order."""
    own = labels_N[pool]
    return tuple(generator.permutation(pool[own == label]) for label in range(num_classes))


def hand_out(by_class: Sequence[Indices], wanted_KC: ArrayLike) -> tuple[Indices, ...]:
    """What each silo gets when one after another takes `wanted_KC` images of each class, fewer once it is exhausted.

    Returns: K sorted int64 arrays, disjoint.
    """
    size_C = np.array([len(members) for members in by_class])
    reached_KC = np.minimum(np.cumsum(np.asarray(wanted_KC, dtype=np.int64), axis=0), size_C)
    pieces = [np.split(members, reached_KC[:, label]) for label, members in enumerate(by_class)]
    return tuple(np.sort(np.concatenate([pieces[label][silo] for label in range(len(by_class))]))
                 for silo in range(len(reached_KC)))


def spread_evenly(total: int, left_C: Indices) -> Indices:
    """How many images of each class make `total`, evenly; what a class cannot give, the others do; then fewer.

    Args:
        left_C: how many images each class has.
    Returns: int64 (C,), at most left_C.
    """
    given_C = np.zeros_like(left_C)
    while total > int(given_C.sum()) and (given_C < left_C).any():
        share_C = largest_remainder(given_C < left_C, total - int(given_C.sum()))
        given_C = np.minimum(given_C + share_C, left_C)
    return given_C
