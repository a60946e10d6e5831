"""Training on labelled images by the strong recipe: strong and weak views, MixUp, an average of the weights.

The strong line of labels alone and self-training's coordinator learn by it.

Shapes: N labelled images, B in a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.imbalance.labels import finding_shares, log_odds
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.tensors import all_like, load_into
from semisilo.common.learning.training import (
    SGDSettings,
    cosine_lr,
    make_optimiser,
    momentum_of,
    named_randomness,
    step,
    view_block_images,
)
from semisilo.common.measures.study_measure import IMBALANCED

__all__ = ["AveragedPosition", "AveragedTraining", "average_decay", "enough_steps", "log_prior", "mixed_cross_entropy",
           "mixed_views", "stream"]

_EPOCHS = 800
"""Twice the passes of SemiFL's recipe: what is learnt from strong views is learnt more slowly."""
_LEAST_STEPS, _MOST_STEPS, _MOST_EPOCHS = 600, 4000, 100
_MIXUP_A = 0.75
"""Both parameters of the Beta distribution of MixUp's shares, as in MixMatch and SemiFL."""


def enough_steps(num_labelled: int, *, batch_size: int, least_images: int = 0) -> int:
    """Steps that a training on labels from nothing takes.

    The images of 800 passes, or `least_images` where that is more, between 600 steps and the larger of 4000 steps and
    100 passes: bounds on what it costs. Source: ours, docs/decisions/0027-a-strong-line-of-labels-alone.md.
    """
    wanted = max(_EPOCHS * num_labelled, least_images) // batch_size
    return min(max(wanted, _LEAST_STEPS), max(_MOST_STEPS, _MOST_EPOCHS * num_labelled // batch_size))


def average_decay(done: int, steps: int) -> float:
    """Weight of the average before step `done` + 1 against the weights after it, 0 to 1.

        min(1 - 10 / steps, (1 + done) / (10 + done)), at least 0

    The average looks back over about a tenth of the training, and at its beginning over less, so that the random
    weights are forgotten.
    Source: Polyak and Juditsky 1992; the beginning as in TensorFlow's `ExponentialMovingAverage(num_updates)`.
    """
    return max(0.0, min(1.0 - 10.0 / max(steps, 1), (1.0 + done) / (10.0 + done)))


def log_prior(labels_N: Tensor, num_classes: int) -> Tensor | None:
    """log of each class's share of the labels, float32 (K,); None where they are balanced within `IMBALANCED`.

    Added to the logits in training, it leaves a classifier for classes that are equally frequent, which is what
    balanced accuracy asks for. A class without images counts as one of one image. Of multi-hot rows every class is a
    two-class problem of its own: `log_odds`, under which the model answers as if half of all images showed it.
    Source: Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, Eq. 10 with tau = 1.
    """
    if labels_N.ndim == 2:
        shares_K = finding_shares(labels_N)
        larger_K = torch.maximum(shares_K, 1.0 - shares_K)
        return None if bool((larger_K <= IMBALANCED * (1.0 - larger_K)).all()) else log_odds(shares_K)
    counts_K = torch.bincount(labels_N.cpu(), minlength=num_classes)
    present = counts_K[counts_K > 0]
    if int(present.max()) <= IMBALANCED * int(present.min()):
        return None
    shares_K = counts_K.clamp(min=1).to(torch.float64)
    return torch.log(shares_K / shares_K.sum()).to(torch.float32)


def mixed_cross_entropy(logits_BK: Tensor, labels_B: Tensor, others_B: Tensor, share: float,
                        prior_K: Tensor | None) -> Tensor:
    """share * CE(logits + prior, labels) + (1 - share) * CE(logits + prior, others); scalar ().

    Source: MixUp, Zhang et al., ICLR 2018; the prior as in `log_prior`.
    """
    adjusted_BK = logits_BK if prior_K is None else logits_BK + prior_K
    return share * cross_entropy(adjusted_BK, labels_B) + (1.0 - share) * cross_entropy(adjusted_BK, others_B)


def stream(count: int, *, first: int, length: int, seed: int, purpose: str) -> Tensor:
    """Images `first` to `first + length` of an endless stream of passes over `count`, each shuffled by itself.

    Returns: indices int64 (length,).
    """
    parts, at = [], first
    while at < first + length:
        number, offset = divmod(at, count)
        order_N = torch.randperm(count, generator=torch_generator(seed, f"{purpose}_order", round=number))
        parts.append(order_N[offset:offset + first + length - at])
        at += len(parts[-1])
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def mixed_views(images_nCHW: Tensor, settings: AugmentationSettings, generator: torch.Generator, *, batch_size: int,
                batches: int | None = None) -> Tensor:
    """Views of the images of whole batches, uint8: of each batch the first half strong, the rest weak.

    Strong views alone are worse where they change what the class hangs on, such as the colour of a stain.
    Args:
        batches: the first ones, for which this holds; of those after them all views are weak. None for all.
    """
    number_n = torch.arange(len(images_nCHW), device=images_nCHW.device)
    is_strong_n = number_n % batch_size < batch_size // 2
    if batches is not None:
        is_strong_n &= number_n < batches * batch_size
    views_nCHW = images_nCHW.clone()
    views_nCHW[is_strong_n] = augment.strong(images_nCHW[is_strong_n], settings, generator)
    views_nCHW[~is_strong_n] = augment.weak(images_nCHW[~is_strong_n], settings, generator)
    return views_nCHW


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragedPosition:
    """Where a training stands after a step; with its named seeds all that the rest follows from."""

    done: int
    """Steps."""
    parameters: dict[str, Tensor]
    average: dict[str, Tensor]
    momentum: dict[str, Tensor]
    factor: float
    good_steps: int
    """See `semisilo.common.numerics.passes.Descent`."""
    loss: float


class Seeded(Protocol):
    """What a training needs of where it takes place."""

    @property
    def seed(self) -> int:
        """Of the study."""

    @property
    def image(self) -> ImageForm:
        """Form of the images."""

    @property
    def augmentation(self) -> AugmentationSettings:
        """Of the study."""


class AveragedTraining:
    """`steps` steps of SGD on views that are mixed in pairs, from given weights, the learning rate on a cosine.

    Every random number follows from the seed, the purpose and the number of its step, so `position` holds no generator.
    """

    def __init__(self, environment: Seeded, model: nn.Module, labelled: ImageSet, *, log_prior_K: Tensor | None,
                 chosen_n: Tensor | None = None, initial: Mapping[str, Tensor], sgd: SGDSettings, steps: int,
                 batch_size: int, purpose: str, plain_steps: int = 0, cosine: bool = True,
                 momentum: Mapping[str, Tensor] | None = None, position: AveragedPosition | None = None) -> None:
        """
        Args:
            environment: the coordinator's, or a silo's task.
            log_prior_K: added to the logits, such as `log_prior` of the chosen labels; None adds nothing.
            model: on the environment's device; it is this training's until another one begins.
            labelled: with labels.
            chosen_n: indices of those that are learnt from, at least one; None for all.
            steps: at least 1.
            plain_steps: so many of them, the last ones, take weak views that are not mixed.
            cosine: whether the learning rate of `sgd` falls to 0 over the steps, or is the same in all.
            momentum: to begin with; None for none.
        Raises: LayoutMismatch for a foreign position.
        """
        assert labelled.labels_N is not None
        self._environment = environment
        self._model = model
        self._images_NCHW, self._labels_N = labelled.images_NCHW, labelled.labels_N
        self._chosen_n = torch.arange(len(labelled)) if chosen_n is None else chosen_n
        self._lr = sgd.lr
        self._cosine = cosine
        self.steps = steps
        self._plain_from = steps - plain_steps
        self._batch_size = batch_size
        self._purpose = purpose
        load_into(model, initial if position is None else position.parameters)
        self._optimiser = make_optimiser(model, sgd, momentum if position is None else position.momentum)
        self._average = all_like(self._optimiser.parameters,
                                 initial if position is None else position.average)
        device = next(model.parameters()).device
        self._prior_K = None if log_prior_K is None else log_prior_K.to(device)
        self._device = device
        self.done = 0
        """Steps so far."""
        self._loss: Tensor | float = 0.0
        if position is not None:
            self.done, self._loss = position.done, position.loss
            self._optimiser.descent.factor = position.factor
            self._optimiser.descent.good_steps = position.good_steps

    @property
    def loss(self) -> float:
        """Of the last step that was made, mixed as it was; 0 before the first. Waits for the device."""
        return float(self._loss)

    def run(self, until: int | None = None) -> Iterator[None]:
        """The steps that are left, or those up to `until`; may be left after each. None waits for the device."""
        until = self.steps if until is None else min(until, self.steps)
        in_block = view_block_images(self._images_NCHW, self._batch_size) // self._batch_size
        while self.done < until:
            block, index = divmod(self.done, in_block)
            chosen_n = self._chosen_n[stream(
                len(self._chosen_n), first=block * in_block * self._batch_size,
                length=min(in_block, self.steps - block * in_block) * self._batch_size,
                seed=self._environment.seed, purpose=self._purpose)]
            views_nCHW = mixed_views(
                self._images_NCHW[chosen_n].to(self._device), self._environment.augmentation,
                torch_generator(self._environment.seed, f"{self._purpose}_views", round=block),
                batch_size=self._batch_size, batches=max(0, self._plain_from - block * in_block))
            labels_n = self._labels_N[chosen_n].to(self._device)
            batches = list(zip(torch.split(views_nCHW, self._batch_size), torch.split(labels_n, self._batch_size),
                               self._orders(self.done - index, len(labels_n) // self._batch_size), strict=True))[index:]
            for views_BCHW, labels_B, order_B in batches:
                if self.done >= until:
                    break
                self._step(views_BCHW, labels_B, order_B)
                yield

    def _orders(self, first: int, count: int) -> Tensor:
        """Whom the images of `count` steps from `first` on are mixed with, int64 (count, B), on the device."""
        return torch.stack([torch.randperm(self._batch_size, generator=torch_generator(
            self._environment.seed, f"{self._purpose}_pairs", round=number))
            for number in range(first, first + count)]).to(self._device)

    def _step(self, views_BCHW: Tensor, labels_B: Tensor, order_B: Tensor) -> None:
        seed, number = self._environment.seed, self.done
        self._optimiser.lr = cosine_lr(self._lr, round=number + 1, rounds=self.steps) if self._cosine else self._lr
        self._model.train()
        share = 1.0
        if number < self._plain_from:
            share = float(numpy_generator(seed, f"{self._purpose}_mixup", round=number).beta(_MIXUP_A, _MIXUP_A))
        input_BCHW = augment.to_input(views_BCHW, self._environment.image)
        mixed_BCHW = share * input_BCHW + (1.0 - share) * input_BCHW[order_B]
        with named_randomness(seed, f"{self._purpose}_model", round=number, device=str(self._device)):
            try:
                loss = mixed_cross_entropy(self._model(mixed_BCHW), labels_B, labels_B[order_B], share, self._prior_K)
                step(self._optimiser, loss)
                self._loss = loss.detach()
            except OneValuePerChannel:
                pass  # a batch of one image at one pixel: nothing can be learnt of it
        decay = average_decay(number, self.steps)
        with torch.no_grad():
            for name, parameter in self._optimiser.parameters.items():
                self._average[name].lerp_(parameter.detach(), 1.0 - decay)
        self.done = number + 1

    def average(self) -> dict[str, Tensor]:
        """The averaged weights: contiguous copies on the CPU, in the order of the parameters."""
        return {name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
                for name, tensor in self._average.items()}

    def momentum(self) -> dict[str, Tensor]:
        """Momentum buffers by parameter, on the CPU, for `__init__` of another."""
        return momentum_of(self._optimiser)

    def position(self) -> AveragedPosition:
        """Where it stands, for `__init__` of another."""
        return AveragedPosition(
            done=self.done, average=self.average(), momentum=self.momentum(),
            parameters={name: each.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                        for name, each in self._optimiser.parameters.items()},
            factor=self._optimiser.descent.factor, good_steps=self._optimiser.descent.good_steps, loss=self.loss)
