"""Any classification network of torchvision, untrained, made to fit a study's classes, channels and image size.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

__all__ = ["build_torchvision_model", "torchvision_names"]

_NO_AUXILIARY_HEADS = ("googlenet", "inception_v3")


@functools.cache
def torchvision_names() -> tuple[str, ...]:
    """Names of torchvision's image classification networks."""
    from torchvision import models

    return tuple(models.list_models(module=models))


def build_torchvision_model(name: str, *, num_classes: int, channels: int, size: int) -> nn.Module:
    """The network with random weights.

    A grey image enters a first convolution whose weights are the sums over the three colours, which gives exactly what
    the repeated image would give. Networks that are made for one image size get the study's.
    Raises: whatever torchvision raises where the size does not fit the network.
    """
    from torchvision import models

    options: dict[str, object] = {}
    if name.startswith("vit_"):
        options["image_size"] = size
    if name.startswith("maxvit"):
        options["input_size"] = (size, size)
    if name in _NO_AUXILIARY_HEADS:  # they would make the output a tuple in training
        options.update(aux_logits=False, init_weights=True)
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    if channels != 3:
        _narrow_first_convolution(model, channels)
    return model


def _narrow_first_convolution(model: nn.Module, channels: int) -> None:
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d) and child.in_channels == 3:
                narrow = nn.Conv2d(channels, child.out_channels, child.kernel_size,  # type: ignore[arg-type]
                                   stride=child.stride, padding=child.padding,  # type: ignore[arg-type]
                                   dilation=child.dilation, bias=child.bias is not None)  # type: ignore[arg-type]
                with torch.no_grad():
                    narrow.weight.copy_(child.weight.sum(dim=1, keepdim=True).expand_as(narrow.weight) / channels)
                    if child.bias is not None and narrow.bias is not None:
                        narrow.bias.copy_(child.bias)
                setattr(parent, name, narrow)
                return
    raise ValueError("the network has no convolution that takes three colours")
