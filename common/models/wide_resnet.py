"""Wide ResNet 28-k, pre-activation. Source: Zagoruyko and Komodakis, BMVC 2016, as SemiFL's official code has it.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.learning.batch_norm import Normalisation, normalisation_layer

__all__ = ["WideResNet28"]

_BLOCKS_PER_GROUP = 4


class _Block(nn.Module):
    """h = relu(norm(x)); y = conv3x3(h); y = conv3x3(relu(norm(y))); out = y + (x or conv1x1(h)).

    The shortcut convolution takes the activated input h; it is there when the number of channels changes, which is
    the case in the first block of every group.
    """

    def __init__(self, narrow: int, wide: int, stride: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.norm1 = normalisation_layer(normalisation, narrow)
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        self.norm2 = normalisation_layer(normalisation, wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.shortcut = None if narrow == wide else nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        h_BCHW = _activated(self.norm1, x_BCHW)
        y_BCHW: Tensor = self.conv2(_activated(self.norm2, self.conv1(h_BCHW)))
        skipped_BCHW: Tensor = x_BCHW if self.shortcut is None else self.shortcut(h_BCHW)
        return y_BCHW.add_(skipped_BCHW)  # nobody else has y: no third tensor goes through memory


def _activated(norm: nn.Module, input_BCHW: Tensor) -> Tensor:
    """relu(norm(input)), in the place of what the normalisation gave: its backward pass needs its input alone. Without
    normalisation that is the input itself, which others have."""
    normalised_BCHW: Tensor = norm(input_BCHW)
    return functional.relu(normalised_BCHW, inplace=normalised_BCHW is not input_BCHW)


class WideResNet28(nn.Module):
    """28 layers, widening factor k: groups of 16k, 32k and 64k channels, four blocks each; no dropout.

    Convolutions start normal with std sqrt(2 / (kernel area * output channels)), normalisation with gamma 1, beta 0,
    the linear layer with torch's weights and bias 0.
    """

    def __init__(self, *, widen: int, num_classes: int, channels: int = 3,
                 normalisation: Normalisation = "static_batch") -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        narrow = 16
        for wide, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for index in range(_BLOCKS_PER_GROUP):
                blocks.append(_Block(narrow, wide, stride if index == 0 else 1, normalisation))
                narrow = wide
        self.blocks = nn.Sequential(*blocks)
        self.norm = normalisation_layer(normalisation, narrow)
        self.classifier = nn.Linear(narrow, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                area = module.kernel_size[0] * module.kernel_size[1]
                nn.init.normal_(module.weight, std=math.sqrt(2.0 / (area * module.out_channels)))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of normalised images; the side must be at least 1, usually 32."""
        features_BCHW = _activated(self.norm, self.blocks(self.stem(images_BCHW)))
        logits_BK: Tensor = self.classifier(features_BCHW.mean(dim=(2, 3)))
        return logits_BK
