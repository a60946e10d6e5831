"""Networks with one wide layer, which train in no time: their updates take several chunks on their way."""

from __future__ import annotations

import torch
from torch import nn


class WideNetwork(nn.Module):
    """One wide hidden layer."""

    def __init__(self, num_classes: int, inputs: int, width: int = 16_000) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.out = nn.Linear(width, num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK: torch.Tensor = self.out(torch.relu(self.hidden(images_BCHW.flatten(1))))
        return logits_BK


def wide(*, num_classes: int, channels: int, size: int) -> nn.Module:
    """1.2 million weights: 4.8 MB."""
    return WideNetwork(num_classes, channels * size * size)


def wide_40_megabytes(*, num_classes: int, channels: int, size: int) -> nn.Module:
    """10 million weights."""
    return WideNetwork(num_classes, channels * size * size, width=135_000)


def wide_200_megabytes(*, num_classes: int, channels: int, size: int) -> nn.Module:
    """50 million weights."""
    return WideNetwork(num_classes, channels * size * size, width=675_000)
