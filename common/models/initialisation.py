"""How the weights of FedMatch's networks start: TensorFlow's variance scaling.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

import math

from torch import nn

__all__ = ["variance_scaling"]

_STD_OF_TRUNCATED = 0.87962566103423978
"""Standard deviation of a standard normal that is cut at 2: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))."""


def variance_scaling(model: nn.Module) -> None:
    """Convolutions and linear layers in place: truncated normal of variance 1 / fan-in, cut at 2 sigma; biases 0.

    The sigma before cutting is sqrt(1 / fan_in) / 0.8796..., so that the variance after it is 1 / fan_in.
    Source: models.md; VarianceScaling(scale=1, mode="fan_in", distribution="truncated_normal").
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fan_in = module.weight[0].numel()
            sigma = math.sqrt(1.0 / fan_in) / _STD_OF_TRUNCATED
            nn.init.trunc_normal_(module.weight, std=sigma, a=-2 * sigma, b=2 * sigma)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
