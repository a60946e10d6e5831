"""Bounds on how long an update may be.

Shapes: N updates.
Tests: tests/common/learning/robust/test_norms.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["clip_factors", "norm_limit"]

_LEAST = 3
"""Norms that a median can be taken of: of two, one may lie as well as the other."""


def norm_limit(norms_N: Sequence[float], *, factor: float, own: float | None = None) -> float | None:
    """factor * median of the norms: the length that no update may exceed; None where it cannot be said.

    The median stays that of an honest silo as long as fewer than half of the norms lie. It is the lower one of an even
    number, and exact 0s do not count, so that silos which send nothing do not forbid the others to send something.
    Args:
        norms_N: Euclidean norms, at least 0; infinite ones count as such.
        factor: above 0.
        own: norm of the coordinator's own step from the same model, which is one more of them.
    Returns: None with fewer than three norms above 0.
    Source: Sun et al., "Can you really backdoor federated learning?", 2019, with the median for the threshold, as
        FLAME (Nguyen et al., USENIX Security 2022) takes it.
    """
    counted = [norm for norm in (*norms_N, *(() if own is None else (own,))) if norm > 0]
    if len(counted) < _LEAST:
        return None
    limit = factor * statistics.median_low(counted)
    return limit if math.isfinite(limit) else None


def clip_factors(norms_N: Sequence[float], limit: float | None) -> list[float]:
    """min(1, limit / norm): what each update is multiplied by; exactly 1 where nothing is cut."""
    return [1.0 if limit is None or norm <= limit else limit / norm for norm in norms_N]
