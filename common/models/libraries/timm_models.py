"""Networks of the package timm by the name "timm/NAME", untrained, made to fit a study's classes, channels and size.

timm knows where trained weights lie on the internet; here it is never asked: weights come from the study's own file.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.text.installing import how_to_install

__all__ = ["PREFIX", "build_timm_model", "timm_names"]

PREFIX = "timm/"
"""Begins the names of timm's networks. With a colon they would look like factories."""


@functools.cache
def timm_names() -> tuple[str, ...]:
    """Names of timm's networks, each as a study writes it: "timm/resnet18".

    Raises: BadConfiguration where the package is not installed.
    """
    return tuple(f"{PREFIX}{name}" for name in _timm().list_models())


def build_timm_model(name: str, *, num_classes: int, channels: int, size: int) -> nn.Module:
    """The network with random weights; `name` is one of `timm_names()`.

    Networks that timm makes for one image size get the study's.
    Raises: whatever timm raises where the size does not fit the network.
    """
    timm = _timm()
    plain = name.removeprefix(PREFIX)
    known = timm.models.get_pretrained_cfg(plain, allow_unregistered=True)
    options = {"img_size": size} if known is not None and known.fixed_input_size else {}
    model: nn.Module = timm.create_model(plain, pretrained=False, num_classes=num_classes, in_chans=channels, **options)
    return model


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise BadConfiguration("Networks of timm need the package timm, which is not installed here.",
                               remedy=how_to_install("semisilo[timm]")) from None
    return timm
