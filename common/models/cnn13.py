"""The 13-layer network of the semi-supervised literature, which Fed-SHVR uses on CIFAR-10.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning.batch_norm import Normalisation, normalisation_layer

__all__ = ["CNN13"]

_LEAST_SIDE = 12


class CNN13(nn.Module):
    """3 x conv 3x3 (128), pooling; 3 x conv 3x3 (256), pooling; conv 3x3 (512) unpadded, 1x1 (256), 1x1 (128); average,
    linear. Every convolution is followed by normalisation and LeakyReLU 0.1, every pooling by dropout 0.5.

    torch's initialisation; no input noise and no weight normalisation.
    Args:
        bias: of the convolutions. A batch norm that follows makes it redundant; the published count has it.
    Raises: BadConfiguration for a side below 12, of which the unpadded convolution leaves nothing.
    Source: Laine and Aila, ICLR 2017, Table 5; models.md.
    """

    def __init__(self, *, num_classes: int, channels: int = 3, size: int = 32, bias: bool = True,
                 normalisation: Normalisation = "static_batch") -> None:
        super().__init__()
        if size < _LEAST_SIDE:
            raise BadConfiguration(f"cnn13 takes images of at least {_LEAST_SIDE}x{_LEAST_SIDE}; the study has"
                                   f" {size}x{size}.", remedy="Set size = 32 in [data] image (the papers'), or choose"
                                   " another [model] name.")

        def convolution(narrow: int, wide: int, kernel: int = 3, padding: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(narrow, wide, kernel, padding=padding, bias=bias),
                    normalisation_layer(normalisation, wide), nn.LeakyReLU(0.1)]

        self.features = nn.Sequential(
            *convolution(channels, 128), *convolution(128, 128), *convolution(128, 128),
            nn.MaxPool2d(2), nn.Dropout(0.5),
            *convolution(128, 256), *convolution(256, 256), *convolution(256, 256),
            nn.MaxPool2d(2), nn.Dropout(0.5),
            *convolution(256, 512, padding=0), *convolution(512, 256, 1, 0), *convolution(256, 128, 1, 0))
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images."""
        logits_BK: Tensor = self.classifier(self.features(images_BCHW).mean(dim=(2, 3)))
        return logits_BK
