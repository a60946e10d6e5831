"""Training at the coordinator, on its own labelled images: what SemiFL, FedAvg, FedMix and FedRGD do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.imbalance.labels import adjusted_loss, weighted_loss
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.learning.training import check_finite, loaded_model, train_labelled
from semisilo.common.methods.contract import Environment
from semisilo.common.methods.parts.imbalance import ImbalanceSettings

__all__ = ["CoordinatorTraining", "labelled_images", "model_at_coordinator", "train_on_labels", "weak_views"]

_OFF = ImbalanceSettings()
_NAME_THEM = "Name them in [data] labelled of the study."


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorTraining:
    """What training leaves behind, besides the model."""

    momentum: dict[str, Tensor]
    """SGD momentum by parameter, to go on from."""
    loss: float
    """Mean loss of the last epoch, without its weight; 0 where there was no step."""


def labelled_images(environment: Environment, who: str, *, where: str = "at the coordinator",
                    remedy: str = _NAME_THEM) -> ImageSet:
    """The coordinator's labelled images.

    Args:
        who: needs them, in the error's words.
    Raises: BadData where there are none.
    """
    labelled = environment.data.labelled
    if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
        raise BadData(f"{who} needs labelled images {where}; there are none.", remedy=remedy)
    return labelled


def model_at_coordinator(environment: Environment, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
    """The study's network with these parameters, on the coordinator's device. Raises: LayoutMismatch."""
    return loaded_model(environment.build_model, w, seed=environment.seed, round=round, device=environment.device)


def weak_views(environment: Environment, weak_view: str) -> AugmentationSettings:
    """How labelled images are augmented: as the study does, or with `weak_view` = "none" not at all."""
    return environment.augmentation if weak_view == "weak" else AugmentationSettings(policy="none")


def train_on_labels(
        model: nn.Module, labelled: ImageSet, environment: Environment, *, sgd: SGDSettings, epochs: int,
        batch_size: int, purpose: str, round: int, momentum: Mapping[str, Tensor] | None,
        augmentation: AugmentationSettings | None = None, loss_weight: float = 1.0,
        loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        lr_of_epoch: Callable[[int], float] | None = None, text: str = "training", report_until: float = 1.0,
        when: str = "in", imbalance: ImbalanceSettings = _OFF) -> CoordinatorTraining:
    """Trains `model` in place, as `semisilo.common.learning.training.train_labelled`, and reports how far it is.

    Args:
        imbalance: how the labelled images are drawn, whether logits are adjusted by their class shares, and what the
            classes weigh.
        augmentation: None for the study's own.
        text: stands before "on 40 labelled images" in the report.
        report_until: share of the report that training takes; what follows it has the rest.
        when: "in" or "before" the round, in the error's words.
    Raises: ComputeFailed when training diverges.
    """
    assert labelled.labels_N is not None
    text = f"{text} on {len(labelled)} labelled images"
    result = train_labelled(
        model, labelled, form=environment.image,
        augmentation=environment.augmentation if augmentation is None else augmentation, sgd=sgd, epochs=epochs,
        batch_size=batch_size, seed=environment.seed, purpose=purpose, round=round, momentum=momentum,
        lr_of_epoch=lr_of_epoch, loss_weight=loss_weight,
        loss_of=adjusted_loss(labelled.labels_N, imbalance.logit_adjustment,
                              weighted_loss(labelled.labels_N, imbalance.class_weights, loss_of)),
        sampling=imbalance.labelled_sampling,
        progress=lambda share: environment.report(report_until * share, text))
    check_finite(dict(model.named_parameters()), where=f"at the coordinator {when} round {round}")
    return CoordinatorTraining(momentum=result.momentum, loss=result.loss if result.loss == result.loss else 0.0)
