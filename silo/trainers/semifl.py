"""SemiFL at a silo: label once per round with the received model, then train on fix and mix losses.

Source: Diao, Ding and Tarokh, "SemiFL", NeurIPS 2022, section 3 and algorithm 1; official code where marked [C].

Shapes: N unlabelled images, F of them confidently labelled (FIX), B images in a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.learning.losses import PseudoLabels, cross_entropy, pseudo_labels
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import SGD, make_optimiser, momentum_of, sgd_settings, step
from semisilo.common.learning.training import named_randomness
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.silo.objectives.labelling import alignment_of, threshold_of
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.fix_and_mix import logits_of_weak_views, train_fix_and_mix
from semisilo.silo.trainers.parts.kept_momentum import KeptMomentum, momentum_to_go_on_from
from semisilo.silo.trainers.parts.model import (
    difference,
    task_model,
    trained_parameters,
)
from semisilo.silo.trainers.parts.step_sums import StepSums

if TYPE_CHECKING:
    from semisilo.common.data.image_set import ImageSet
    from semisilo.common.methods.semifl import SemiFLSettings

__all__ = ["SemiFLMemory", "SemiFLTrainer"]



@dataclass(frozen=True, kw_only=True)
class SemiFLMemory(KeptMomentum):
    """What a silo keeps between rounds [C]."""


class SemiFLTrainer:
    """The silo half of SemiFL."""

    Memory = SemiFLMemory

    def train(self, task: SiloTask, data: SiloData, memory: SemiFLMemory | None) -> tuple[Update, SemiFLMemory | None]:
        """Phase "train": label, train, return the difference. Phase "statistics": measure batch-norm statistics.

        Abstains with "no_data", "no_confident_example", or "no_usable_batch" when batch-norm could use no batch or
        gradients of all overflowed (fp16); memory then stays as it is.
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
            train_fix_and_mix(task, model, optimiser, unlabelled.images_NCHW, labels, sums)
        if sums.steps == 0 and (sums.skipped or settings.labelling == "round"):
            return Update(abstention="no_usable_batch", num_examples=len(unlabelled), metrics=report.metrics()), memory
        group = difference(task, trained_parameters(task, model))
        return (Update(groups={"model": group}, num_examples=len(unlabelled),
                       metrics={**report.metrics(), **sums.metrics()}),
                SemiFLMemory(momentum=momentum_of(optimiser), round=task.round))


def _label(task: SiloTask, model: nn.Module, images_NCHW: Tensor) -> PseudoLabels:
    """Step 2.1 and 2.2. Distribution alignment takes the mean over all images of the silo."""
    parts = logits_of_weak_views(task, model, images_NCHW)
    if (alignment := alignment_of(task, None)) is not None:
        parts = [alignment.whole(torch.cat(parts))]
    threshold = threshold_of(task, task.settings.confidence_threshold, None)
    return PseudoLabels.joined([pseudo_labels(logits_BK, threshold) for logits_BK in parts])


def _momentum(task: SiloTask, memory: SemiFLMemory | None, received: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    settings: SemiFLSettings = task.settings
    return momentum_to_go_on_from(task, memory, received, persist=settings.persist_local_momentum,
                                  max_age_rounds=settings.momentum_max_age_rounds)


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
    alignment, threshold = alignment_of(task, None), threshold_of(task, settings.confidence_threshold, None)
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
                    if alignment is not None:
                        logits_BK = alignment.batch(logits_BK)
                    labels = pseudo_labels(logits_BK, threshold)
                    if epoch == settings.local_epochs:
                        report.add(labels.hard_label_B, labels.keep_B, None if truth_N is None else truth_N[chosen_B])
                    if bool(labels.keep_B.any()):
                        kept_BCHW = augment.to_input(strong_BCHW[labels.keep_B], task.image)
                        loss = cross_entropy(model(kept_BCHW), labels.hard_label_B[labels.keep_B])
                        sums.add(step(optimiser, settings.fix_weight * loss), loss=loss, fix_loss=loss,
                                 mix_loss=torch.zeros(()))
                task.report(done / total, f"training on {len(images_NCHW)} images")
    sums.tell_skipped()
