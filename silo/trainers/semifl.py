"""SemiFL at a silo: label once per round with the received model, then train on fix and mix losses.

Source: Diao, Ding and Tarokh, "SemiFL", NeurIPS 2022, section 3 and algorithm 1; official code where marked [C].

Shapes: N unlabelled images, F of them confidently labelled (FIX), B images in a batch, K classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.learning.evaluation import inference_batches, logits_of
from semisilo.common.learning.losses import PseudoLabels, cross_entropy, mix, mix_loss, pseudo_labels
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.sgd import SGD, learn, make_optimiser, momentum_of, sgd_settings, step
from semisilo.common.learning.training import named_randomness, view_block_images
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.numerics.passes import Term
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import (
    difference,
    load_received_statistics,
    task_model,
    that_fits,
    trained_parameters,
)
from semisilo.silo.trainers.parts.step_sums import StepSums

if TYPE_CHECKING:
    from semisilo.common.data.image_set import ImageSet
    from semisilo.common.methods import SemiFLSettings

__all__ = ["SemiFLMemory", "SemiFLTrainer"]

_LOG = logging.getLogger("semisilo.silo")
_VIEW_BATCH, _VIEWS_TOGETHER = 250, 8
"""Images whose views for labelling are drawn at once, and how many times as many are then labelled at once."""
_LABELLING_SHARE = 0.1
"""Of the reported progress; labelling is one forward pass, training 4 * local_epochs passes and more."""


@dataclass(frozen=True, kw_only=True)
class SemiFLMemory:
    """What a silo keeps between rounds."""

    momentum: dict[str, Tensor]
    """SGD momentum at the end of the silo's last accepted participation [C]."""
    round: int
    """That participation's round."""


class SemiFLTrainer:
    """The silo half of SemiFL."""

    Memory = SemiFLMemory

    def train(self, task: SiloTask, data: SiloData, memory: SemiFLMemory | None) -> tuple[Update, SemiFLMemory | None]:
        """Phase "train": label, train, return the difference. Phase "statistics": measure batch-norm statistics.

        Abstains with "no_data", "no_confident_example", or "no_usable_batch" when batch-norm could use no batch;
        memory then stays as it is.
        Raises: BadPayload for another phase; LayoutMismatch when the model is not the task's; ComputeFailed when
            training diverges.
        """
        unlabelled = data.unlabelled
        if unlabelled is None or len(unlabelled) == 0:
            return Update(abstention="no_data"), memory
        if (measured := outside_training(task, data, "SemiFL")) is not None:
            return measured, memory
        settings: SemiFLSettings = task.settings
        received = task.groups["model"].tensors
        model = task_model(task, received)
        optimiser = make_optimiser(model, sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov),
                                   _momentum(task, memory, received))
        report, sums = PseudoLabelReport(), StepSums()
        if settings.labelling == "batch":
            _train_batchwise(task, model, optimiser, unlabelled, report, sums)
        else:
            labels = _label(task, model, unlabelled.images_NCHW)
            report.add(labels.hard_label_B, labels.keep_B, unlabelled.labels_N)
            if not labels.keep_B.any():
                return Update(abstention="no_confident_example", num_examples=len(unlabelled),
                              metrics=report.metrics()), memory
            _train(task, model, optimiser, unlabelled.images_NCHW, labels, sums)
        if sums.steps == 0 and (sums.skipped or settings.labelling == "round"):
            return Update(abstention="no_usable_batch", num_examples=len(unlabelled), metrics=report.metrics()), memory
        group = difference(task, trained_parameters(task, model))
        return (Update(groups={"model": group}, num_examples=len(unlabelled),
                       metrics={**report.metrics(), **sums.metrics()}),
                SemiFLMemory(momentum=momentum_of(optimiser), round=task.round))


def _label(task: SiloTask, model: nn.Module, images_NCHW: Tensor) -> PseudoLabels:
    """Step 2.1 and 2.2: one pass over all images, one weak view each, in order, with the received statistics."""
    load_received_statistics(task, model)
    model.eval()
    views = torch_generator(task.seed, "label_views", round=task.round, silo=task.silo)
    parts: list[PseudoLabels] = []
    cuts = list(inference_batches(len(images_NCHW), _VIEW_BATCH))
    for some in (cuts[first:first + _VIEWS_TOGETHER] for first in range(0, len(cuts), _VIEWS_TOGETHER)):
        weak_BCHW = torch.cat([augment.weak(images_NCHW[cut].to(task.device), task.augmentation, views)
                               for cut in some])
        parts.append(pseudo_labels(logits_of(model, weak_BCHW, task.image), task.settings.confidence_threshold))
        task.report(_LABELLING_SHARE * some[-1].stop / len(images_NCHW), "labelling")
    return PseudoLabels.joined(parts)


def _momentum(task: SiloTask, memory: SemiFLMemory | None, received: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The buffers to go on from; None starts anew: the first time, by setting, after a long absence, or when the
    memory is another model's."""
    settings: SemiFLSettings = task.settings
    if memory is None or not settings.persist_local_momentum:
        return None
    if settings.momentum_max_age_rounds and task.round - memory.round > settings.momentum_max_age_rounds:
        _LOG.info("momentum of round %d is older than %d rounds and starts anew", memory.round,
                  settings.momentum_max_age_rounds)
        return None
    return that_fits(memory.momentum, received, "momentum")


def _train(task: SiloTask, model: nn.Module, optimiser: SGD, images_NCHW: Tensor, labels: PseudoLabels,
           sums: StepSums) -> None:
    """Step 2.4 and 2.5."""
    settings: SemiFLSettings = task.settings
    lams = numpy_generator(task.seed, "mixup", round=task.round, silo=task.silo)
    kept_F = torch.nonzero(labels.keep_B).flatten()
    total, done = settings.local_epochs * len(kept_F), 0
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for batch in _batches(task, images_NCHW, labels.hard_label_B, kept_F):
            done += len(batch.fix_B)
            lam = float(lams.beta(settings.mixup_a, settings.mixup_a))
            with sums.batch():
                found = (_joined_step if settings.joined_passes else _step)(task, model, optimiser, batch, lam)
                sums.add(loss=found.loss, fix_loss=found.fix, mix_loss=found.mix)
            task.report(_LABELLING_SHARE + (1 - _LABELLING_SHARE) * done / total, f"training on {len(kept_F)} images")
    sums.tell_skipped()


@dataclass(frozen=True, slots=True)
class _Losses:
    """Of a step, scalars (), detached; None for a term of weight 0."""

    loss: Tensor
    fix: Tensor | None
    mix: Tensor | None


def _step(task: SiloTask, model: nn.Module, optimiser: SGD, batch: _Batch, lam: float) -> _Losses:
    """fix_weight L_fix + mix_weight L_mix, with L_fix = CE(f(strong(x_fix)), y_fix). Source: Eq. 3 to 5.

    Two passes: batch-norm uses the statistics of each. A term of weight 0 costs nothing.
    """
    def fix() -> Tensor:
        return cross_entropy(model(_strong(task, batch)), batch.fix_B)

    def mixed() -> Tensor:
        return mix_loss(model(_mixed(task, batch, lam)), batch.fix_B, batch.mix_B, lam)

    weighted = (task.settings.fix_weight, fix), (task.settings.mix_weight, mixed)
    found = learn(optimiser, [Term(weight, loss) for weight, loss in weighted if weight])
    losses = iter(found.losses)
    return _Losses(found.total, *(next(losses) if weight else None for weight, _ in weighted))


def _joined_step(task: SiloTask, model: nn.Module, optimiser: SGD, batch: _Batch, lam: float) -> _Losses:
    """The same with one pass for both batches."""
    logits_2BK = model(torch.cat([_strong(task, batch), _mixed(task, batch, lam)]))
    strong_logits_BK, mix_logits_BK = torch.split(logits_2BK, len(batch.fix_B))
    fix = cross_entropy(strong_logits_BK, batch.fix_B)
    mixed = mix_loss(mix_logits_BK, batch.fix_B, batch.mix_B, lam)
    loss = task.settings.fix_weight * fix + task.settings.mix_weight * mixed
    step(optimiser, loss)
    return _Losses(loss.detach(), fix.detach(), mixed.detach())


def _strong(task: SiloTask, batch: _Batch) -> Tensor:
    return augment.to_input(batch.strong_BCHW, task.image)


def _mixed(task: SiloTask, batch: _Batch, lam: float) -> Tensor:
    """The mixture of weak views with one Beta(a, a) draw for the whole batch."""
    weak_BCHW, other_BCHW = (augment.to_input(view, task.image) for view in (batch.weak_BCHW, batch.mix_BCHW))
    return mix(weak_BCHW, other_BCHW, lam)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A FIX batch and its MIX batch, on the task's device: pseudo-labels int64 (B,), and views uint8 (B, C, H, W)."""

    fix_B: Tensor
    mix_B: Tensor
    strong_BCHW: Tensor
    weak_BCHW: Tensor
    mix_BCHW: Tensor


def _batches(task: SiloTask, images_NCHW: Tensor, hard_label_N: Tensor, kept_F: Tensor) -> Iterator[_Batch]:
    """Every epoch: FIX in a new order, each image beside one drawn with replacement from all images.

    The partners are drawn anew in every epoch, as the official code does at every access.
    """
    settings: SemiFLSettings = task.settings
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
            fix_B, mix_B = (hard_label_N[index].to(task.device) for index in (fix, mixed))
            parts = zip(*(torch.split(part, size) for part in (fix_B, mix_B, strong, weak, other)), strict=True)
            yield from (_Batch(*part) for part in parts)


def _train_batchwise(task: SiloTask, model: nn.Module, optimiser: SGD, unlabelled: ImageSet,
                     report: PseudoLabelReport, sums: StepSums) -> None:
    """The rows "per-batch labels" of the paper's Table 2 [C].

    Every weak batch is labelled with the model under training and that batch's own batch-norm statistics; the loss is
    the mean over the kept images, and a batch with none is passed over. The report counts the last epoch.
    """
    settings: SemiFLSettings = task.settings
    images_NCHW, truth_N = unlabelled.images_NCHW, unlabelled.labels_N
    order, views = (torch_generator(task.seed, purpose, round=task.round, silo=task.silo)
                    for purpose in ("local_order", "local_views"))
    total, done = settings.local_epochs * len(images_NCHW), 0
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for epoch in range(1, settings.local_epochs + 1):
            for chosen_B in torch.split(torch.randperm(len(images_NCHW), generator=order), settings.unlabelled_batch):
                images_BCHW = images_NCHW[chosen_B].to(task.device)
                weak_BCHW = augment.weak(images_BCHW, task.augmentation, views)
                strong_BCHW = augment.strong(images_BCHW, task.augmentation, views)
                done += len(chosen_B)
                with sums.batch():
                    with torch.no_grad():
                        logits_BK = model(augment.to_input(weak_BCHW, task.image))
                    labels = pseudo_labels(logits_BK, settings.confidence_threshold)
                    if epoch == settings.local_epochs:
                        report.add(labels.hard_label_B, labels.keep_B, None if truth_N is None else truth_N[chosen_B])
                    if bool(labels.keep_B.any()):
                        kept_BCHW = augment.to_input(strong_BCHW[labels.keep_B], task.image)
                        loss = cross_entropy(model(kept_BCHW), labels.hard_label_B[labels.keep_B])
                        step(optimiser, settings.fix_weight * loss)
                        sums.add(loss=loss, fix_loss=loss, mix_loss=torch.zeros(()))
                task.report(done / total, f"training on {len(images_NCHW)} images")
