"""What silos are told of the coordinator's labelled images, where the settings against imbalance need it.

Tests: tests/coordinator/strategies/parts/test_labelled_hints.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from semisilo.common.data.form import AugmentationSettings
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.averaged_training import log_prior
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.imbalance.labels import class_shares, class_weights, finding_shares, log_odds
from semisilo.common.learning.imbalance.prevalence import implied_prior
from semisilo.common.learning.imbalance.pseudo_labels import labelled_confidence
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import loaded_model
from semisilo.common.methods.contract import Environment
from semisilo.common.methods.parts.imbalance import ImbalanceSettings
from semisilo.common.methods.self_training import SelfTrainingSettings

__all__ = ["LabelledHints", "model_prior", "prior_of_labels_alone", "training_prior"]


class LabelledHints:
    """The settings `semisilo.common.methods.parts.imbalance.LABELLED_HINTS` of one study's tasks."""

    def __init__(self, environment: Environment, settings: ImbalanceSettings | None) -> None:
        """With labels at the silos, and without settings, nothing is told."""
        labelled = environment.data.labelled
        scenario = getattr(settings, "scenario", "")
        has = scenario == "labels-at-coordinator" and labelled is not None and labelled.labels_N is not None
        self._environment = environment
        self._labelled = labelled if has else None
        self._settings = settings

    @property
    def wanted(self) -> bool:
        """Whether tasks need any of them."""
        return (self._settings is not None and self._labelled is not None
                and (self._settings.distribution_alignment == "labels" or self._settings.thresholds != "fixed"))

    def settings(self, parameters: Mapping[str, Tensor], statistics: Mapping[str, Tensor], *,
                 round: int) -> dict[str, object]:
        """Class shares, and how sure the model that is sent is of one weak view of each labelled image.

        A function of model, statistics and round alone, so that a restart says the same.
        Args:
            parameters, statistics: of the model that silos are sent. Without statistics, where silos alone measure and
                none has answered yet, those of the labelled images.
            round: that they are sent in; names the views.
        """
        settings, environment, labelled = self._settings, self._environment, self._labelled
        assert settings is not None
        assert labelled is not None
        assert labelled.labels_N is not None
        model = loaded_model(environment.build_model, parameters, seed=environment.seed, round=round,
                             device=environment.device)
        form = environment.image
        batch_norm.load(model, statistics or batch_norm.to_tensors(batch_norm.measure(
            model, labelled.images_NCHW, form=form,
            generator=torch_generator(environment.seed, "batch_norm_order", round=round))))
        model.eval()
        found: dict[str, object] = {}
        logits_1K = logits_of(model, labelled.images_NCHW[:1], form)
        if settings.distribution_alignment == "labels":
            found["labelled_prior"] = tuple(class_shares(labelled.labels_N, logits_1K.shape[1]).tolist())
        if settings.thresholds != "fixed":
            weak = settings.measures_weak_views
            confidence = labelled_confidence(
                lambda views_BCHW: logits_of(model, views_BCHW, form), labelled,
                augmentation=environment.augmentation if weak else AugmentationSettings(policy="none"),
                generator=torch_generator(environment.seed, "labelled_confidence", round=round),
                device=environment.device)
            found["labelled_confidence"] = confidence.mean
            if settings.thresholds == "class_relative":
                found["labelled_class_confidence"] = confidence.by_class
        return found


def training_prior(settings: object, labelled: ImageSet | None, num_classes: int) -> tuple[float, ...]:
    """The class prior that the probabilities of a study's model stand for; empty where the labels are at the silos and
    nobody knows it. Self-training with logit adjustment makes its model for equal classes (findings that half of all
    images show) there too, and tells the silos so.

    Args:
        settings: of the method.
        labelled: the coordinator's labelled images.
    """
    if (isinstance(settings, SelfTrainingSettings) and not settings.labels_at_coordinator
            and settings.logit_adjustment == 1.0):
        return (0.5 if settings.multi_label else 1.0 / num_classes,) * num_classes
    if (getattr(settings, "scenario", "labels-at-silo") == "labels-at-silo" or labelled is None
            or labelled.labels_N is None or len(labelled) == 0):
        return ()
    if isinstance(settings, SelfTrainingSettings):
        return model_prior(labelled.labels_N, num_classes, logit_adjustment=settings.logit_adjustment)
    imbalance = settings if isinstance(settings, ImbalanceSettings) else ImbalanceSettings()
    weights_K = class_weights(labelled.labels_N, imbalance.class_weights, num_classes)
    if labelled.labels_N.ndim == 2:
        odds_K = log_odds(finding_shares(labelled.labels_N)) + (0.0 if weights_K is None else weights_K.log())
        return tuple(torch.sigmoid(odds_K.double()).tolist())
    shares_K = class_shares(labelled.labels_N, num_classes)
    if weights_K is not None:
        shares_K = shares_K * weights_K / (shares_K * weights_K).sum()
    return tuple(implied_prior(shares_K.numpy(), logit_adjustment=imbalance.logit_adjustment,
                               class_balanced=imbalance.labelled_sampling == "class_balanced").tolist())


def model_prior(labels_N: Tensor, num_classes: int, *, logit_adjustment: float) -> tuple[float, ...]:
    """The class shares that a model of these labels stands for, of each class; they sum to 1. With several labels for
    an image the share of images that show each: a half, moved as far as tau leaves of the labels' own.

    Equal shares where the labels are balanced within 1.5 to 1 (nothing is adjusted then, and so small a difference is
    not worth telling silos), else shares^(1 - tau), normalised.
    Args:
        labels_N: int64, at least one.
    Source: Menon et al., ICLR 2021, section 4.
    """
    prior_K = log_prior(labels_N, num_classes)
    if labels_N.ndim == 2:
        odds_K = torch.zeros(num_classes) if prior_K is None else (1.0 - logit_adjustment) * prior_K
        return tuple(torch.sigmoid(odds_K.double()).tolist())
    shares_K = torch.ones(num_classes) if prior_K is None else prior_K.exp()
    return tuple(implied_prior(shares_K.numpy(), logit_adjustment=logit_adjustment).tolist())


def prior_of_labels_alone(labelled: ImageSet | None, num_classes: int, *, adjusted: bool) -> tuple[float, ...]:
    """The class prior that the probabilities of labels alone stand for: uniform where they were trained with logit
    adjustment, else that of the labels; empty without any. With several labels for an image the share of
    images that show each class.

    Args:
        labelled: what they were trained on.
        adjusted: whether with that.
    """
    if labelled is None or labelled.labels_N is None or len(labelled) == 0:
        return ()
    if labelled.labels_N.ndim == 2:
        return (0.5,) * num_classes if adjusted else tuple(finding_shares(labelled.labels_N).tolist())
    shares_K = class_shares(labelled.labels_N, num_classes).numpy()
    return tuple(implied_prior(shares_K, logit_adjustment=1.0 if adjusted else 0.0).tolist())
