"""The AlexNet-like network of FedMatch's first version (and Table 6 of its third).

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.models.initialisation import variance_scaling

__all__ = ["AlexNetLike"]

_LEAST_SIDE = 8


def _stage(narrow: int, wide: int, kernel: int) -> list[nn.Module]:
    """conv "same", ReLU, max-pooling by 2. An even kernel has one more row and column of zeros on the right and below,
    as TensorFlow pads."""
    before, after = (kernel - 1) // 2, kernel // 2
    return [nn.ZeroPad2d((before, after, before, after)), nn.Conv2d(narrow, wide, kernel), nn.ReLU(), nn.MaxPool2d(2)]


class AlexNetLike(nn.Module):
    """conv 4x4 (64), 3x3 (128), 2x2 (256), each with pooling; linear 2048, 2048, K; ReLU, biases, no dropout.

    32 x 32 colour images flatten to 4096, 28 x 28 grey ones to 2304. Weights start by variance scaling, biases at 0.
    Raises: BadConfiguration for a side below 8, of which three poolings leave nothing.
    Source: Jeong et al., arXiv 2006.12097 v1 and v3; models.md (three convolutions).
    """

    def __init__(self, *, num_classes: int, channels: int = 3, size: int = 32) -> None:
        super().__init__()
        if size < _LEAST_SIDE:
            raise BadConfiguration(f"alexnet_like takes images of at least {_LEAST_SIDE}x{_LEAST_SIDE}; the study has"
                                   f" {size}x{size}.", remedy="Set size = 32 in [data] image (FedMatch's), or choose"
                                   " another [model] name.")
        self.features = nn.Sequential(*_stage(channels, 64, 4), *_stage(64, 128, 3), *_stage(128, 256, 2), nn.Flatten())
        flat = 256 * (size // 8) ** 2
        self.classifier = nn.Sequential(nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                                        nn.Linear(2048, num_classes))
        variance_scaling(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images."""
        logits_BK: Tensor = self.classifier(self.features(images_BCHW))
        return logits_BK
