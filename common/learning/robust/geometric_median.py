"""The geometric median by the smoothed Weiszfeld algorithm, in terms of inner products.

Every iterate is a weighted mean of the updates, so its distance to each of them follows from their inner products, and
the updates themselves are read once for these and once for the mean.

Shapes: N updates.
Tests: tests/common/learning/robust/test_geometric_median.py.
Source: Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning" (RFA), IEEE TSP 2022, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["geometric_median_weights"]

_ITERATIONS = 100
_TOLERANCE = 1e-10
_SMOOTHING = 1e-6


def geometric_median_weights(products_NN: Tensor, weights_N: Sequence[float]) -> list[float]:
    """Weights, sum 1, of the mean of the updates that is near their geometric median: argmin_z sum_k p_k ||z - d_k||.

        beta_k = p_k / max(nu, ||z - d_k||)        z = sum_k beta_k d_k / sum_k beta_k

    from z = sum p_k d_k until no weight changes by more than 1e-10, 100 times at most; nu = 1e-6 times the median norm.
    Args:
        products_NN: float64, `inner_products`.
        weights_N: p_k, sum 1, at least 0.
    """
    start_N = torch.tensor(weights_N, dtype=torch.float64)
    smallest = _SMOOTHING * float(products_NN.diagonal().sqrt().median()) or 1e-30
    now_N = start_N
    for _ in range(_ITERATIONS):
        along_N = products_NN @ now_N
        squared_N = products_NN.diagonal() - 2 * along_N + now_N @ along_N
        beta_N = start_N / squared_N.clamp_min(0).sqrt().clamp_min(smallest)
        next_N = beta_N / beta_N.sum()
        settled = float((next_N - now_N).abs().max()) <= _TOLERANCE
        now_N = next_N
        if settled:
            break
    return [float(weight) for weight in now_N]
