"""FedSGD at a silo: the gradient of its objective on one batch of labelled and unlabelled images.

Source: McMahan et al., AISTATS 2017; with FixMatch as SemiFL (Diao et al., NeurIPS 2022) compares it.

Shapes: N images of a set, B images of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.imbalance.labels import epoch_order
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import check_finite, named_randomness
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedsgd import FedSGDSettings
from semisilo.common.numerics.passes import Descent
from semisilo.silo.objectives import Objective, Step, StepTerms, make_objective, usable_data
from semisilo.silo.objectives.labelling import balance_of
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.objectives.views import View, view_of
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import task_model

__all__ = ["FedSGDTrainer"]


class FedSGDTrainer:
    """The silo half of FedSGD. It keeps nothing between rounds."""

    Memory = type(None)

    def train(self, task: SiloTask, data: SiloData, memory: None) -> tuple[Update, None]:
        """Phase "train": the gradient with the received weights. Phase "statistics": batch-norm statistics.

        Where no image of the batch gets a pseudo-label the gradient has nothing of it, and is sent all the same: zeros
        belong to the mean over all images, and cost no bytes.
        Abstains with "no_data", "no_labelled_data" where the objective has no use for unlabelled images alone, or
        "no_usable_batch" when batch-norm could not use the batch.
        Raises: BadPayload for another phase; LayoutMismatch when the model is not the task's; ComputeFailed when the
            gradient is not finite.
        """
        if (measured := outside_training(task, data, "FedSGD")) is not None:
            return measured, None
        labelled, unlabelled, missing = usable_data(task.settings, data)
        if missing:
            return Update(abstention=missing), None
        size = sum(len(each) for each in (data.labelled, data.unlabelled) if each is not None)
        model = task_model(task, task.groups["model"].tensors)
        objective = make_objective(task, model, labelled, unlabelled)
        now = _step(task, objective, labelled, unlabelled)
        truth_N = None if unlabelled is None else unlabelled.labels_N
        try:
            found, metrics = _gradients(task, model, objective, now, truth_N)
        except OneValuePerChannel:
            return Update(abstention="no_usable_batch", num_examples=size), None
        task.report(1.0, f"gradient of {size} images")
        gradient = {name: found[name].cpu().contiguous() if name in found else torch.zeros(parameter.shape)
                    for name, parameter in model.named_parameters() if parameter.requires_grad}
        check_finite(gradient, where=f"at this silo in round {task.round}")
        return Update(groups={"gradient": TensorGroup(gradient)}, num_examples=size, metrics=metrics), None


def _gradients(task: SiloTask, model: nn.Module, objective: Objective, now: Step,
               truth_N: Tensor | None) -> tuple[Mapping[str, Tensor], dict[str, float]]:
    """The gradient of the objective, by name of the parameters that it reaches; losses, and what pseudo-labels were.

    Raises: OneValuePerChannel.
    """
    model.train()
    descent = Descent({name: each for name, each in model.named_parameters() if each.requires_grad})
    terms = StepTerms(objective, model, now)
    overflow = True
    while overflow:  # only in fp16: with a smaller factor each time
        with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
            gradients = descent.gradients(terms.terms())
        overflow = gradients.overflow
    metrics: dict[str, float] = {}
    if terms.found is not None:
        report = PseudoLabelReport()
        truth_B = None if truth_N is None else truth_N[now.index_B]
        report.add(terms.found.labels.hard_label_B, terms.found.labels.keep_B, truth_B, soft_BK=terms.found.soft_BK)
        metrics |= report.metrics()
    losses = terms.losses(gradients)
    named = {"labelled_loss": losses.labelled, "unlabelled_loss": losses.unlabelled, "loss": losses.total}
    return gradients.by_name, metrics | {name: float(loss) for name, loss in named.items() if loss is not None}


def _step(task: SiloTask, objective: Objective, labelled: ImageSet | None, unlabelled: ImageSet | None) -> Step:
    """The one batch of the round. Labelled and unlabelled images have random streams of their own, so that a silo
    without the one draws the other as it would with it."""
    settings: FedSGDSettings = task.settings

    def drawn(kind: str, images: ImageSet, batch: int, views: tuple[View, ...],
              balance_N: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        order, draws = (torch_generator(task.seed, f"{kind}_{what}", round=task.round, silo=task.silo)
                        for what in ("order", "views"))
        index_B = epoch_order(len(images), order, balance_N=balance_N)[:batch]
        images_BCHW = images.images_NCHW[index_B].to(task.device)
        return index_B, tuple(view_of(view, images_BCHW, task.augmentation, draws) for view in views)

    labelled_BCHW = labels_B = None
    if labelled is not None and labelled.labels_N is not None:
        weak: View = "original" if settings.weak_view == "none" else "weak"
        index_B, (labelled_BCHW,) = drawn("labelled", labelled, settings.labelled_batch, (weak,),
                                          balance_of(settings, labelled))
        labels_B = labelled.labels_N[index_B].to(task.device)
    index_B = torch.empty(0, dtype=torch.int64)
    views: tuple[Tensor, ...] = ()
    if unlabelled is not None:
        index_B, views = drawn("unlabelled", unlabelled, settings.unlabelled_batch, objective.views)
    return Step(epoch=task.round, labelled_BCHW=labelled_BCHW, labels_B=labels_B, index_B=index_B, views=views)
