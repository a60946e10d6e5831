"""The network of Fed-SHVR on MNIST: one hidden layer of 5000.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["MLP5000"]

_HIDDEN = 5000


class MLP5000(nn.Module):
    """flatten, linear 5000, ReLU, linear K; torch's initialisation. Any image size; the paper's is 1 x 28 x 28.

    Source: Wang et al. 2021 (Fed-SHVR); models.md.
    """

    def __init__(self, *, num_classes: int, channels: int = 1, size: int = 28) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels * size * size, _HIDDEN)
        self.classifier = nn.Linear(_HIDDEN, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images."""
        logits_BK: Tensor = self.classifier(self.hidden(images_BCHW.flatten(1)).relu())
        return logits_BK
