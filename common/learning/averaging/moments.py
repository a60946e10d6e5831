"""Batch-norm statistics that can be added up behind masks: each silo's first two moments around a public reference.

    x_k = (mu_k - c) / s        y_k = ((n_k - 1) / n_k v_k + (mu_k - c)^2) / s^2

c and s are mean and standard deviation of the reference, s no less than a tenth of what is usual in the layer: a
channel that was the same everywhere in the reference need not be so at a silo. The means of x and y over silos,
weighted by their images, are those over all images, from which mean and variance follow as if one silo had measured all
of them:

    mu = c + s x        var = s^2 (y - x^2) n / (n - 1)        n = sum_k n_k

Around the reference the moments are near 0 and 1, so that words of 32 bits lose nothing that matters; around 0 the
variance of a channel that is far from it would be a difference of two large numbers.

C channels. Tests: tests/common/learning/averaging/test_moments.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning.batch_norm import LayerStatistics, Statistics

__all__ = ["from_moments", "to_moments"]

_FLOOR = 1e-5
_SHARE = 0.01
"""Of the mean variance in the layer, added to each."""


def to_moments(statistics: Statistics, reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a silo hands in: "<layer>.mean" x and "<layer>.square" y, float32 (C,), of the reference's layers in order.

    Args:
        reference: "<layer>.mean" and "<layer>.var" (C,), the same at all silos.
    Raises: LayoutMismatch when layers or channels are not the reference's.
    """
    layers = [key.removesuffix(".mean") for key in reference if key.endswith(".mean")]
    if set(layers) != set(statistics):
        raise LayoutMismatch("Batch-norm statistics name other layers than their reference.")
    moments: dict[str, Tensor] = {}
    for layer in layers:
        found, (c_C, s_C) = statistics[layer], _around(layer, reference)
        if found.mean.shape != c_C.shape:
            raise LayoutMismatch(f"Batch-norm statistics of '{layer}' differ in their number of channels.")
        away_C = found.mean - c_C
        biased_C = found.var * (1 - 1 / found.count)
        moments[f"{layer}.mean"] = (away_C / s_C).to(torch.float32)
        moments[f"{layer}.square"] = ((biased_C + away_C.square()) / s_C.square()).to(torch.float32)
    return moments


def from_moments(moments: Mapping[str, Tensor], reference: Mapping[str, Tensor],
                 counts: Mapping[str, float]) -> Statistics:
    """Statistics of all images from the weighted mean of the silos' moments.

    A variance that rounding has made negative is 0.

    Args:
        counts: n of each layer, at least 1.
    Raises: BadPayload where a number is not finite; LayoutMismatch when a layer is missing.
    """
    statistics: Statistics = {}
    for layer, count in counts.items():
        c_C, s_C = _around(layer, reference)
        try:
            x_C, y_C = (moments[f"{layer}.{kind}"].double() for kind in ("mean", "square"))
        except KeyError as error:
            raise LayoutMismatch(f"Moments of batch-norm layer '{layer}' are missing.") from error
        if not bool(torch.isfinite(x_C).all() and torch.isfinite(y_C).all()):
            raise BadPayload(f"Moments of batch-norm layer '{layer}' are not finite.")
        biased_C = s_C.square() * (y_C - x_C.square()).clamp_min(0)
        statistics[layer] = LayerStatistics(count, c_C + s_C * x_C, biased_C * (count / max(count - 1, 1.0)))
    return statistics


def _around(layer: str, reference: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """c and s of a layer, float64 (C,)."""
    try:
        mean_C, var_C = (reference[f"{layer}.{kind}"].double() for kind in ("mean", "var"))
    except KeyError as error:
        raise LayoutMismatch(f"The reference of batch-norm layer '{layer}' is missing.") from error
    return mean_C, (var_C + _SHARE * var_C.mean() + _FLOOR).sqrt()
