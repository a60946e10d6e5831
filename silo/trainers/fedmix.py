"""FedMix at a silo: every batch is labelled by several views of it, then learnt beside a pull towards sigma.

Source: Zhang et al., FedMix (arXiv 2110.13388), Eq. 7 and 8 as `semisilo.common.learning.mixing` has them.

Shapes: N unlabelled images, A views of an image, B images in a batch, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.imbalance.pseudo_labels import Alignment
from semisilo.common.learning.losses import PseudoLabels, Threshold
from semisilo.common.learning.mixing import fedmix_client_loss, fedmix_pseudo
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import make_optimiser, sgd_settings, step
from semisilo.common.learning.sparse_transfer import threshold
from semisilo.common.learning.tensors import all_like
from semisilo.common.learning.training import named_randomness, view_block_images
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.silo.objectives.labelling import alignment_of, threshold_of
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import difference, load_received_statistics, task_model, trained_parameters
from semisilo.silo.trainers.parts.step_sums import StepSums

if TYPE_CHECKING:
    from semisilo.common.methods.fedmix import FedMixSettings

__all__ = ["FedMixTrainer"]


class FedMixTrainer:
    """The silo half of FedMix. It keeps nothing between rounds."""

    Memory = type(None)

    def train(self, task: SiloTask, data: SiloData, memory: None) -> tuple[Update, None]:
        """Phase "train": label and train, return psi_k - w_t. Phase "statistics": measure batch-norm statistics.

        An update is returned even if no image reached the threshold: psi is then pulled to sigma alone. Abstains with
        "no_data", or "no_usable_batch" when batch-norm could use no batch, or gradients of all overflowed (fp16).
        Raises: BadPayload for another phase; LayoutMismatch when a model is not the task's; ComputeFailed when training
            diverges.
        """
        if (measured := outside_training(task, data, "FedMix")) is not None:
            return measured, None
        unlabelled = data.unlabelled
        if unlabelled is None or len(unlabelled) == 0:
            return Update(abstention="no_data"), None
        settings: FedMixSettings = task.settings
        model = task_model(task, task.groups["model"].tensors)
        load_received_statistics(task, model)
        sums, labels = _train(task, model, unlabelled)
        if sums.steps == 0:
            return Update(abstention="no_usable_batch", num_examples=len(unlabelled), metrics=labels.metrics()), None
        group = difference(task, threshold(trained_parameters(task, model), settings.l1_thres))
        group = replace(group, tensors=threshold(group.tensors, settings.delta_thres))
        return Update(groups={"model": group}, num_examples=len(unlabelled),
                      metrics={**labels.metrics(), **sums.metrics()}), None


def _label(task: SiloTask, model: nn.Module, views_ABCHW: Tensor, alignment: Alignment | None,
           threshold: Threshold) -> PseudoLabels:
    """Labels a batch with the model as it is now, in evaluation mode: with the statistics that were received.

    Distribution alignment shifts all views alike, by the running mean over views and images.
    """
    num_views, batch = views_ABCHW.shape[:2]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits_K = model(augment.to_input(views_ABCHW.flatten(0, 1), task.image))
    model.train(was_training)
    if alignment is not None:
        logits_K = alignment.batch(logits_K)
    prob_K = torch.sigmoid(logits_K) if task.settings.multi_label else torch.softmax(logits_K, dim=-1)
    prob_views_ABK = prob_K.reshape(num_views, batch, -1)
    return fedmix_pseudo(prob_views_ABK, threshold, rule=task.settings.label_rule)


def _train(task: SiloTask, model: nn.Module, unlabelled: ImageSet) -> tuple[StepSums, PseudoLabelReport]:
    """Step 3 of a round. Returns: its steps, and what it labelled in the last epoch."""
    settings: FedMixSettings = task.settings
    optimiser = make_optimiser(model, sgd_settings(settings, settings.round_lr))
    psi: dict[str, Tensor] = dict(optimiser.parameters)
    sigma = all_like(psi, task.groups["sigma"].tensors)
    truth_N = unlabelled.labels_N
    alignment, confidence = alignment_of(task, None), threshold_of(task, settings.confidence_threshold, None)
    total, done = settings.local_epochs * len(unlabelled), 0
    sums, report = StepSums(), PseudoLabelReport()
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for batch in _batches(task, unlabelled.images_NCHW):
            if batch.starts_epoch:
                report = PseudoLabelReport()
            labels = _label(task, model, batch.views_ABCHW, alignment, confidence)
            report.add(labels.hard_label_B, labels.keep_B, None if truth_N is None else truth_N[batch.index_B])
            done += len(batch.index_B)
            learnt = settings.lambda_1 > 0 and bool(labels.keep_B.any())
            with sums.batch():
                # The whole batch goes forward, not only what is kept, so that batch-norm sees as much as it can.
                logits_BK = model(augment.to_input(batch.train_BCHW, task.image)) if learnt else None
                found = fedmix_client_loss(logits_BK, labels.hard_label_B, labels.keep_B, psi=psi, sigma=sigma,
                                           lambda_1=settings.lambda_1, lambda_2=settings.lambda_2,
                                           lambda_l1=settings.lambda_l1)
                gradients = step(optimiser, found.loss) if found.loss.requires_grad else None
                sums.add(gradients, loss=found.loss, unlabelled_loss=found.ce, sigma_distance=found.l2)
            task.report(done / total, f"training on {len(unlabelled)} images")
    sums.tell_skipped()
    return sums, report


@dataclass(frozen=True, slots=True)
class _Batch:
    """Indices of a batch and its views, uint8 on the task's device."""

    index_B: Tensor
    views_ABCHW: Tensor
    """For the labels."""
    train_BCHW: Tensor
    """One more view, to be learnt."""
    starts_epoch: bool


def _batches(task: SiloTask, images_NCHW: Tensor) -> Iterator[_Batch]:
    """Every epoch all images in a new order; the last batch may be smaller."""
    settings: FedMixSettings = task.settings
    order, label_views, train_views = (torch_generator(task.seed, purpose, round=task.round, silo=task.silo)
                                       for purpose in ("local_order", "label_views", "local_views"))
    size = settings.unlabelled_batch
    block = view_block_images(images_NCHW, size)
    for _ in range(settings.local_epochs):
        starts = True
        for chosen in torch.split(torch.randperm(len(images_NCHW), generator=order), block):
            images_BCHW = images_NCHW[chosen].to(task.device)
            views_ABCHW = torch.stack([augment.weak(images_BCHW, task.augmentation, label_views)
                                       for _ in range(settings.num_views)])
            train_BCHW = augment.weak(images_BCHW, task.augmentation, train_views)
            for index_B, some_ABCHW, one_BCHW in zip(torch.split(chosen, size), torch.split(views_ABCHW, size, dim=1),
                                                     torch.split(train_BCHW, size), strict=True):
                yield _Batch(index_B, some_ABCHW, one_BCHW, starts)
                starts = False
