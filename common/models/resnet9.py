"""The ResNet-9 of FedMatch's official code: no bias, and no normalisation unless a study asks for it.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning.batch_norm import Normalisation, normalisation_layer
from semisilo.common.models.initialisation import variance_scaling

__all__ = ["ResNet9"]

_SIDE = 32


def _convolution(narrow: int, wide: int, normalisation: Normalisation) -> nn.Sequential:
    """conv 3x3 "same", normalisation, ReLU."""
    return nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1, bias=False), normalisation_layer(normalisation, wide),
                         nn.ReLU())


class _Residual(nn.Module):
    """x + c2(c1(x)); ReLU acts inside each convolution, not after the sum."""

    def __init__(self, width: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.first = _convolution(width, width, normalisation)
        self.second = _convolution(width, width, normalisation)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW: Tensor = self.second(self.first(x_BCHW))
        return x_BCHW + y_BCHW


class ResNet9(nn.Module):
    """64, 128 and pooling, residual; 256 and pooling, 512 and pooling, residual; pooling by 4, linear without bias.

    Weights start by variance scaling (`semisilo.common.models.initialisation`). Not the pre-activation "ResNet-9" of
    SemiFL's repository.
    Raises: BadConfiguration for images of another side than 32, on which the last pooling leaves one pixel.
    Source: Jeong et al., ICLR 2021, official code; models.md.
    """

    def __init__(self, *, num_classes: int, channels: int = 3, size: int = _SIDE,
                 normalisation: Normalisation = "none") -> None:
        super().__init__()
        if size != _SIDE:
            raise BadConfiguration(f"resnet9 takes images of {_SIDE}x{_SIDE}; the study has {size}x{size}.",
                                   remedy=f"Set size = {_SIDE} in [data] image, or choose another [model] name.")
        self.features = nn.Sequential(
            _convolution(channels, 64, normalisation),
            _convolution(64, 128, normalisation), nn.MaxPool2d(2),
            _Residual(128, normalisation),
            _convolution(128, 256, normalisation), nn.MaxPool2d(2),
            _convolution(256, 512, normalisation), nn.MaxPool2d(2),
            _Residual(512, normalisation),
            nn.MaxPool2d(4), nn.Flatten())
        self.classifier = nn.Linear(512, num_classes, bias=False)
        variance_scaling(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images."""
        logits_BK: Tensor = self.classifier(self.features(images_BCHW))
        return logits_BK
