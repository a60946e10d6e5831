"""A weighted mean of named tensors whose weights become known one by one, in constant memory.

FedMatch's reliability weights, p_k = score_k / sum of scores, are fixed only when the last silo has been scored. So the
sum of score_k * x_k is kept beside the sum of the scores; as long as all scores are 0 it is the sum of x_k, which gives
the uniform mean that then applies.

Source: FedMatch, Jeong et al. (arXiv 2006.12097 v1) Eq. 4 as the specification corrects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from semisilo.common.learning import tensors

__all__ = ["WeightedMean"]


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """What has been added so far. Equal additions in equal order give equal bits."""

    total: dict[str, Tensor] | None
    """sum weight_k * x_k, or sum x_k while all weights are 0; None before the first."""
    weight: float
    """sum weight_k."""
    count: int

    def plus(self, x: Mapping[str, Tensor], weight: float) -> WeightedMean:
        """With one more.

        Args:
            weight: at least 0, finite.
        Raises: LayoutMismatch.
        """
        if weight > 0 and self.weight == 0:  # from here on, what had weight 0 counts nothing
            return WeightedMean(tensors.scale(x, weight), weight, self.count + 1)
        if weight == 0 and self.weight > 0:
            return WeightedMean(self.total, self.weight, self.count + 1)
        start = tensors.zeros_like(x) if self.total is None else self.total
        return WeightedMean(tensors.add(start, x, factor=weight or 1.0), self.weight + weight, self.count + 1)

    def mean(self) -> dict[str, Tensor] | None:
        """sum p_k x_k with p_k = weight_k / sum of weights, 1 / count when all are 0; None of nothing."""
        return None if self.total is None else tensors.scale(self.total, 1.0 / (self.weight or self.count))
