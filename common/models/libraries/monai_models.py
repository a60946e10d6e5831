"""Classification networks of MONAI by the name "monai/NAME", untrained, in two dimensions.

Tests: tests/common/models/libraries/test_monai_models.py.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.text.installing import how_to_install

__all__ = ["MONAI_PREFIX", "build_monai_model", "monai_names"]

MONAI_PREFIX = "monai/"
"""Begins the names of MONAI's networks."""

_DENSE = {"densenet121": "DenseNet121", "densenet169": "DenseNet169", "densenet201": "DenseNet201",
          "densenet264": "DenseNet264"}
_SE = {"senet154": "SENet154", "seresnet50": "SEResNet50", "seresnet101": "SEResNet101", "seresnet152": "SEResNet152"}
_RES = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200")
_EFFICIENT = tuple(f"efficientnet-b{number}" for number in range(9))


def monai_names() -> tuple[str, ...]:
    """The names, each as a study writes it: "monai/densenet121". Known without the package."""
    return tuple(f"{MONAI_PREFIX}{name}" for name in (*_DENSE, *_SE, *_RES, *_EFFICIENT))


def build_monai_model(name: str, *, num_classes: int, channels: int, size: int) -> nn.Module:
    """The network with random weights; `name` is one of `monai_names()`.

    Raises: BadConfiguration where the package is not installed; whatever MONAI raises.
    """
    nets, plain = _nets(), name.removeprefix(MONAI_PREFIX)
    if plain in _RES:
        model: nn.Module = getattr(nets, plain)(pretrained=False, spatial_dims=2, n_input_channels=channels,
                                                num_classes=num_classes)
    elif plain in _EFFICIENT:
        model = nets.EfficientNetBN(plain, pretrained=False, spatial_dims=2, in_channels=channels,
                                    num_classes=num_classes)
    elif plain in _DENSE:
        model = getattr(nets, _DENSE[plain])(spatial_dims=2, in_channels=channels, out_channels=num_classes)
    else:
        model = getattr(nets, _SE[plain])(spatial_dims=2, in_channels=channels, num_classes=num_classes)
    return model


def _nets() -> Any:
    try:
        from monai.networks import nets
    except ImportError:
        raise BadConfiguration("Networks of MONAI need the package monai, which is not installed here.",
                               remedy=how_to_install("semisilo[monai]")) from None
    return nets
