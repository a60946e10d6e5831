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
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import derive_seed, torch_generator
from semisilo.common.learning.sgd import SGDSettings, make_optimiser, momentum_of, step
from semisilo.common.learning.tensors import all_finite, load_into
from semisilo.common.methods.contract import ModelBuilder

__all__ = [
    "Evaluation", "LabelledTraining", "SGDSettings", "check_finite", "cosine_lr", "evaluate", "loaded_model",
    "lr_of_round", "make_optimiser", "momentum_of", "named_randomness", "step", "train_labelled", "unloaded_model",
    "view_block_images",
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
        value = derive_seed(seed, purpose, round=round, silo=silo)
        torch.default_generator.manual_seed(value)
        if devices:
            with torch.cuda.device(target):
                torch.cuda.manual_seed(value)
        yield


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


def train_labelled(model: nn.Module, labelled: ImageSet, *, form: ImageForm, augmentation: AugmentationSettings,
                   sgd: SGDSettings, epochs: int, batch_size: int, seed: int, purpose: str, round: int = 0,
                   momentum: Mapping[str, Tensor] | None = None, lr_of_epoch: Callable[[int], float] | None = None,
                   after_epoch: Callable[[int, float], None] | None = None,
                   progress: Callable[[float], None] | None = None, loss_weight: float = 1.0,
                   loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> LabelledTraining:
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
    Raises: BadData without images or labels; LayoutMismatch for foreign buffers.
    """
    if labelled.labels_N is None or len(labelled) == 0:
        raise BadData("Training needs labelled images; the set has none.")
    device = next(model.parameters()).device
    order = torch_generator(seed, f"{purpose}_order", round=round)
    views = torch_generator(seed, f"{purpose}_views", round=round)
    optimiser = make_optimiser(model, sgd, momentum)
    images_NCHW, labels_N = labelled.images_NCHW, labelled.labels_N
    block = view_block_images(images_NCHW, batch_size)
    steps = skipped = done = 0
    loss_mean = float("nan")
    with named_randomness(seed, f"{purpose}_model", round=round, device=str(device)):
        for epoch in range(1, epochs + 1):
            model.train()
            optimiser.lr = sgd.lr if lr_of_epoch is None else lr_of_epoch(epoch)
            mean = RunningMean()
            for chosen in torch.split(torch.randperm(len(labelled), generator=order), block):
                weak_NCHW = augment.weak(images_NCHW[chosen].to(device), augmentation, views)
                parts = (torch.split(part, batch_size) for part in (chosen, weak_NCHW, labels_N[chosen].to(device)))
                for index, weak_BCHW, labels_B in zip(*parts, strict=True):
                    done += len(index)
                    try:
                        loss = loss_of(model(augment.to_input(weak_BCHW, form)), labels_B)
                        step(optimiser, loss_weight * loss)
                        mean.add(loss, count=len(index))
                        steps += 1
                    except OneValuePerChannel:
                        skipped += 1
                    if progress is not None:
                        progress(done / (epochs * len(labelled)))
            loss_mean = mean.value()
            if after_epoch is not None:
                after_epoch(epoch, loss_mean)
    if skipped:
        _LOG.warning("%d of %d batches were skipped: one value per channel at a batch-norm layer",
                     skipped, skipped + steps)
    for parameter in optimiser.parameters.values():
        parameter.grad = None  # as large as the model, and of no more use
    return LabelledTraining(momentum=momentum_of(optimiser), loss=loss_mean, steps=steps, skipped=skipped)
