"""The operations of a real silo: updates are masked where a study wants it. Needs cryptography; simulations have none.

Tests: tests/test_secure_aggregation.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.silo.compute.operations import Operations

__all__ = ["MaskingOperations"]


class MaskingOperations(Operations):
    """See `Operations`."""

    def _add_masks(self, words: np.ndarray, seeds: Sequence[MaskSeed]) -> None:
        add_masks(words, seeds)
