"""FLTrust: updates count as far as they point where the coordinator's own step points, all with the length of that.

Shapes: N updates.
Tests: tests/common/learning/robust/test_trust.py.
Source: Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021,
Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["trust_weights"]

_SHORTEST = 1e-30
"""Of the coordinator's own step: what is shorter counts nothing. It would be stretched by more than a float32 can hold,
and has no direction left to follow."""


def trust_weights(own_products_N: Sequence[float], norms_N: Sequence[float], own_norm: float) -> list[float]:
    """What each update is multiplied by; all 0 where none points the coordinator's way. An update without length, or
    nearly so, counts 0.

        TS_k = ReLU(cos(d_k, d_0))        weight_k = TS_k / sum_j TS_j * ||d_0|| / ||d_k||

    Args:
        own_products_N: <d_k, d_0>, d_0 the coordinator's own step.
        norms_N: ||d_k||.
        own_norm: ||d_0||.
    """
    if own_norm == 0:
        return [0.0] * len(norms_N)
    trust_N = [max(0.0, product / (norm * own_norm)) if norm > own_norm * _SHORTEST else 0.0
               for product, norm in zip(own_products_N, norms_N, strict=True)]
    total = math.fsum(trust_N)
    if total == 0:
        return [0.0] * len(norms_N)
    return [trust / total * own_norm / norm if trust else 0.0 for trust, norm in zip(trust_N, norms_N, strict=True)]
