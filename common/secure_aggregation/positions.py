"""Which elements of an update are sent, where a secure sum takes a random share of them: the same at every silo.

Tests: tests/common/secure_aggregation/test_positions.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.secure_aggregation.mask_form import share_count

__all__ = ["chosen_positions"]


def chosen_positions(*, seed: int, round: int, phase: str, share: float, elements: int) -> NDArray[np.int64] | None:
    """Positions among all elements of an update, ascending; None for all of them.

    Public: they follow from the study's seed, round and phase, and from no silo. Every round has others, so that over
    1 / share rounds nearly all elements have their turn.
    Args:
        share: above 0, at most 1.
    """
    if share >= 1:
        return None
    generator = numpy_generator(seed, f"random-k\n{phase}", round=round)
    return np.sort(generator.choice(elements, size=share_count(share, elements), replace=False, shuffle=False))
