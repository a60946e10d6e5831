"""The coordinator's labelled images as a judge: every update is tried on them before it counts.

1. Alone. Each update is added to the model that was sent, and left out when that raises the loss on the coordinator's
   images more than the other updates do, beyond their spread.
2. Together. Silos that see few classes all make these images worse alone, and then a lie does not stand out. So the
   mean of those that are left is tried without each of them, and the one without which it is best is left out as long
   as that makes a difference beyond noise. The loss is here that of the images as they are, and what a patch adds to it
   in the place where it adds most: a model with a hidden trigger is right on images without one.

The images are the validation images, or the labelled ones where there are none.

Shapes: N updates, M images, P images of a patched view, K classes, V views.
Tests: tests/coordinator/strategies/parts/test_judge.py.
Source: the trial of single updates is that of Zeno (Xie, Koyejo and Gupta, ICML 2019) and of the reject-on-negative-
    impact rule (Barreno et al., Machine Learning 2010); the comparison with the other updates and the patches are ours.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.robust.outliers import not_worse_than_others
from semisilo.common.learning.robust.patches import FILLINGS, GRID, patched_views
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import Environment, Updates
from semisilo.coordinator.strategies.parts.gate import class_balanced_weights
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator

__all__ = ["Judge", "Verdict"]

_LOG = logging.getLogger("semisilo.coordinator")

_MOST_IMAGES = 1000
_PATCHED_IMAGES = 1536
"""In all patched views together: as much work as a pass over so many images."""
_DEVIATIONS = 4.0
_LEAST_LOSS = 0.2
"""Nats above the median harm that never leave an update out alone."""
_LEAST_GAIN = 0.01
"""Nats by which the mean must be better without an update, after two standard errors are taken off."""
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the judge says of the updates of a phase."""

    accepted: tuple[bool, ...]
    """Whether each may count, in silo order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """What a model does on the coordinator's images."""

    losses_M: Tensor
    """Of every image, float64."""
    added_VP: Tensor
    """What a patch adds to the loss of an image, by view."""
    added_V: Tensor
    """Its mean, every class with equal weight."""


class Judge:
    """Of one study's coordinator. Holds no state of the study."""

    def __init__(self, environment: Environment) -> None:
        """Raises: BadConfiguration where the coordinator has no labelled images at all."""
        data = environment.data
        images = next((each for each in (data.validation, data.labelled)
                       if each is not None and len(each) and each.labels_N is not None), None)
        if images is None:
            raise BadConfiguration('[robust] rule = "judge" needs images with labels at the coordinator to try updates'
                                   " on; there are none.",
                                   remedy="Name some in [data] validation, or choose a rule that needs none.")
        self._environment = environment
        self._images = _some_of(images, _MOST_IMAGES)
        self._patched = _some_of(images, max(1, _PATCHED_IMAGES // (GRID * GRID * len(FILLINGS))))

    def verdict(self, w: Mapping[str, Tensor], updates: Updates, group: str, *, scales: Sequence[float],
                weights: Sequence[float], round: int) -> Verdict:
        """Which updates may count. Reads each at most 2 + (number left out) times, and tries as many models.

        Args:
            w: what was sent.
            group: of differences to it.
            scales: what each update is multiplied by, the bound on lengths among it.
            weights: of each in the mean.
        """
        model = model_at_coordinator(self._environment, w, round=round)
        before = self._balanced(self._losses(model, w, round=round))
        harm_N = torch.full((len(scales), 1), math.inf, dtype=torch.float64)
        for index, scale in enumerate(scales):
            tried = tensors.add(w, updates.read(index)[group].tensors, factor=scale)
            if tensors.all_finite(tried):
                harm_N[index] = self._balanced(self._losses(model, tried, round=round)) - before
        stays_N = not_worse_than_others(harm_N, deviations=_DEVIATIONS, least=_LEAST_LOSS)
        for header, stays in zip(updates.headers, stays_N, strict=True):
            if not stays:
                _LOG.warning("round %d: the update of silo %s is left out: alone it makes the coordinator's images"
                             " worse than the others do", round, header.silo)
        staying = stays_N.nonzero().flatten().tolist()
        staying = self._together(model, w, updates, group, staying, scales=scales, weights=weights, round=round)
        return Verdict(accepted=tuple(index in staying for index in range(len(scales))))

    def _together(self, model: nn.Module, w: Mapping[str, Tensor], updates: Updates, group: str, staying: list[int], *,
                  scales: Sequence[float], weights: Sequence[float], round: int) -> list[int]:
        """Those without which the mean is not better. Leaves out one after another, with those that went before fewer
        than half of all, or `byzantine_silos`."""
        count = len(scales)
        most = self._environment.robust.byzantine_silos or (count - 1) // 2

        def plus(total: Mapping[str, Tensor], index: int, sign: float) -> dict[str, Tensor]:
            return tensors.add(total, updates.read(index)[group].tensors, factor=sign * weights[index] * scales[index])

        total = tensors.zeros_like(w)
        for index in staying:
            total = plus(total, index, 1.0)
        while len(staying) > 1 and count - len(staying) < most:
            mass = math.fsum(weights[index] for index in staying)
            if not mass:
                break
            before = self._trial(model, tensors.add(w, total, factor=1 / mass), round=round)
            gains: dict[int, float] = {}
            for index in staying:
                if (rest := mass - weights[index]) > 0:
                    without = tensors.add(w, plus(total, index, -1.0), factor=1 / rest)
                    gains[index] = self._gain(before, self._trial(model, without, round=round))
            worst = max(gains, key=lambda index: (gains[index], -index), default=None)
            if worst is None or gains[worst] <= _LEAST_GAIN:
                break
            _LOG.warning("round %d: the update of silo %s is left out: the mean is better on the coordinator's images"
                         " without it", round, updates.headers[worst].silo)
            total = plus(total, worst, -1.0)
            staying = [index for index in staying if index != worst]
        return staying

    def _gain(self, before: _Trial, after: _Trial) -> float:
        """What the loss has become less, less its standard error twice; -inf where it is no number.

        The error is that of the differences image by image, of the patch in the place where it did most before.
        """
        place = int(before.added_V.argmax())
        clean, clean_error = _mean_and_error(before.losses_M - after.losses_M, self._images)
        _, patched_error = _mean_and_error(before.added_VP[place] - after.added_VP[place], self._patched)
        patched = float(before.added_V.max() - after.added_V.max())
        found = clean + patched - _STANDARD_ERRORS * math.hypot(clean_error, patched_error)
        return found if math.isfinite(found) else -math.inf

    def _trial(self, model: nn.Module, w: Mapping[str, Tensor], *, round: int) -> _Trial:
        environment = self._environment
        losses_M = self._losses(model, w, round=round)
        images_PCHW = self._patched.images_NCHW[:]
        unpatched_P = _cross_entropy(logits_of(model, images_PCHW, environment.image), self._patched)
        views = patched_views(images_PCHW, torch_generator(environment.seed, "judge_patches", round=round))
        logits_NK = logits_of(model, torch.cat(list(views)), environment.image)
        added_VP = torch.stack([_cross_entropy(part_PK, self._patched) - unpatched_P
                                for part_PK in torch.split(logits_NK, len(images_PCHW))])
        return _Trial(losses_M=losses_M, added_VP=added_VP,
                      added_V=added_VP @ class_balanced_weights(_labels(self._patched)))

    def _losses(self, model: nn.Module, w: Mapping[str, Tensor], *, round: int) -> Tensor:
        """Of every image, float64 (M,); infinite for a model whose statistics no float32 can hold. Parameters and
        statistics are in `model` then, which is in evaluation mode."""
        tensors.load_into(model, w)
        try:
            batch_norm.load(model, batch_norm.to_tensors(batch_norm.measure(
                model, self._images.images_NCHW, form=self._environment.image,
                generator=torch_generator(self._environment.seed, "batch_norm_order", round=round))))
        except BadPayload:
            return torch.full((len(self._images),), math.inf, dtype=torch.float64)
        model.eval()
        return _cross_entropy(logits_of(model, self._images.images_NCHW, self._environment.image), self._images)

    def _balanced(self, losses_M: Tensor) -> float:
        """Their mean, every class that occurs with equal weight; infinite where it is no number."""
        found = _mean_and_error(losses_M, self._images)[0]
        return found if math.isfinite(found) else math.inf


def _mean_and_error(values_M: Tensor, images: ImageSet) -> tuple[float, float]:
    """The mean, every class that occurs with equal weight, and its standard error."""
    weights_M = class_balanced_weights(_labels(images))
    mean = (weights_M * values_M).sum()
    return float(mean), float((weights_M * (values_M - mean)).square().sum().sqrt())


def _labels(images: ImageSet) -> Tensor:
    assert images.labels_N is not None
    return images.labels_N


def _cross_entropy(logits_MK: Tensor, images: ImageSet) -> Tensor:
    """Of every image, float64 (M,)."""
    return functional.cross_entropy(logits_MK.double().cpu(), _labels(images).cpu(), reduction="none")


def _some_of(images: ImageSet, most: int) -> ImageSet:
    """At most so many, of every class as evenly as there are, in a fixed order."""
    if len(images) <= most:
        return images
    order_N = torch.argsort(_labels(images).cpu(), stable=True)
    return images.subset(order_N[torch.arange(most) * len(images) // most])
