"""Pseudo-labels of all images once a round, and training on them with a fix loss and a mix loss, as SemiFL does it.

Source: Diao, Ding and Tarokh, "SemiFL", NeurIPS 2022, section 3 and algorithm 1; official code where marked [C].

Shapes: N unlabelled images, F of them confidently labelled (FIX), B images in a batch, K classes.

Tests: tests/silo/trainers/test_semifl.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.learning import batch_norm
from semisilo.common.learning.evaluation import inference_batches, logits_of
from semisilo.common.learning.losses import PseudoLabels, cross_entropy, mix, mix_loss
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.sgd import SGD, learn, step
from semisilo.common.learning.training import named_randomness, view_block_images
from semisilo.common.methods.contract import SiloTask
from semisilo.common.numerics.passes import Gradients, Term
from semisilo.silo.trainers.parts.model import load_received_statistics
from semisilo.silo.trainers.parts.step_sums import StepSums

__all__ = ["FixAndMixSettings", "LogPriors", "logits_of_weak_views", "train_fix_and_mix"]

_VIEW_BATCH, _VIEWS_TOGETHER = 250, 8
"""Images whose views for labelling are drawn at once, and how many times as many are then labelled at once."""
_LABELLING_SHARE = 0.1
"""Of the reported progress; labelling is one forward pass, training 4 * local_epochs passes and more."""


class FixAndMixSettings(Protocol):
    """What the settings of a method need that trains so; see `semisilo.common.methods.semifl.SemiFLSettings`."""

    @property
    def local_epochs(self) -> int:
        """Passes over the kept images."""

    @property
    def unlabelled_batch(self) -> int:
        """Images in a batch."""

    @property
    def fix_weight(self) -> float:
        """Of the fix loss."""

    @property
    def mix_weight(self) -> float:
        """Of the mix loss."""

    @property
    def mixup_a(self) -> float:
        """Of MixUp's Beta(a, a)."""

    @property
    def joined_passes(self) -> bool:
        """Whether both batches go through the network as one."""


@dataclass(frozen=True, slots=True)
class LogPriors:
    """What is added to the logits in the losses, float32 (K,), on the task's device: the strengthened log of class
    shares."""

    kept_K: Tensor
    """Of the labels that were kept: in the fix loss, and in the mix loss for the kept image."""
    all_K: Tensor
    """Of the labels that partners have, of all images, in doubt or not: in the mix loss for the partner."""


def logits_of_weak_views(task: SiloTask, model: nn.Module, images_NCHW: Tensor, *,
                         statistics: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """One weak view of every image, in order, through the model in evaluation mode with the received statistics.

    Args:
        statistics: others than the received ones, for the same views.
    Returns: logits, in parts, together float (N, K).
    """
    if statistics is None:
        load_received_statistics(task, model)
    else:
        batch_norm.load(model, statistics)
    model.eval()
    views = torch_generator(task.seed, "label_views", round=task.round, silo=task.silo)
    parts: list[Tensor] = []
    cuts = list(inference_batches(len(images_NCHW), _VIEW_BATCH))
    for some in (cuts[first:first + _VIEWS_TOGETHER] for first in range(0, len(cuts), _VIEWS_TOGETHER)):
        weak_BCHW = torch.cat([augment.weak(images_NCHW[cut].to(task.device), task.augmentation, views)
                               for cut in some])
        parts.append(logits_of(model, weak_BCHW, task.image))
        task.report(_LABELLING_SHARE * some[-1].stop / len(images_NCHW), "labelling")
    return parts


def train_fix_and_mix(task: SiloTask, model: nn.Module, optimiser: SGD, images_NCHW: Tensor, labels: PseudoLabels,
                      sums: StepSums, *, partners: Tensor | None = None, priors: LogPriors | None = None) -> None:
    """Steps 2.4 and 2.5: `local_epochs` over the kept images, in place; at least one image must be kept.

    Args:
        partners: what the partners of MixUp, which are drawn from all images, are labelled: classes, multi-hot rows or
            soft labels, as `cross_entropy` takes them, of N images. None: the labels, kept or not.
        priors: added to the logits; None adds nothing.
    """
    settings: FixAndMixSettings = task.settings
    lams = numpy_generator(task.seed, "mixup", round=task.round, silo=task.silo)
    kept_F = torch.nonzero(labels.keep_B).flatten()
    train_step = _joined_step if settings.joined_passes else _step
    total, done = settings.local_epochs * len(kept_F), 0
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for batch in _batches(task, images_NCHW, labels.hard_label_B,
                              labels.hard_label_B if partners is None else partners, kept_F):
            done += len(batch.fix_B)
            lam = float(lams.beta(settings.mixup_a, settings.mixup_a))
            with sums.batch():
                found = train_step(task, model, optimiser, batch, lam, priors)
                sums.add(found.gradients, loss=found.loss, fix_loss=found.fix, mix_loss=found.mix)
            task.report(_LABELLING_SHARE + (1 - _LABELLING_SHARE) * done / total, f"training on {len(kept_F)} images")
    sums.tell_skipped()


@dataclass(frozen=True, slots=True)
class _Losses:
    """Of a step, and its gradients. Losses are scalars (), detached; None for a term of weight 0."""

    gradients: Gradients
    loss: Tensor
    fix: Tensor | None
    mix: Tensor | None


def _step(task: SiloTask, model: nn.Module, optimiser: SGD, batch: _Batch, lam: float,
          priors: LogPriors | None) -> _Losses:
    """fix_weight L_fix + mix_weight L_mix, with L_fix = CE(f(strong(x_fix)), y_fix). Source: Eq. 3 to 5.

    Two passes: batch-norm uses the statistics of each. A term of weight 0 costs nothing.
    """
    def fix() -> Tensor:
        return _fix_loss(model(_strong(task, batch)), batch, priors)

    def mixed() -> Tensor:
        return _mix_loss(model(_mixed(task, batch, lam)), batch, lam, priors)

    weighted = (task.settings.fix_weight, fix), (task.settings.mix_weight, mixed)
    found = learn(optimiser, [Term(weight, loss) for weight, loss in weighted if weight])
    losses = iter(found.losses)
    return _Losses(found, found.total, *(next(losses) if weight else None for weight, _ in weighted))


def _joined_step(task: SiloTask, model: nn.Module, optimiser: SGD, batch: _Batch, lam: float,
                 priors: LogPriors | None) -> _Losses:
    """The same with one pass for both batches."""
    logits_2BK = model(torch.cat([_strong(task, batch), _mixed(task, batch, lam)]))
    strong_logits_BK, mix_logits_BK = torch.split(logits_2BK, len(batch.fix_B))
    fix = _fix_loss(strong_logits_BK, batch, priors)
    mixed = _mix_loss(mix_logits_BK, batch, lam, priors)
    loss = task.settings.fix_weight * fix + task.settings.mix_weight * mixed
    return _Losses(step(optimiser, loss), loss.detach(), fix.detach(), mixed.detach())


def _fix_loss(logits_BK: Tensor, batch: _Batch, priors: LogPriors | None) -> Tensor:
    return cross_entropy(logits_BK if priors is None else logits_BK + priors.kept_K, batch.fix_B)


def _mix_loss(logits_BK: Tensor, batch: _Batch, lam: float, priors: LogPriors | None) -> Tensor:
    """`mix_loss`, each label with the shares of those that it was drawn from: a partner that is in doubt is far more
    often of a rare class than a kept image."""
    if priors is None:
        return mix_loss(logits_BK, batch.fix_B, batch.mix_B, lam)
    return (lam * cross_entropy(logits_BK + priors.kept_K, batch.fix_B)
            + (1.0 - lam) * cross_entropy(logits_BK + priors.all_K, batch.mix_B))


def _strong(task: SiloTask, batch: _Batch) -> Tensor:
    return augment.to_input(batch.strong_BCHW, task.image)


def _mixed(task: SiloTask, batch: _Batch, lam: float) -> Tensor:
    """The mixture of weak views with one Beta(a, a) draw for the whole batch."""
    weak_BCHW, other_BCHW = (augment.to_input(view, task.image) for view in (batch.weak_BCHW, batch.mix_BCHW))
    return mix(weak_BCHW, other_BCHW, lam)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A FIX batch and its MIX batch, on the task's device: pseudo-labels int64 (B,), or other forms that
    `cross_entropy` takes, and views uint8 (B, C, H, W)."""

    fix_B: Tensor
    mix_B: Tensor
    strong_BCHW: Tensor
    weak_BCHW: Tensor
    mix_BCHW: Tensor


def _batches(task: SiloTask, images_NCHW: Tensor, label_N: Tensor, partner_label_N: Tensor,
             kept_F: Tensor) -> Iterator[_Batch]:
    """Every epoch: FIX in a new order, each image beside one drawn with replacement from all images.

    The partners are drawn anew in every epoch, as the official code does at every access.
    """
    settings: FixAndMixSettings = task.settings
    order, partners, views = (torch_generator(task.seed, purpose, round=task.round, silo=task.silo)
                              for purpose in ("local_order", "mix_index", "local_views"))
    size = settings.unlabelled_batch
    block = view_block_images(images_NCHW, size)
    for _ in range(settings.local_epochs):
        fix_F = kept_F[torch.randperm(len(kept_F), generator=order)]
        mix_F = torch.randint(len(images_NCHW), (len(kept_F),), generator=partners)
        for fix, mixed in zip(torch.split(fix_F, block), torch.split(mix_F, block), strict=True):
            images_BCHW, others_BCHW = (images_NCHW[index].to(task.device) for index in (fix, mixed))
            strong = augment.strong(images_BCHW, task.augmentation, views)
            weak = augment.weak(images_BCHW, task.augmentation, views)
            other = augment.weak(others_BCHW, task.augmentation, views)
            fix_B, mix_B = label_N[fix].to(task.device), partner_label_N[mixed].to(task.device)
            parts = zip(*(torch.split(part, size) for part in (fix_B, mix_B, strong, weak, other)), strict=True)
            yield from (_Batch(*part) for part in parts)
