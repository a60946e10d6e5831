"""A small convolutional network for small images, quick enough for one CPU core.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from semisilo.common.learning.batch_norm import Normalisation, normalisation_layer

__all__ = ["SmallCNN"]


class SmallCNN(nn.Module):
    """conv 3x3 (32), then conv 3x3 (64, 64, 128, 128, ...) with max-pooling until a side of 4, average, linear.

    Every convolution is followed by normalisation and ReLU. 8x8 images pass three convolutions and one pooling, 28x28
    and 32x32 five and three. Any size from 4 works.
    """

    def __init__(self, *, num_classes: int, channels: int, size: int,
                 normalisation: Normalisation = "static_batch") -> None:
        super().__init__()
        pools = max(1, int(math.log2(max(size, 4) / 4)))
        widths = [channels, 32, 64, *(64 if stage < 2 else 128 for stage in range(1, pools + 1))]
        layers: list[nn.Module] = []
        for index, (narrow, wide) in enumerate(pairwise(widths)):
            if 1 <= index <= pools:
                layers.append(nn.MaxPool2d(2))
            layers += [nn.Conv2d(narrow, wide, 3, padding=1, bias=normalisation == "none"),
                       normalisation_layer(normalisation, wide), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images."""
        logits_BK: Tensor = self.classifier(self.features(images_BCHW).mean(dim=(2, 3)))
        return logits_BK
