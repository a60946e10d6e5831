"""How far a federation is from standing still: the gap that Fed-SHVR's convergence theorem bounds.

Tests: tests/semisilo/diagnostics/test_diagnostics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from semisilo.common.errors import BadData
from semisilo.common.learning import tensors
from semisilo.diagnostics.problem import ObjectiveValue, Problem, gradient_of

__all__ = ["StationarityGap", "stationarity_gap"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StationarityGap:
    """g_t and its two parts."""

    gap: float
    """gradient + labels; 0 where neither the model nor the soft labels move."""
    gradient: float
    """||grad_w F(w_t, v_{t+1})||^2."""
    labels: float
    """sum_k p_k ||v_{k,t+1} - v_{k,t}||^2."""
    objective: ObjectiveValue
    """F(w_t, v_{t+1})."""


def stationarity_gap(problem: Problem, w: Mapping[str, Tensor], v: Mapping[str, Tensor],
                     v_before: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None
                     ) -> StationarityGap:
    """g_t = ||grad_w F(w_t, v_{t+1})||^2 + sum_k p_k ||v_{k,t+1} - v_{k,t}||^2, both sums over all elements.

    Args:
        w: w_t.
        v: v_{t+1}, by silo: the soft labels that w_t gives (`labels_of`).
        v_before: v_t, those of the round before.
        statistics: of batch-norm; None measures them with w.
    Raises: BadData when soft labels are missing or of other shapes.
    Source: Fed-SHVR Eq. 21; the theorem's step size is lr = sqrt(K / (T tau_bar)).
    """
    moved = 0.0
    for silo, share in problem.shares().items():
        if silo not in v:
            continue
        if silo not in v_before or v_before[silo].shape != v[silo].shape:
            raise BadData(f"The soft labels of silo '{silo}' are not of the same images in both rounds.")
        moved += share * float((v[silo].double() - v_before[silo].double()).square().sum())
    gradient, value = gradient_of(problem, w, v, statistics)
    slope = tensors.norm(gradient) ** 2
    return StationarityGap(gap=slope + moved, gradient=slope, labels=moved, objective=value)
