"""The network of the benchmark: two convolutions with batch-norm, so that a study takes seconds."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["TinyCNN"]


class TinyCNN(nn.Module):
    """conv 3x3 (16, stride 2), conv 3x3 (24), linear, for images of 8 x 8: 7,586 parameters."""

    def __init__(self, *, num_classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.classifier = nn.Linear(24 * (size // 2) ** 2, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K)."""
        logits_BK: Tensor = self.classifier(self.features(images_BCHW).flatten(1))
        return logits_BK
