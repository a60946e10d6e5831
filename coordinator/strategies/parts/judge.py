"""The coordinator's labelled images as a judge: every update counts as far as it makes them better.

1. Alone. Each update is added to the model that was sent, and left out when that raises the loss on the coordinator's
   images more than the other updates do, beyond their spread.
2. Together. Silos that see few classes all make these images worse alone, and then a lie does not stand out. So the
   weights of those that are left are learned: those of the mean that makes the loss smallest, near equal ones
   (`semisilo.common.learning.robust.learned_weights`). What counts less than its share then fades.

The images are the validation images. Where there are none, they are the labelled ones with weak views of them: the
model knows the images themselves by heart, and then they tell no update from another.

Shapes: N updates, S of them that stay, B numbers of a block, M images.
Tests: tests/coordinator/strategies/parts/test_judge.py.
Source: the trial of single updates is that of Zeno (Xie, Koyejo and Gupta, ICML 2019) and of the reject-on-negative-
    impact rule (Barreno et al., Machine Learning 2010), the comparison with the other updates is ours; the weights are
    those of FedLAW (Li et al., ICML 2023), which is not about liars.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import inference_batches, logits_of
from semisilo.common.learning.robust.learned_weights import faded, learned_weights
from semisilo.common.learning.robust.outliers import not_worse_than_others
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import Environment, Updates
from semisilo.coordinator.strategies.parts.gate import class_balanced_weights
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator

__all__ = ["Judge"]

_LOG = logging.getLogger("semisilo.coordinator")

_MOST_IMAGES = 1000
_MOST_VIEWS = 8
"""Of a labelled image, beside itself."""
_DEVIATIONS = 4.0
_LEAST_LOSS = 0.2
"""Nats above the median harm that never leave an update out alone."""
_PIECE = 50
"""Images whose activations are kept for a gradient at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What is judged in a round."""

    model: nn.Module
    w: Mapping[str, Tensor]
    """What was sent."""
    updates: Updates
    group: str
    scales: Sequence[float]
    """What each update is multiplied by, the bound on lengths among it."""
    round: int


class Judge:
    """Of one study's coordinator. Holds no state of the study."""

    def __init__(self, environment: Environment) -> None:
        """Raises: BadConfiguration where the coordinator has no labelled images at all."""
        data = environment.data
        validation, labelled = (each if each is not None and len(each) and each.labels_N is not None else None
                                for each in (data.validation, data.labelled))
        images = labelled if validation is None else validation
        if images is None:
            raise BadConfiguration('[robust] rule = "judge" needs images with labels at the coordinator to try updates'
                                   " on; there are none.",
                                   remedy="Name some in [data] validation, or choose a rule that needs none.")
        self._environment = environment
        self._images = _some_of(images, _MOST_IMAGES)
        if validation is None:
            self._images = _with_views(self._images, environment)

    def weights(self, w: Mapping[str, Tensor], updates: Updates, group: str, *, scales: Sequence[float],
                plain: Sequence[float], round: int) -> list[float]:
        """What each scaled update counts in the mean, in silo order: 0 where it is left out; the sum is 1, or 0 where
        all are. Reads each update twice, and tries a model for each and 30 more.

        Args:
            w: what was sent.
            group: of differences to it.
            scales: what each update is multiplied by, the bound on lengths among it.
            plain: weights to stay near, sum 1; an update without any counts nothing.
        """
        judged = _Round(model=model_at_coordinator(self._environment, w, round=round), w=w, updates=updates,
                        group=group, scales=scales, round=round)
        stays_N = self._alone(judged)
        for header, stays in zip(updates.headers, stays_N.tolist(), strict=True):
            if not stays:
                _LOG.warning("round %d: the update of silo %s is left out: alone it makes the coordinator's images"
                             " worse than the others do", round, header.silo)
        found = [0.0] * len(scales)
        staying = [index for index in stays_N.nonzero().flatten().tolist() if plain[index] > 0]
        if staying:
            shares = [plain[index] for index in staying]
            for index, weight in zip(staying, faded(self._together(judged, staying, shares), shares), strict=True):
                found[index] = weight
        return found

    def _alone(self, judged: _Round) -> Tensor:
        """Which updates stay, bool (N,)."""
        before = self._balanced(self._losses(judged.model, judged.w, round=judged.round))
        harm_N = torch.full((len(judged.scales), 1), math.inf, dtype=torch.float64)
        for index, scale in enumerate(judged.scales):
            tried = tensors.add(judged.w, judged.updates.read(index)[judged.group].tensors, factor=scale)
            if tensors.all_finite(tried):
                harm_N[index] = self._balanced(self._losses(judged.model, tried, round=judged.round)) - before
        return not_worse_than_others(harm_N, deviations=_DEVIATIONS, least=_LEAST_LOSS)

    def _together(self, judged: _Round, staying: list[int], plain: list[float]) -> list[float]:
        """Weights of those that stay, learned on the images."""
        shapes = {name: tensor.shape for name, tensor
                  in judged.updates.read(staying[0])[judged.group].tensors.items()}
        scale_S = torch.tensor([judged.scales[index] for index in staying], dtype=torch.float64)

        def look(weights_S: Tensor) -> tuple[float, Callable[[], Tensor]]:
            factor_S = weights_S * scale_S
            sum_D = torch.cat([factor_S @ block_NB[staying].double()
                               for block_NB in judged.updates.blocks(judged.group)])
            parts = torch.split(sum_D, [shape.numel() for shape in shapes.values()])
            total = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
            tried = {name: (tensor.double() + total[name].to(tensor.device)).to(tensor.dtype)
                     for name, tensor in judged.w.items()}
            loss = self._balanced(self._losses(judged.model, tried, round=judged.round))
            return loss, slopes

        def slopes() -> Tensor:
            """Of the loss of the model of the last look: <gradient, d_k>."""
            gradient_D = self._gradient(judged.model, tuple(shapes))
            start, found_S = 0, torch.zeros(len(staying), dtype=torch.float64)
            for block_NB in judged.updates.blocks(judged.group):
                width = block_NB.shape[1]
                found_S += block_NB[staying].double() @ gradient_D[start:start + width]
                start += width
            return found_S * scale_S

        return learned_weights(plain, look)

    def _gradient(self, model: nn.Module, names: Sequence[str]) -> Tensor:
        """Of the loss by these parameters, flat float64 on the CPU, with the batch-norm statistics as they are; 0 where
        it is no number."""
        named = dict(model.named_parameters())
        parameters = [named[name].requires_grad_(True) for name in names]
        weights_M = class_balanced_weights(_labels(self._images))
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for cut in inference_batches(len(self._images), _PIECE):
            with torch.enable_grad():
                images_BCHW = self._images.images_NCHW[cut].to(parameters[0].device)
                losses_B = functional.cross_entropy(model(augment.to_input(images_BCHW, self._environment.image)),
                                                    _labels(self._images)[cut].to(images_BCHW.device), reduction="none")
                loss = (weights_M[cut].to(losses_B) * losses_B).sum()
            for sum_, part in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                if part is not None:
                    sum_ += part
        flat_D = torch.cat([tensor.reshape(-1).double().cpu() for tensor in total])
        return torch.nan_to_num(flat_D, nan=0.0, posinf=0.0, neginf=0.0)

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
        found = float((class_balanced_weights(_labels(self._images)) * losses_M).sum())
        return found if math.isfinite(found) else math.inf


def _labels(images: ImageSet) -> Tensor:
    assert images.labels_N is not None
    return images.labels_N


def _cross_entropy(logits_MK: Tensor, images: ImageSet) -> Tensor:
    """Of every image, float64 (M,)."""
    return functional.cross_entropy(logits_MK.double().cpu(), _labels(images).cpu(), reduction="none")


def _with_views(images: ImageSet, environment: Environment) -> ImageSet:
    """The images, then as many weak views of all of them as there is room for: the same in every round. The images
    alone where views are the images themselves."""
    count = 0 if environment.augmentation.policy == "none" else min(_MOST_VIEWS, _MOST_IMAGES // len(images) - 1)
    generator = torch_generator(environment.seed, "judge_views")
    views = [images.images_NCHW[:], *(augment.weak(images.images_NCHW[:], environment.augmentation, generator)
                                      for _ in range(count))]
    return replace(images, images_NCHW=torch.cat(views), labels_N=torch.cat([_labels(images)] * len(views)),
                   names=images.names * len(views), patients=images.patients * len(views))


def _some_of(images: ImageSet, most: int) -> ImageSet:
    """At most so many, of every class as evenly as there are, in a fixed order."""
    if len(images) <= most:
        return images
    order_N = torch.argsort(_labels(images).cpu(), stable=True)
    return images.subset(order_N[torch.arange(most) * len(images) // most])
