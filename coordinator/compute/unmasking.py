"""The operations of a coordinator with real silos: masks are taken off sums. Needs cryptography; a simulation has none.

Tests: tests/test_secure_aggregation.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.coordinator.compute.operations import Operations

__all__ = ["UnmaskingOperations"]


class UnmaskingOperations(Operations):
    """See `Operations`."""

    def _add_masks(self, words: np.ndarray, seeds: Sequence[MaskSeed]) -> None:
        add_masks(words, seeds)
