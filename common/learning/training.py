"""Passes over labelled images and what goes with them; used by trainers, by fine-tuning and by the baselines."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, ComputeFailed
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.evaluation import Evaluation, evaluate
from semisilo.common.learning.imbalance.labels import LabelledSampling, epoch_order
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import derive_seed, torch_generator
from semisilo.common.learning.sgd import SGDSettings, make_optimiser, momentum_of, step
from semisilo.common.learning.tensors import all_finite, load_into
from semisilo.common.methods.contract import ModelBuilder
from semisilo.common.numerics import process_group

__all__ = [
    "Evaluation", "LabelledPasses", "LabelledTraining", "PassesPosition", "PausedRandomness", "SGDSettings",
    "check_finite", "cosine_lr", "evaluate", "loaded_model", "lr_of_round", "make_optimiser", "momentum_of",
    "named_randomness", "step", "train_labelled", "unloaded_model", "view_block_images",
]

_LOG = logging.getLogger("semisilo.training")
_VIEW_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledTraining:
    """What passes over labelled images leave behind, besides the model."""

    momentum: dict[str, Tensor]
    """Momentum buffers by parameter, on the CPU."""
    loss: float
    """Mean cross-entropy over the images of the last epoch; NaN when there was no step."""
    steps: int
    skipped: int
    """Batches left out because a batch-norm layer saw one value per channel."""


def cosine_lr(lr: float, *, round: int, rounds: int) -> float:
    """lr_t = lr / 2 * (1 + cos(pi * (t - 1) / rounds)) for round t = 1..rounds; oracle S6. Round 0 counts as 1."""
    return 0.5 * lr * (1.0 + math.cos(math.pi * (max(round, 1) - 1) / rounds))


def lr_of_round(lr: float, schedule: Literal["cosine", "constant"], *, round: int, rounds: int) -> float:
    """lr_t by a method's schedule: `cosine_lr`, or `lr` in all rounds."""
    return lr if schedule == "constant" else cosine_lr(lr, round=round, rounds=rounds)


def unloaded_model(build: ModelBuilder, *, seed: int, round: int = 0, silo: str = "", device: str = "cpu") -> nn.Module:
    """A network of the study on the device, whose weights are still to be loaded: those that it has mean nothing.

    torch's global generator, which they are drawn from, is afterwards as it was before.
    """
    with named_randomness(seed, "unused_weights", round=round, silo=silo):
        return build().to(device)


def loaded_model(build: ModelBuilder, parameters: Mapping[str, Tensor], *, seed: int, round: int = 0, silo: str = "",
                 device: str = "cpu") -> nn.Module:
    """A network of the study on the device, with these trainable parameters. Raises: LayoutMismatch."""
    model = unloaded_model(build, seed=seed, round=round, silo=silo, device=device)
    load_into(model, parameters)
    return model


@contextmanager
def named_randomness(seed: int, purpose: str, *, round: int = 0, silo: str = "", device: str = "cpu") -> Iterator[None]:
    """Inside, torch's global generators stand on a named seed; afterwards they are as before.

    For what knows no other generator: dropout, stochastic depth, a network's initial weights.
    """
    target = torch.device(device)
    devices = [target] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Each of several processes computes other images of a batch: equal masks of dropout would go with all of them.
        group = process_group.present()
        mine = f"{purpose}/process {group.rank}" if group is not None and group.rank else purpose
        value = derive_seed(seed, mine, round=round, silo=silo)
        torch.default_generator.manual_seed(value)
        if devices:
            with torch.cuda.device(target):
                torch.cuda.manual_seed(value)
        yield


class PausedRandomness:
    """`named_randomness` for work that is done in pieces: each goes on where torch's generators were left."""

    def __init__(self, seed: int, purpose: str, *, device: str = "cpu",
                 states: Mapping[str, Tensor] | None = None) -> None:
        """`states` are those of earlier pieces, as `states` gives them."""
        self._seed = seed
        self._purpose = purpose
        self._device = device
        self.states: dict[str, Tensor] = dict(states or {})
        """By the type of the device, as bytes; empty before the first piece."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, torch's global generators go on; afterwards they are as before."""
        target = torch.device(self._device)
        with named_randomness(self._seed, self._purpose, device=self._device):
            if self.states:
                torch.set_rng_state(self.states["cpu"])
            if target.type == "cuda" and target.type in self.states:
                torch.cuda.set_rng_state(self.states[target.type], target)
            yield
            self.states = {"cpu": torch.get_rng_state()}
            if target.type == "cuda":
                self.states[target.type] = torch.cuda.get_rng_state(target)


def view_block_images(images_NCHW: Tensor, batch_size: int) -> int:
    """How many images are augmented at once: whole batches, at most 1024 images or 32 MiB, at least one batch.

    Augmenting many images costs hardly more than augmenting ten. A function of sizes alone, so that the random numbers
    fall the same way on every machine.
    """
    image_bytes = max(1, images_NCHW[0].numel() if len(images_NCHW) else 1)
    return max(1, min(1024, _VIEW_BLOCK_BYTES // image_bytes) // batch_size) * batch_size


def check_finite(tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Raises: ComputeFailed when training has diverged to NaN or infinity."""
    if not all_finite(tensors):
        raise ComputeFailed(f"Training diverged {where}: a weight is not finite.",
                            remedy="Lower [method] lr, or set clip_norm.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PassesPosition:
    """Where passes over labelled images stand after a batch, besides the model and its momentum."""

    epochs: int
    """Whole passes."""
    batches: int
    """Of the pass under way."""
    steps: int
    skipped: int
    loss_sum: float
    """Of the pass under way."""
    entered: float
    """Images of it that took part in a step."""
    factor: float
    good_steps: int
    """See `semisilo.common.numerics.passes.Descent`."""
    loss: float
    """See `LabelledPasses.loss`."""
    generators: dict[str, Tensor]
    """States as bytes: "order" at the beginning of the pass, "views" at that of the block under way."""


class LabelledPasses:
    """Passes over labelled images on cross-entropy with weak views, shuffled anew in every one.

    They may be left after any batch, and gone on with in another process: `model`, `momentum` and `position` are all
    that the rest follows from, bit for bit.
    """

    def __init__(self, model: nn.Module, labelled: ImageSet, *, form: ImageForm, augmentation: AugmentationSettings,
                 sgd: SGDSettings, batch_size: int, seed: int, purpose: str, round: int = 0,
                 momentum: Mapping[str, Tensor] | None = None, loss_weight: float = 1.0,
                 loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
                 position: PassesPosition | None = None, sampling: LabelledSampling = "shuffled") -> None:
        """See `train_labelled`; `position` is where earlier passes were left.

        Raises: BadData without images or labels; LayoutMismatch for foreign buffers.
        """
        if labelled.labels_N is None or len(labelled) == 0:
            raise BadData("Training needs labelled images; the set has none.")
        self._model = model
        self._images_NCHW, self._labels_N = labelled.images_NCHW, labelled.labels_N
        self._form = form
        self._augmentation = augmentation
        self._batch_size = batch_size
        self._balance_N = self._labels_N if sampling == "class_balanced" else None
        self._loss_weight = loss_weight
        self._loss_of = loss_of
        self._device = next(model.parameters()).device
        self._order = torch_generator(seed, f"{purpose}_order", round=round)
        self._views = torch_generator(seed, f"{purpose}_views", round=round)
        self._optimiser = make_optimiser(model, sgd, momentum)
        self._block = view_block_images(self._images_NCHW, batch_size)
        self.epochs = self.batches = self.steps = self.skipped = 0
        self.loss = float("nan")
        """Mean cross-entropy over the images of the last whole pass; NaN when there was no step."""
        self._mean = RunningMean()
        if position is not None:
            self.epochs, self.batches = position.epochs, position.batches
            self.steps, self.skipped, self.loss = position.steps, position.skipped, position.loss
            self._mean = RunningMean(total=position.loss_sum, count=position.entered)
            self._optimiser.descent.factor = position.factor
            self._optimiser.descent.good_steps = position.good_steps
            self._order.set_state(position.generators["order"])
            self._views.set_state(position.generators["views"])
        self._order_before, self._views_before = self._order.get_state(), self._views.get_state()

    @property
    def images(self) -> int:
        """How many images have been looked at so far, each counted once for every pass."""
        return self.epochs * len(self._labels_N) + min(self.batches * self._batch_size, len(self._labels_N))

    def run(self, *, lr: float) -> Iterator[None]:
        """One pass, or the rest of one that was left; may be left after every batch.

        Draws from torch's global generators (dropout), which whoever runs it has set: see `named_randomness`.
        """
        self._optimiser.lr = lr
        self._model.train()
        self._order.set_state(self._order_before)
        self._views.set_state(self._views_before)
        order_N = epoch_order(len(self._labels_N), self._order, balance_N=self._balance_N)
        first_block, done_of_it = divmod(self.batches, self._block // self._batch_size)
        for chosen in torch.split(order_N, self._block)[first_block:]:
            self._views_before = self._views.get_state()
            weak_NCHW = augment.weak(self._images_NCHW[chosen].to(self._device), self._augmentation, self._views)
            labels_n = self._labels_N[chosen].to(self._device)
            batches = list(zip(torch.split(labels_n, self._batch_size), torch.split(weak_NCHW, self._batch_size),
                               strict=True))[done_of_it:]
            done_of_it = 0
            for labels_B, weak_BCHW in batches:
                self._batch(weak_BCHW, labels_B)
                if self.batches * self._batch_size >= len(self._labels_N):
                    self._end_pass()
                yield

    def _batch(self, weak_BCHW: Tensor, labels_B: Tensor) -> None:
        self.batches += 1
        try:
            loss = self._loss_of(self._model(augment.to_input(weak_BCHW, self._form)), labels_B)
            step(self._optimiser, self._loss_weight * loss)
        except OneValuePerChannel:
            self.skipped += 1
            return
        self._mean.add(loss, count=len(labels_B))
        self.steps += 1

    def _end_pass(self) -> None:
        self.loss = self._mean.value()
        self.epochs, self.batches, self._mean = self.epochs + 1, 0, RunningMean()
        self._order_before, self._views_before = self._order.get_state(), self._views.get_state()

    def momentum(self) -> dict[str, Tensor]:
        """Momentum buffers by parameter, copies on the CPU."""
        return momentum_of(self._optimiser)

    def position(self) -> PassesPosition:
        """Where they stand, for `__init__` of others."""
        return PassesPosition(
            epochs=self.epochs, batches=self.batches, steps=self.steps, skipped=self.skipped, loss=self.loss,
            loss_sum=self._mean.total(), entered=self._mean.count, factor=self._optimiser.descent.factor,
            good_steps=self._optimiser.descent.good_steps,
            generators={"order": self._order_before.clone(), "views": self._views_before.clone()})

    def end(self) -> LabelledTraining:
        """What they leave behind."""
        if self.skipped:
            _LOG.warning("%d of %d batches were skipped: one value per channel at a batch-norm layer",
                         self.skipped, self.skipped + self.steps)
        return LabelledTraining(momentum=self.momentum(), loss=self.loss, steps=self.steps, skipped=self.skipped)


def train_labelled(model: nn.Module, labelled: ImageSet, *, form: ImageForm, augmentation: AugmentationSettings,
                   sgd: SGDSettings, epochs: int, batch_size: int, seed: int, purpose: str, round: int = 0,
                   momentum: Mapping[str, Tensor] | None = None, lr_of_epoch: Callable[[int], float] | None = None,
                   after_epoch: Callable[[int, float], None] | None = None,
                   progress: Callable[[float], None] | None = None, loss_weight: float = 1.0,
                   loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
                   sampling: LabelledSampling = "shuffled") -> LabelledTraining:
    """Trains on cross-entropy with weak views, shuffled anew in every epoch; changes `model` in place.

    Args:
        model: on any device; put into training mode.
        labelled: at least one image, with labels.
        epochs: 0 changes nothing.
        batch_size: the last batch of an epoch may be smaller.
        seed, purpose, round: name the random streams "<purpose>_order", "_views" and "_model".
        momentum: buffers to go on from; None starts anew.
        lr_of_epoch: learning rate of epoch 1, 2, ...; None keeps `sgd.lr`.
        after_epoch: called with the epoch and its mean loss; may evaluate the model.
        progress: called with 0..1 after every batch; may raise to abort.
        loss_weight: factor of the cross-entropy that is minimised; the loss that is reported is without it.
        loss_of: scalar loss of (logits_BK, labels_B) in the place of cross-entropy.
        sampling: "class_balanced" draws every class equally often; the epoch has as many images.
    Raises: BadData without images or labels; LayoutMismatch for foreign buffers.
    """
    passes = LabelledPasses(model, labelled, form=form, augmentation=augmentation, sgd=sgd, batch_size=batch_size,
                            seed=seed, purpose=purpose, round=round, momentum=momentum, loss_weight=loss_weight,
                            loss_of=loss_of, sampling=sampling)
    everything = epochs * len(labelled)
    with named_randomness(seed, f"{purpose}_model", round=round, device=str(next(model.parameters()).device)):
        for epoch in range(1, epochs + 1):
            for _ in passes.run(lr=sgd.lr if lr_of_epoch is None else lr_of_epoch(epoch)):
                if progress is not None:
                    progress(passes.images / everything)
            if after_epoch is not None:
                after_epoch(epoch, passes.loss)
    return passes.end()
