"""Which updates harm more than the others do.

Shapes: N updates, V views.
Tests: tests/common/learning/robust/test_outliers.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NORMAL_MAD", "not_worse_than_others"]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def not_worse_than_others(harm_NV: Tensor, *, deviations: float, least: float) -> Tensor:
    """Whether an update stays, in every view, within so many deviations of the median update's harm; bool (N,).

        harm_kv <= median_v + max(deviations * 1.4826 * MAD_v, least)

    An infinite harm never stays. As long as fewer than half of the updates lie, median and MAD (median absolute
    deviation) are bounded by honest ones.
    Args:
        harm_NV: what each update does to the coordinator's loss, by view; float64; infinite where a model is broken.
        deviations: above 0.
        least: harm above the median that is never left out: differences that small say nothing.
    Source: the rule of Hampel, "The influence curve and its role in robust estimation", JASA 1974, on one side.
    """
    middle_V = harm_NV.median(dim=0).values
    away_NV = torch.where(torch.isfinite(middle_V), harm_NV - middle_V, torch.zeros_like(harm_NV))
    spread_V = NORMAL_MAD * away_NV.abs().median(dim=0).values
    return (torch.isfinite(harm_NV) & (away_NV <= (deviations * spread_V).clamp_min(least))).all(dim=1)
