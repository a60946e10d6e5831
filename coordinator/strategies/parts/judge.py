"""The coordinator's labelled images as a judge: every update is tried on them before it counts.

1. Alone. Each update is added to the model that was sent, and the loss is taken on the coordinator's images, as they
   are and with patches in many places. An update is left out when it makes either worse than the other updates do,
   beyond their spread: what destroys knowledge, and what answers to a patch, as a model with a hidden trigger does
   while it is right on images without one.
2. Together. Silos that see few classes all make these images worse alone, and then a lie does not stand out. So the
   mean of those that are left is tried without each of them, and the one without which it is best is left out as long
   as that makes a difference beyond noise.

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
"""In all views together: as much work as a pass over so many images, for each update."""
_DEVIATIONS = 4.0
_LEAST_LOSS = 0.2
"""Nats. Of 10 classes at 90 % a loss moves by a tenth with every image of a hundred that is lost."""
_LEAST_PATCHED = 0.5
"""Nats, of the few images of one view."""
_LEAST_GAIN = 0.01
"""Nats by which the mean must be better without an update, after two standard errors are taken off."""
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the judge says of the updates of a phase."""

    accepted: tuple[bool, ...]
    """Whether each may count, in silo order."""


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
        before_V = self._losses(model, w, round=round)
        harm_NV = torch.full((len(scales), len(before_V)), math.inf, dtype=torch.float64)
        for index, scale in enumerate(scales):
            tried = tensors.add(w, updates.read(index)[group].tensors, factor=scale)
            if tensors.all_finite(tried):
                harm_NV[index] = self._losses(model, tried, round=round)
        clean_N = not_worse_than_others(harm_NV[:, :1], deviations=_DEVIATIONS, least=_LEAST_LOSS)
        # Of many views the worst: comparing each by itself would find somebody in one of them in every round.
        worst_N1 = (harm_NV[:, 1:] - harm_NV[:, 1:].median(dim=0).values).max(dim=1, keepdim=True).values
        patched_N = not_worse_than_others(worst_N1, deviations=_DEVIATIONS, least=_LEAST_PATCHED)
        for header, clean, patched in zip(updates.headers, clean_N, patched_N, strict=True):
            if not (clean and patched):
                _LOG.warning("round %d: the update of silo %s is left out: alone it makes the coordinator's images%s"
                             " worse than the others do", round, header.silo, " with a patch" if clean else "")
        staying = (clean_N & patched_N).nonzero().flatten().tolist()
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
            before_M = self._image_losses(model, tensors.add(w, total, factor=1 / mass), round=round)
            gains: dict[int, float] = {}
            for index in staying:
                if (rest := mass - weights[index]) > 0:
                    without = tensors.add(w, plus(total, index, -1.0), factor=1 / rest)
                    gains[index] = self._gain(before_M - self._image_losses(model, without, round=round))
            worst = max(gains, key=lambda index: (gains[index], -index), default=None)
            if worst is None or gains[worst] <= _LEAST_GAIN:
                break
            _LOG.warning("round %d: the update of silo %s is left out: the mean is better on the coordinator's images"
                         " without it", round, updates.headers[worst].silo)
            total = plus(total, worst, -1.0)
            staying = [index for index in staying if index != worst]
        return staying

    def _gain(self, less_M: Tensor) -> float:
        """Mean of what a loss has become less, less its standard error twice; -inf where it is no number."""
        weights_M = class_balanced_weights(_labels(self._images))
        mean = (weights_M * less_M).sum()
        error = (weights_M * (less_M - mean)).square().sum().sqrt()
        found = float(mean - _STANDARD_ERRORS * error)
        return found if math.isfinite(found) else -math.inf

    def _losses(self, model: nn.Module, w: Mapping[str, Tensor], *, round: int) -> Tensor:
        """Class-balanced loss on the images, then of every patched view by how much the patch raises it; float64
        (1 + V,), all infinite for a model whose statistics no float32 can hold."""
        environment, views = self._environment, GRID * GRID * len(FILLINGS)
        losses_M = self._image_losses(model, w, round=round)
        if not bool(torch.isfinite(losses_M).all()):
            return torch.full((1 + views,), math.inf, dtype=torch.float64)
        losses = [_balanced(losses_M, self._images)]
        images_PCHW = self._patched.images_NCHW[:]
        unpatched = _balanced(_cross_entropy(logits_of(model, images_PCHW, environment.image), self._patched),
                              self._patched)
        generator = torch_generator(environment.seed, "judge_patches", round=round)
        logits_NK = logits_of(model, torch.cat(list(patched_views(images_PCHW, generator))), environment.image)
        for part_PK in torch.split(logits_NK, len(images_PCHW)):
            losses.append(_balanced(_cross_entropy(part_PK, self._patched), self._patched) - unpatched)
        found_V = torch.tensor(losses, dtype=torch.float64)
        return torch.where(torch.isfinite(found_V), found_V, torch.full_like(found_V, math.inf))

    def _image_losses(self, model: nn.Module, w: Mapping[str, Tensor], *, round: int) -> Tensor:
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


def _labels(images: ImageSet) -> Tensor:
    assert images.labels_N is not None
    return images.labels_N


def _cross_entropy(logits_MK: Tensor, images: ImageSet) -> Tensor:
    """Of every image, float64 (M,)."""
    return functional.cross_entropy(logits_MK.double().cpu(), _labels(images).cpu(), reduction="none")


def _balanced(losses_M: Tensor, images: ImageSet) -> float:
    """Their mean, every class that occurs with equal weight."""
    return float((losses_M * class_balanced_weights(_labels(images))).sum())


def _some_of(images: ImageSet, most: int) -> ImageSet:
    """At most so many, of every class as evenly as there are, in a fixed order."""
    if len(images) <= most:
        return images
    order_N = torch.argsort(_labels(images).cpu(), stable=True)
    return images.subset(order_N[torch.arange(most) * len(images) // most])
