"""The local objectives by name, and the training of one round with any of them.

A trainer that has a model to start from calls `make_objective` and `train_locally`; what it sends and keeps is its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.learning.consistency import tsa_threshold
from semisilo.common.learning.imbalance.labels import adjust_logits, class_shares, weighted_loss
from semisilo.common.learning.imbalance.pseudo_labels import Alignment
from semisilo.common.learning.losses import Threshold
from semisilo.common.learning.soft_labels import ramp
from semisilo.common.learning.training import loaded_model
from semisilo.common.methods.contract import SiloTask
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.silo.objectives.fixmatch import FixMatch
from semisilo.silo.objectives.labelling import alignment_of, threshold_of
from semisilo.silo.objectives.mean_teacher import MeanTeacher
from semisilo.silo.objectives.pseudo_label import PseudoLabel, label_all
from semisilo.silo.objectives.step import Objective, Step, StepTerms, Unlabelled
from semisilo.silo.objectives.supervised import Supervised
from semisilo.silo.objectives.training import LocalTraining, train_locally, usable_data
from semisilo.silo.objectives.uda import UDA
from semisilo.silo.objectives.views import View

__all__ = ["UDA", "FixMatch", "LocalTraining", "MeanTeacher", "Objective", "PseudoLabel", "Step", "StepTerms",
           "Supervised", "Unlabelled", "make_objective", "train_locally", "usable_data"]

_LOG = logging.getLogger("semisilo.silo")


def make_objective(task: SiloTask, model: nn.Module, labelled: ImageSet | None, unlabelled: ImageSet | None, *,
                   teacher: Mapping[str, Tensor] | None = None) -> Objective:
    """The objective that the task's settings (`ObjectiveSettings`) name, ready for one round.

    Args:
        model: with the weights that training starts from and the statistics to label with; on the task's device.
        labelled: the silo's own, which adjustment, alignment and thresholds may follow from.
        unlabelled: what is labelled once where the settings ask for it.
        teacher: where the silo's own teacher ended last; used with teacher = "local" if it fits the model.
    """
    settings: ObjectiveSettings = task.settings
    alignment = None if unlabelled is None else alignment_of(task, labelled)
    objective = _by_name(task, model, labelled, unlabelled, alignment, teacher)
    objective.alignment = alignment
    if settings.logit_adjustment and labelled is not None and labelled.labels_N is not None:
        objective.adjust = partial(_adjusted, labelled.labels_N, settings.logit_adjustment)
    if settings.class_weights and labelled is not None and labelled.labels_N is not None:
        objective.labelled_loss_of = weighted_loss(labelled.labels_N, settings.class_weights)
    return objective


def _adjusted(labels_N: Tensor, tau: float, logits_BK: Tensor) -> Tensor:
    return adjust_logits(logits_BK, class_shares(labels_N, logits_BK.shape[-1]), tau=tau)


def _by_name(task: SiloTask, model: nn.Module, labelled: ImageSet | None, unlabelled: ImageSet | None,
             alignment: Alignment | None, teacher: Mapping[str, Tensor] | None) -> Objective:
    settings: ObjectiveSettings = task.settings
    weak: View = "original" if settings.weak_view == "none" else "weak"

    def alpha0(epoch: int) -> float:
        return settings.alpha0 * ramp(settings.alpha0_ramp, epoch=epoch, ramp_epochs=settings.ramp_epochs)

    def tsa(num_classes: int) -> float:
        if settings.tsa == "none":
            return 1.0
        return tsa_threshold(settings.tsa, t=task.round, total=task.rounds, num_classes=num_classes)

    def threshold() -> Threshold:
        return settings.threshold if unlabelled is None else threshold_of(
            task, settings.threshold, labelled, model)

    if settings.objective == "fixmatch":
        return FixMatch(task.image, confidence_threshold=threshold(), lambda_s=settings.lambda_s,
                        lambda_u=settings.lambda_u, mask_mean=settings.mask_mean, weak_view=weak)
    if settings.objective == "uda":
        return UDA(task.image, temperature=settings.temperature, confidence_threshold=threshold(), tsa=tsa,
                   lambda_s=settings.lambda_s, lambda_u=settings.lambda_u, mask_mean=settings.mask_mean)
    if settings.objective == "pseudo_label":
        labels = None
        if settings.label_refresh == "round" and unlabelled is not None:
            labels = label_all(model, unlabelled.images_NCHW, task.image, alignment=alignment,
                               progress=lambda share: task.report(0.0, f"labelling, {share:.0%}"),
                               alone=task.private is not None)
        return PseudoLabel(task.image, alpha0=alpha0, labels=labels, weak_view=weak)
    if settings.objective == "mean_teacher":
        return MeanTeacher(task.image, teacher=_teacher(task, model, teacher), alpha0=alpha0, decay=settings.ema_decay,
                           keeps=settings.teacher == "local", weak_view=weak)
    return Supervised(task.image, lambda_s=settings.lambda_s)


def _teacher(task: SiloTask, model: nn.Module, kept: Mapping[str, Tensor] | None) -> nn.Module:
    network = loaded_model(task.build_model, tensors.parameters_of(model), seed=task.seed, round=task.round,
                           silo=task.silo, device=task.device)
    if kept is not None and task.settings.teacher == "local":
        try:
            tensors.load_into(network, kept)
        except LayoutMismatch as error:
            _LOG.warning("the teacher starts anew, what was kept does not fit the model: %s", error.text)
    return network
