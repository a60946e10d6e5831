"""Silos' batch-norm statistics on trial: those of a few must not spoil the answers for the coordinator's own images.

    e(S) = sum_i w_i d_i,   d_i = l_i(S) - l_i(own)
    S spoils them where e(S) - sqrt(`difference_variance`) > b

with b `[robust] statistics_bound` in nats, l_i the loss of image i, its class known, under statistics S, and own those
of the coordinator's images alone. Honest silos, other scanners and few classes each among them, mostly make the answers
better.

Where those of all spoil them, silos are left out one after the other, at most half of them: first the one without which
e is smallest, or first the one that is farthest from the others. It ends where what is left does not spoil the answers,
or else where e has halved; of both orders that counts which ends earlier. Where neither is reached nobody is left out:
then it is not a few silos, and the images of all may look unlike the coordinator's.

Shapes: M images, K classes or findings.
Tests: tests/coordinator/strategies/batch_norm/test_trial.py.
Source: ours, after the rule of rejecting what has a negative impact (Barreno et al., Machine Learning 2010); decision
    0110 has what honest silos and liars do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import Statistics
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.losses import example_losses
from semisilo.common.methods.contract import Environment
from semisilo.coordinator.strategies.parts.gate import class_balanced_weights, difference_variance, images_tried

__all__ = ["MOST_TRIED", "Candidate", "StatisticsTrial", "Verdict", "spoils"]

MOST_TRIED = 32
"""Silos without which the others' statistics are tried. Of more, the farthest."""
_MOST_IMAGES = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A silo that may be left out."""

    silo: str
    statistics: Statistics
    """As they count in the merge."""
    distance: float
    """From the others, in any unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """On the statistics of a round."""

    left_out: tuple[str, ...] = ()
    """Silos, in the order in which they went."""
    rise: float = 0.0
    """e of the statistics that are left, in nats."""
    spoilt: bool = False
    """Whether these spoil the answers all the same."""


def spoils(difference_M: Tensor, weights_M: Tensor, strata_M: Tensor, *, bound: float) -> bool:
    """Whether losses have risen by more than the bound, beyond noise; also where a loss is no number.

    Args:
        difference_M: float64.
        weights_M: float64, sum 1, the same for all images of a stratum.
        strata_M: int64.
        bound: in nats.
    """
    if not bool(torch.isfinite(difference_M).all()):
        return True
    rise = (weights_M * difference_M).sum()
    return float(rise - difference_variance(difference_M, weights_M, strata_M).sqrt()) > bound


class StatisticsTrial:
    """Of one study's coordinator. Holds no state of the study."""

    def __init__(self, environment: Environment, images: ImageSet) -> None:
        """
        Args:
            images: with labels; some of many are tried.
        """
        assert images.labels_N is not None
        labels = images.labels_N.cpu()
        strata = labels if labels.ndim == 1 else torch.zeros(len(labels), dtype=torch.int64)
        chosen = images_tried(strata, _MOST_IMAGES)
        self._images, self._form = images.subset(chosen), environment.image
        self._labels, self._strata_M = labels[chosen], strata[chosen]
        self._weights_M = class_balanced_weights(self._strata_M)
        self._bound = environment.robust.statistics_bound

    def verdict(self, model: nn.Module, *, own: Statistics, merged: Statistics, silos: int,
                candidates: Callable[[], Sequence[Candidate]]) -> Verdict:
        """Who is left out.

        Args:
            model: that is measured; its statistics are changed.
            own: of the coordinator's images.
            merged: of everybody, `own` among them where the coordinator has a part in them.
            silos: how many are in `merged`.
            candidates: gives those who may be left out, at most `MOST_TRIED`; asked where it comes to that.
        """
        before_M = self._losses(model, own)
        if not bool(torch.isfinite(before_M).all()):
            return Verdict()  # it is the model that is broken

        def tried(rest: Statistics, *left_out: str) -> Verdict:
            if not rest:
                return Verdict(left_out=left_out, rise=math.inf, spoilt=True)
            difference_M = self._losses(model, rest) - before_M
            rise = float((self._weights_M * difference_M).sum())
            return Verdict(left_out=left_out, rise=rise if math.isfinite(rise) else math.inf,
                           spoilt=spoils(difference_M, self._weights_M, self._strata_M, bound=self._bound))

        found = tried(merged)
        if not found.spoilt:
            return found
        asked = candidates()
        relief = {each.silo: tried(batch_norm.without(merged, each.statistics)).rise for each in asked}
        ways: list[Verdict] = []
        for order in (sorted(asked, key=lambda each: relief[each.silo]),
                      sorted(asked, key=lambda each: -each.distance)):
            rest, out = merged, list[str]()
            for each in order[:silos // 2]:
                rest = batch_norm.without(rest, each.statistics)
                out.append(each.silo)
                ways.append(tried(rest, *out))
                if not ways[-1].spoilt:
                    break
        better = [way for way in ways if math.isfinite(way.rise) and way.rise <= found.rise / 2]
        good = [way for way in ways if not way.spoilt] or better
        return min(good, key=lambda way: len(way.left_out), default=found)

    def _losses(self, model: nn.Module, statistics: Statistics) -> Tensor:
        """Of every image under these statistics, float64 (M,); of several findings the mean over the known ones."""
        batch_norm.load(model, batch_norm.to_tensors(statistics))
        logits_MK = logits_of(model.eval(), self._images.images_NCHW, self._form).double().cpu()
        losses_M = example_losses(logits_MK, self._labels)
        return losses_M if self._labels.ndim == 1 else losses_M / (self._labels >= 0).sum(dim=1).clamp(min=1)
