"""Image sizes that a network takes, found out by asking it: for the error that a wrong size gives.

Networks are made without memory and run without arithmetic, on torch's "meta" device.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from semisilo.common.errors import SemisiloError
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model

__all__ = ["sizes_that_work"]

_USUAL = (8, 16, 28, 32, 48, 56, 64, 75, 80, 96, 112, 128, 144, 160, 176, 192, 196, 208, 224, 240, 256, 272, 288, 299,
          320, 336, 384, 448, 512)


def sizes_that_work(settings: ModelSettings, *, channels: int, near: int, most: int = 3) -> tuple[int, ...]:
    """Usual image sizes that the network takes, the nearest to `near` first found, in rising order.

    Empty where that cannot be known: for a factory, which would run code for it, and for the few networks that cannot
    be made without memory.
    """
    if ":" in settings.name:
        return ()
    found: list[int] = []
    for size in sorted(_USUAL, key=lambda each: (abs(each - near), -each)):
        if _takes(replace(settings, weights="", freeze=()), channels, size):
            found.append(size)
            if len(found) == most:
                break
    return tuple(sorted(found))


def _takes(settings: ModelSettings, channels: int, size: int) -> bool:
    try:
        with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = build_model(settings, channels=channels, size=size)
            logits_BK = model.train()(torch.zeros(2, channels, size, size))
    except (SemisiloError, RuntimeError, ValueError, AssertionError, TypeError, IndexError, NotImplementedError,
            ArithmeticError):
        return False
    return isinstance(logits_BK, torch.Tensor) and tuple(logits_BK.shape) == (2, len(settings.classes))
