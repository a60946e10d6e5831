"""How a silo's pseudo-labels are balanced in one task: what they are aligned with, and what they must reach.

The settings are `semisilo.common.methods.parts.imbalance.ImbalanceSettings`, the same for every method. With labels at
the coordinator what follows from its labelled images comes with the task; with labels at the silos it follows from
the silo's own.

Shapes: K classes, B images in a batch.

Tests: tests/silo/trainers/test_imbalance.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.imbalance.labels import class_shares
from semisilo.common.learning.imbalance.pseudo_labels import (
    Alignment,
    Confidence,
    labelled_confidence,
    thresholds_of,
)
from semisilo.common.learning.losses import ClassThresholds, Threshold
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import SiloTask
from semisilo.common.methods.parts.imbalance import ImbalanceSettings

__all__ = ["alignment_of", "balance_of", "threshold_of"]


def balance_of(settings: ImbalanceSettings, labelled: ImageSet | None) -> Tensor | None:
    """Labels by which a silo draws its labelled images class by class; None where they are shuffled."""
    if labelled is None or settings.labelled_sampling == "shuffled":
        return None
    return labelled.labels_N


def alignment_of(task: SiloTask, labelled: ImageSet | None) -> Alignment | None:
    """A new alignment of predictions; None where none is wanted, or nothing is known to align with.

    Args:
        labelled: the silo's own, where its method trains on them.
    Raises: BadPayload when the task should have brought the class shares and has not.
    """
    settings: ImbalanceSettings = task.settings
    if settings.distribution_alignment == "none":
        return None
    if settings.distribution_alignment == "labels" and task.settings.scenario == "labels-at-silo" and labelled is None:
        return None
    return Alignment(partial(_target, task, labelled), strength=settings.alignment_strength)


def _target(task: SiloTask, labelled: ImageSet | None, classes: int) -> Tensor:
    settings: ImbalanceSettings = task.settings
    if settings.distribution_alignment == "uniform":
        return torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    if settings.distribution_alignment == "stated":
        return _of_all(settings.class_prior, classes, "class_prior")
    if task.settings.scenario == "labels-at-coordinator":
        return _of_all(settings.labelled_prior, classes, "labelled_prior")
    assert labelled is not None
    assert labelled.labels_N is not None
    return class_shares(labelled.labels_N, classes)


def threshold_of(task: SiloTask, threshold: float, labelled: ImageSet | None, model: nn.Module | None = None, *,
                 logits_of_views: Callable[[Tensor], Tensor] | None = None) -> Threshold:
    """What a pseudo-label's probability must reach: a number, or one for each class, (K,); with several labels for an
    image, where a class is shown and where it is not.

    Args:
        threshold: the method's confidence_threshold.
        labelled: the silo's own, where its method trains on them; with labels-at-silo they are measured now.
        model: that labels, with the statistics to label with; left in the mode that it has.
        logits_of_views: in its place, from uint8 images to logits in evaluation mode without gradient.
    Raises: BadPayload when the task should have brought the confidence and has not.
    """
    settings: ImbalanceSettings = task.settings
    if settings.multi_label:
        return ClassThresholds(threshold, settings.negative_below(threshold))
    if settings.thresholds == "fixed":
        return threshold
    if task.settings.scenario == "labels-at-coordinator":
        if settings.labelled_confidence <= 0:
            raise _missing("labelled_confidence")
        return thresholds_of(settings.thresholds, threshold, Confidence(
            mean=settings.labelled_confidence, by_class=settings.labelled_class_confidence))
    if labelled is None:
        return threshold
    if logits_of_views is None:
        assert model is not None
        logits_of_views = partial(_answers, model, task)
    augmentation = task.augmentation if settings.measures_weak_views else AugmentationSettings(policy="none")
    views = torch_generator(task.seed, "labelled_confidence", round=task.round, silo=task.silo)
    return thresholds_of(settings.thresholds, threshold, labelled_confidence(
        logits_of_views, labelled, augmentation=augmentation, generator=views, device=task.device))


def _answers(model: nn.Module, task: SiloTask, views_BCHW: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    found = logits_of(model, views_BCHW, task.image)
    model.train(was_training)
    return found


def _of_all(shares: tuple[float, ...], classes: int, name: str) -> Tensor:
    if len(shares) != classes:
        raise _missing(name)
    return torch.tensor(shares, dtype=torch.float64)


def _missing(name: str) -> BadPayload:
    return BadPayload(f"The task does not say {name} for every class, which its other settings need.",
                      remedy="Tell the coordinator's operator: both sides may be of different versions.")
