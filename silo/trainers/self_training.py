"""Self-training at a silo: estimate the class shares, label under them, train with them added to the logits.

The equations and sources: `semisilo.common.methods.self_training`; the losses are SemiFL's.

Shapes: N unlabelled images, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning.averaged_training import AveragedTraining
from semisilo.common.learning.imbalance.labels import log_odds, smoothed_shares
from semisilo.common.learning.imbalance.prevalence import estimate_prevalence
from semisilo.common.learning.imbalance.pseudo_labels import align_logits
from semisilo.common.learning.losses import ClassThresholds, PseudoLabels, pseudo_labels
from semisilo.common.learning.sgd import make_optimiser, momentum_of, sgd_settings
from semisilo.common.learning.tensors import parameters_of
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.self_training import FEW_CLASSES, SelfTrainingSettings
from semisilo.silo.objectives import make_objective, train_locally
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.adaptive_batch_norm import adaptive_logits, received_logits
from semisilo.silo.trainers.parts.fix_and_mix import LogPriors, train_fix_and_mix
from semisilo.silo.trainers.parts.kept_momentum import KeptMomentum, momentum_to_go_on_from
from semisilo.silo.trainers.parts.model import difference, lacks_statistics, task_model, trained_parameters
from semisilo.silo.trainers.parts.step_sums import StepSums

__all__ = ["OwnLabels", "SelfTrainingMemory", "SelfTrainingTrainer", "labels_under_own_prior", "log_shares"]

_SMOOTHING, _SMOOTHING_OF_FEW = 0.1, 0.003
"""Share of the labels that is counted once more, evenly over the classes: a class that got none is then not
impossible in the losses, and log of its share is finite. Of pseudo-labels of fewer than `FEW_CLASSES`, and of findings,
each of which is a problem of two classes, the smaller one: of two classes the larger gives 4.5 % to a class that got
none, and each label of the other one pushes it down."""


@dataclass(frozen=True, kw_only=True)
class SelfTrainingMemory(KeptMomentum):
    """What a silo keeps between rounds."""


class SelfTrainingTrainer:
    """The silo half of self-training."""

    Memory = SelfTrainingMemory

    def train(self, task: SiloTask, data: SiloData,
              memory: SelfTrainingMemory | None) -> tuple[Update, SelfTrainingMemory | None]:
        """Phase "train": label, train on the labels made and on own ones, return the difference. Phase "statistics":
        measure batch-norm statistics.

        Abstains with "no_data", "no_labelled_data" in rounds in which only labels are learnt from, "no_statistics" when
        nobody has measured batch-norm statistics to label with yet (a silo with labels learns from these alone),
        "no_confident_example", or "no_usable_batch" when batch-norm could use no batch; memory then stays as it is.
        Raises: BadPayload for another phase, or a prior of another number of classes; LayoutMismatch when the model is
            not the task's; ComputeFailed when training diverges.
        """
        if (measured := outside_training(task, data, "Self-training")) is not None:
            return measured, memory
        settings: SelfTrainingSettings = task.settings
        labelled = _some(data.labelled) if settings.labels_at_silos else None
        unlabelled = _some(data.unlabelled)
        if labelled is None and unlabelled is None:
            return Update(abstention="no_data"), memory
        if not settings.labels_at_coordinator and task.round <= settings.warm_up_rounds:
            if labelled is None:
                return Update(abstention="no_labelled_data", num_examples=_count(unlabelled)), memory
            unlabelled = None
        received = task.groups["model"].tensors
        model = task_model(task, received)
        if unlabelled is not None and task.private is None and lacks_statistics(task, model):
            if labelled is None:
                return Update(abstention="no_statistics", num_examples=_count(unlabelled)), memory
            unlabelled = None
        size = _count(labelled) + _count(unlabelled)
        report, sums = PseudoLabelReport(), StepSums()
        momentum = momentum_to_go_on_from(task, memory, received, persist=settings.persist_local_momentum,
                                          max_age_rounds=settings.momentum_max_age_rounds)
        if task.private is not None:
            assert unlabelled is not None, "with labels at the coordinator a silo has no others"
            return _trained_privately(task, model, unlabelled, momentum)
        kept = 0
        if unlabelled is not None:
            own, num_classes = _labels(task, model, unlabelled)
            labels = own.labels
            report.add(labels.hard_label_B, labels.keep_B, unlabelled.labels_N)
            if kept := int(labels.keep_B.sum()):
                optimiser = make_optimiser(model, sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov),
                                           momentum)
                train_fix_and_mix(task, model, optimiser, unlabelled.images_NCHW, labels, sums, partners=own.partners,
                                  priors=_priors(task, own, num_classes))
                momentum = momentum_of(optimiser)
        told = {**report.metrics(), **sums.metrics()} if sums.steps else dict(report.metrics())
        if labelled is not None:
            training = _trained_on_own(task, model, labelled, momentum)
            momentum, told = training.momentum(), {**told, "labelled_loss": training.loss}
        elif not kept:
            return Update(abstention="no_confident_example", num_examples=size, metrics=told), memory
        elif sums.steps == 0:
            return Update(abstention="no_usable_batch", num_examples=size, metrics=told), memory
        assert momentum is not None
        group = difference(task, trained_parameters(task, model))
        return (Update(groups={"model": group}, num_examples=size, metrics=told),
                SelfTrainingMemory(momentum=momentum, round=task.round))


def _trained_privately(task: SiloTask, model: nn.Module, unlabelled: ImageSet,
                       momentum: Mapping[str, Tensor] | None) -> tuple[Update, SelfTrainingMemory]:
    """A round with differential privacy of images: FixMatch, whatever the images look like. That none got a confident
    label is no reason to abstain, for it would say so."""
    settings: SelfTrainingSettings = task.settings
    alone = replace(task, settings=settings.under_privacy)
    optimiser = make_optimiser(model, sgd_settings(alone.settings, settings.round_lr, nesterov=settings.nesterov),
                               momentum)
    found = train_locally(alone, model, optimiser, make_objective(alone, model, None, unlabelled), None, unlabelled)
    group = difference(task, trained_parameters(task, model))
    return (Update(groups={"model": group}, num_examples=len(unlabelled), metrics=found.metrics),
            SelfTrainingMemory(momentum=momentum_of(optimiser), round=task.round))


def _some(images: ImageSet | None) -> ImageSet | None:
    return None if images is None or len(images) == 0 else images


def _count(images: ImageSet | None) -> int:
    return 0 if images is None else len(images)


def _labels(task: SiloTask, model: nn.Module, unlabelled: ImageSet) -> tuple[OwnLabels, int]:
    """Of all images, with the number of classes. Raises: BadPayload without a prior for every class."""
    settings: SelfTrainingSettings = task.settings
    images_NCHW = unlabelled.images_NCHW
    logits_NK = adaptive_logits(task, model, images_NCHW, multi_label=settings.multi_label) \
        if settings.label_statistics == "adaptive" else received_logits(task, model, images_NCHW)
    if len(settings.model_prior) != logits_NK.shape[1]:
        raise _missing_prior()
    return labels_under_own_prior(logits_NK, settings), logits_NK.shape[1]


def _missing_prior() -> BadPayload:
    return BadPayload("The task does not say model_prior for every class.",
                      remedy="Tell the coordinator's operator: both sides may be of different versions.")


def _trained_on_own(task: SiloTask, model: nn.Module, labelled: ImageSet,
                    momentum: Mapping[str, Tensor] | None) -> AveragedTraining:
    """`labelled_steps` on the silo's labels, from the weights that the model has, in place; done.

    Their class shares are added to the logits, smoothed as those of kept labels: a silo may lack classes.
    Raises: BadPayload without a prior for every class, whose number it tells.
    """
    settings: SelfTrainingSettings = task.settings
    if not settings.model_prior:
        raise _missing_prior()
    assert labelled.labels_N is not None
    log_prior_K = None
    if settings.logit_adjustment and settings.multi_label:
        log_prior_K = settings.logit_adjustment * log_odds(_smoothed_odds(labelled.labels_N))
    elif settings.logit_adjustment:
        counts_K = torch.bincount(labelled.labels_N.cpu(), minlength=len(settings.model_prior))
        log_prior_K = (settings.logit_adjustment * smoothed_shares(counts_K, _SMOOTHING).log()).float()
    training = AveragedTraining(
        task, model, labelled, log_prior_K=log_prior_K, initial=parameters_of(model), steps=settings.labelled_steps,
        sgd=sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov), cosine=False, momentum=momentum,
        batch_size=settings.labelled_batch, purpose=f"own_labels_round_{task.round}_of_{task.silo}")
    for _ in training.run():
        task.report(training.done / training.steps, f"training on {len(labelled)} labelled images")
    return training


@dataclass(frozen=True, slots=True)
class OwnLabels:
    """What a silo's images are labelled."""

    labels: PseudoLabels
    """Of which the kept ones are learnt from."""
    partners: Tensor
    """What they count as where they are partners of MixUp, kept or not: the hard labels; of fewer than `FEW_CLASSES`
    classes soft ones, float32 (N, K)."""


def labels_under_own_prior(logits_NK: Tensor, settings: SelfTrainingSettings) -> OwnLabels:
    """Pseudo-labels of a silo's images under the class shares that these images themselves speak for.

        s = estimate_prevalence(softmax(f))      p_i = softmax(f_i + log s - log model_prior)

    kept where the largest p reaches the threshold. With silo_prior = "model" p is softmax(f). With several labels for
    an image every class is a two-class problem of its own, shown or not.

    A partner of few classes is labelled by p itself, as in MixMatch (Berthelot et al., NeurIPS 2019, Eq. 6, without its
    sharpening): a hard one would count in full, however much the image is in doubt
    (docs/decisions/0103-soft-partners-of-few-classes.md).
    Args:
        logits_NK: of weak views of all images, on the CPU; at least one image.
    Source: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), Eq. 2.4 and 2.9.
    """
    logits_NK = logits_NK.double()
    if settings.multi_label:
        labels = _findings_under_own_prior(logits_NK, settings)
        return OwnLabels(labels, labels.hard_label_B)
    num_classes = logits_NK.shape[1]
    if settings.silo_prior == "estimated":
        shares = estimate_prevalence(torch.softmax(logits_NK, dim=1).numpy(), trained=settings.model_prior,
                                     smoothing=settings.smoothing_of(num_classes)).shares
        logits_NK = align_logits(logits_NK, torch.tensor(shares), torch.tensor(settings.model_prior))
    labels = pseudo_labels(logits_NK, settings.threshold_of(num_classes))
    return OwnLabels(labels, torch.softmax(logits_NK, dim=1).float() if num_classes < FEW_CLASSES
                     else labels.hard_label_B)


def _findings_under_own_prior(logits_NK: Tensor, settings: SelfTrainingSettings) -> PseudoLabels:
    """`labels_under_own_prior` of each class against its absence."""
    if settings.silo_prior == "estimated":
        model_K, found = settings.model_prior, []
        # Each outcome as a class among several.
        smoothing = 2 * settings.smoothing_of(len(model_K)) / len(model_K)
        p_NK = torch.sigmoid(logits_NK).numpy()
        for p_N, share in zip(p_NK.T, model_K, strict=True):
            both_N2 = np.stack([p_N, 1.0 - p_N], axis=1)
            found.append(estimate_prevalence(both_N2, trained=(share, 1.0 - share),
                                             smoothing=smoothing).shares[0])
        logits_NK = logits_NK + torch.logit(torch.tensor(found).double()) - torch.logit(torch.tensor(model_K).double())
    return pseudo_labels(logits_NK, ClassThresholds(settings.threshold, settings.negative_below(settings.threshold)))


def _smoothed_odds(rows_NK: Tensor) -> Tensor:
    """Share of each class among the known labels of multi-hot rows, smoothed as `smoothed_shares` of few classes: shown
    or not."""
    rows_NK = rows_NK.cpu()
    known_K, shown_K = (rows_NK >= 0).sum(dim=0).double(), (rows_NK == 1).sum(dim=0).double()
    known_K = known_K.clamp(min=1)
    return (shown_K + 0.5 * _SMOOTHING_OF_FEW * known_K) / (known_K * (1.0 + _SMOOTHING_OF_FEW))


def _priors(task: SiloTask, own: OwnLabels, num_classes: int) -> LogPriors | None:
    """On the task's device; None where nothing is added."""
    if not (strength := task.settings.local_logit_adjustment):
        return None
    hard = own.labels.hard_label_B
    kept = hard if hard.ndim == 2 else hard[own.labels.keep_B]
    return LogPriors(*(log_shares(each, num_classes, strength=strength).to(task.device)
                       for each in (kept, own.partners)))


def log_shares(labels_N: Tensor, num_classes: int, *, strength: float) -> Tensor:
    """strength * log(class shares of the labels), float32 (K,). With several labels for an image of each class the log
    odds of its share among those that are known of that class.

    Added to the logits of a loss it lets the model learn what tells the classes apart and not how frequent they are
    here; a class without labels is hardly pushed down.
    Args:
        labels_N: of at least one image, int64 (N,); or multi-hot rows, int8 (N, K), -1 where a class is not known; or
            soft labels, float (N, K), of which the share of each class is the mean.
    Source: Menon et al., ICLR 2021, Eq. 10, with the shares of one silo as in FedLC, Zhang et al., ICML 2022, Eq. 6.
    """
    if labels_N.is_floating_point():
        counts_K = labels_N.double().sum(dim=0)
    elif labels_N.ndim == 2:
        return strength * log_odds(_smoothed_odds(labels_N))
    else:
        counts_K = torch.bincount(labels_N, minlength=num_classes)
    smoothing = _SMOOTHING_OF_FEW if num_classes < FEW_CLASSES else _SMOOTHING
    return (strength * smoothed_shares(counts_K, smoothing).log()).float()
