"""Batch-norm statistics that lie too far from those of the other silos to be of images of the same kind.

    c, v    coordinate-wise median over N silos of their means and variances
    s^2     v + 0.05 mean_C(v) + 1e-5
    q       ((mean - c)^2 + var) / s^2: of one silo and channel, the mean square of its values around c in units of s^2

q is about 1 where silos are alike, and it is what one silo adds to the merged variance, times its share of the values.
A silo is named where q is above `NAMED.of_channel` in any channel, or its mean over the channels of a layer above
`NAMED.of_layer`, and it is not believed above `BELIEVED`. A variance that is too small is no such thing: it takes away
at most the silo's own share.

Less than half of the silos cannot move c and v out of the range of the others. A channel that is the same everywhere at
most silos need not be so at all, hence the additions to v.

This is no bound on harm: few per cent of the values with q = 10 can already turn a network's answers.

Tests: tests/common/learning/robust/test_far_statistics.py. Source: ours; decision 0073 has what honest silos give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.learning.batch_norm import Statistics
from semisilo.common.learning.robust.coordinatewise import coordinate_median

__all__ = ["BELIEVED", "FEWEST", "NAMED", "Far", "Limit", "Middle", "distance", "far_from", "middle_of"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Of q."""

    of_layer: float
    """Of its mean over the channels of a layer."""
    of_channel: float

    def excess(self, of_layer: float, of_channel: float) -> float:
        """Above 1 where one of them is beyond it."""
        return max(of_layer / self.of_layer, of_channel / self.of_channel)


FEWEST = 3
"""Of two silos nobody can say which one is far."""
NAMED = Limit(10.0, 100.0)
"""As means that are three standard deviations away in all channels, or ten in one."""
BELIEVED = Limit(50.0, 500.0)
"""As means that are seven standard deviations away in all channels, or twenty-two in one."""
_SHARE, _FLOOR = 0.05, 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Far:
    """Where the statistics of one silo lie farthest beyond a limit."""

    layer: str
    of_layer: float
    """Mean of q over the channels of the layer."""
    of_channel: float
    """Largest q of the layer."""

    @property
    def believed(self) -> bool:
        """Whether they may be those of a silo whose images are very different."""
        return BELIEVED.excess(self.of_layer, self.of_channel) <= 1

    @property
    def text(self) -> str:
        """For a person: "at layer 'conv.1' their mean square around the median silo's mean is 1.2e+23 median
        variances, in one channel 3.4e+24"."""
        return (f"at layer '{self.layer}' their mean square around the median silo's mean is {self.of_layer:.3g} median"
                f" variances, in one channel {self.of_channel:.3g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Middle:
    """What statistics of one layer are compared with; float64 (C,) each."""

    centre: Tensor
    """c"""
    scale: Tensor
    """s^2, above 0."""

    def mean_squares(self, mean: Tensor, var: Tensor) -> Tensor:
        """q of every channel. Args: float64 (C,) or (N, C), finite, variances at least 0."""
        return ((mean - self.centre).square() + var) / self.scale


def middle_of(voices: Sequence[Statistics]) -> dict[str, Middle]:
    """By layer, what silos are compared with; {} of fewer than `FEWEST`.

    Args:
        voices: of each silo, of the same layers; every one counts alike.
    """
    if len(voices) < FEWEST:
        return {}
    found: dict[str, Middle] = {}
    for layer in voices[0]:
        var_C = coordinate_median(torch.stack([voice[layer].var for voice in voices]))
        found[layer] = Middle(centre=coordinate_median(torch.stack([voice[layer].mean for voice in voices])),
                              scale=var_C + _SHARE * var_C.mean() + _FLOOR)
    return found


def distance(middle: Mapping[str, Middle], voice: Statistics) -> float:
    """How far a silo's statistics are from the others' where they are farthest, in units of `NAMED`; 0 where there are
    too few to compare."""
    return _farthest(middle, voice)[1]


def far_from(middle: Mapping[str, Middle], voice: Statistics) -> Far | None:
    """Where a silo's statistics are farthest beyond `NAMED`; None where they are not."""
    far, excess = _farthest(middle, voice)
    return far if excess > 1 else None


def _farthest(middle: Mapping[str, Middle], voice: Statistics) -> tuple[Far | None, float]:
    found, most = None, 0.0
    for layer, each in middle.items():
        q_C = each.mean_squares(voice[layer].mean, voice[layer].var)
        of_layer, of_channel = float(q_C.mean()), float(q_C.max())
        if (excess := NAMED.excess(of_layer, of_channel)) > most:
            found, most = Far(layer=layer, of_layer=of_layer, of_channel=of_channel), excess
    return found, most
