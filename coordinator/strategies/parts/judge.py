"""The coordinator's labelled images as a judge: every update is tried on them before it counts.

Each update is added to the model that was sent, alone, and the loss is taken on the coordinator's images, as they are
and with patches in many places. An update is left out when it makes either worse than the other updates do, beyond
their spread. The first test finds what destroys knowledge; the second what answers to a patch, as a model with a hidden
trigger does while it is right on images without one.

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
_LEAST_PATCHED = 1.0
"""Nats, of the few images of one view."""


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

    def verdict(self, w: Mapping[str, Tensor], updates: Updates, group: str, scales: Sequence[float], *,
                round: int) -> Verdict:
        """Which updates may count.

        Args:
            w: what was sent.
            group: of differences to it.
            scales: what each update is multiplied by, the bound on lengths among it.
        """
        model = model_at_coordinator(self._environment, w, round=round)
        before_V = self._losses(model, w, round=round)
        harm_NV = torch.full((len(scales), len(before_V)), math.inf, dtype=torch.float64)
        for index, scale in enumerate(scales):
            tried = tensors.add(w, updates.read(index)[group].tensors, factor=scale)
            if tensors.all_finite(tried):
                harm_NV[index] = self._losses(model, tried, round=round)
        clean_N = not_worse_than_others(harm_NV[:, :1], deviations=_DEVIATIONS, least=_LEAST_LOSS)
        patched_N = not_worse_than_others(harm_NV[:, 1:], deviations=_DEVIATIONS, least=_LEAST_PATCHED)
        for header, clean, patched in zip(updates.headers, clean_N, patched_N, strict=True):
            if not (clean and patched):
                _LOG.warning("round %d: the update of silo %s is left out: alone it makes the coordinator's images%s"
                             " worse than the others do", round, header.silo, " with a patch" if clean else "")
        return Verdict(accepted=tuple((clean_N & patched_N).tolist()))

    def _losses(self, model: nn.Module, w: Mapping[str, Tensor], *, round: int) -> Tensor:
        """Class-balanced loss on the images, then of every patched view by how much the patch raises it; float64
        (1 + V,), all infinite for a model whose statistics no float32 can hold."""
        environment, views = self._environment, GRID * GRID * len(FILLINGS)
        tensors.load_into(model, w)
        try:
            batch_norm.load(model, batch_norm.to_tensors(batch_norm.measure(
                model, self._images.images_NCHW, form=environment.image,
                generator=torch_generator(environment.seed, "batch_norm_order", round=round))))
        except BadPayload:
            return torch.full((1 + views,), math.inf, dtype=torch.float64)
        model.eval()
        losses = [self._loss(model, self._images.images_NCHW, self._images)]
        images_PCHW = self._patched.images_NCHW[:]
        unpatched = self._loss(model, images_PCHW, self._patched)
        generator = torch_generator(environment.seed, "judge_patches", round=round)
        logits_NK = logits_of(model, torch.cat(list(patched_views(images_PCHW, generator))), environment.image)
        for part_PK in torch.split(logits_NK, len(images_PCHW)):
            losses.append(_balanced_loss(part_PK, self._patched) - unpatched)
        found_V = torch.tensor(losses, dtype=torch.float64)
        return torch.where(torch.isfinite(found_V), found_V, torch.full_like(found_V, math.inf))

    def _loss(self, model: nn.Module, images_MCHW: Tensor, images: ImageSet) -> float:
        return _balanced_loss(logits_of(model, images_MCHW, self._environment.image), images)


def _balanced_loss(logits_MK: Tensor, images: ImageSet) -> float:
    """Mean cross-entropy, every class that occurs with equal weight."""
    assert images.labels_N is not None
    losses_M = functional.cross_entropy(logits_MK.double().cpu(), images.labels_N.cpu(), reduction="none")
    return float((losses_M * class_balanced_weights(images.labels_N)).sum())


def _some_of(images: ImageSet, most: int) -> ImageSet:
    """At most so many, of every class as evenly as there are, in a fixed order."""
    assert images.labels_N is not None
    if len(images) <= most:
        return images
    order_N = torch.argsort(images.labels_N.cpu(), stable=True)
    return images.subset(order_N[torch.arange(most) * len(images) // most])
