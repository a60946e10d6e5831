"""A network of any size whose forward pass costs nothing: `semisilo_perturb.network:parameters_25000000` and the like.

Three quarters of the parameters are 3x3 convolutions, most of the rest a square matrix, as in networks for images.
They start as zeros of numpy's, which cost neither time nor memory until they are written; the method brings its own
start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Untrained", "shapes"]

_CONVOLUTIONS = 8
_LEAST = 1000


def shapes(count: int) -> list[tuple[int, ...]]:
    """Shapes of tensors with `count` >= 1000 elements together, the last of them a vector of 16 or more."""
    channels = math.isqrt(int(0.75 * count) // (9 * _CONVOLUTIONS))
    rest = count - _CONVOLUTIONS * (9 * channels**2 + channels)
    side = math.isqrt(rest - 16)
    return [*[(channels, channels, 3, 3), (channels,)] * _CONVOLUTIONS, (side, side), (rest - side**2,)]


class Untrained(nn.Module):
    """`count` trainable parameters; the logits are the first elements of the last vector."""

    def __init__(self, count: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        for number, shape in enumerate(shapes(count)):
            self.register_parameter(f"tensor_{number:02}", nn.Parameter(torch.from_numpy(np.zeros(shape, np.float32))))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K)."""
        last = list(self.parameters())[-1]
        return last[:self.num_classes].expand(len(images_BCHW), -1)


def __getattr__(name: str) -> Callable[..., nn.Module]:
    """The factory `parameters_<count>`, called as `factory(num_classes=, channels=, size=)`."""
    match = re.fullmatch(r"parameters_(\d{1,12})", name)
    if match is None or int(match[1]) < _LEAST:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def factory(*, num_classes: int, channels: int, size: int) -> nn.Module:
        return Untrained(int(match[1]), num_classes)
    return factory
