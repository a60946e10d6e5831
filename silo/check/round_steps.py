"""`silo check`, the steps of a round: how many this silo takes by the settings of the study, and of how many images.

Tests: tests/silo/check/test_round_steps.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semisilo.common.config import from_dict
from semisilo.common.errors import SemisiloError
from semisilo.common.methods import find_method, silos_have_labels
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.fedmatch import FedMatchSettings
from semisilo.common.methods.fedsgd import FedSGDSettings
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.silo.check.finding import Finding
from semisilo.silo.check.needs import StudyNeeds

__all__ = ["RoundSteps", "look_at_batch", "steps_of_round"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSteps:
    """Of one silo."""

    steps: int
    """In all local epochs together, at least 1."""
    labelled_batch: int = 0
    """Labelled images in a step; 0 for none."""
    unlabelled_batch: int
    """Unlabelled images in a step; 0 for none. Of a method without labels at silos all are."""
    usual: int
    """Of these, by the study's settings."""
    remedy: str = ""
    """What mends a batch that is far larger; empty where none can be."""

    @property
    def batch(self) -> int:
        """Images of the larger batch of a step."""
        return max(self.labelled_batch, self.unlabelled_batch)

    @property
    def timed_batch(self) -> int:
        """Of a step that is tried out: one far larger than usual might take all of the machine's memory."""
        return max(self.labelled_batch, min(self.unlabelled_batch, self.usual))


def look_at_batch(needs: StudyNeeds, *, labelled: int, unlabelled: int) -> list[Finding]:
    """A warning, where a step takes far more unlabelled images at once than the study says.

    Args:
        labelled, unlabelled: images of this silo.
    """
    try:
        settings = _settings(needs)
        by_labels = getattr(settings, "steps_rule", "") == "fedmatch" or getattr(settings, "steps_by", "") == "labelled"
        if not (labelled and by_labels and _has_labels(settings)):  # what follows imports torch
            return []
        plan = steps_of_round(needs, labelled=labelled, unlabelled=unlabelled)
    except SemisiloError:
        return []  # `look_at_study` says what is wrong with the study
    from semisilo.silo.objectives.batch_room import large_batch_text

    if not (text := large_batch_text(plan.unlabelled_batch, plan.usual)):
        return []
    return [Finding(what="batch", state="warning", text=f"{text}; it may not fit into memory", remedy=plan.remedy,
                    facts={"steps_per_round": plan.steps, "largest_batch": plan.batch, "unlabelled_batch": plan.usual,
                           "labelled_images": labelled, "unlabelled_images": unlabelled})]


def steps_of_round(needs: StudyNeeds, *, labelled: int, unlabelled: int) -> RoundSteps:
    """By the very plan of the trainer where the method has one; of others passes over all images, and where
    `labelled_steps` says how many steps labels get, these and passes over the other images. What methods do beside
    plain steps is not in it.

    Raises: SemisiloError for settings that are none of the method's.
    """
    settings = _settings(needs)
    if not (isinstance(settings, ObjectiveSettings | FedMatchSettings | FedSHVRSettings) and labelled + unlabelled):
        return _passes(settings, labelled=labelled, unlabelled=unlabelled)
    if not _has_labels(settings):
        labelled, unlabelled = 0, labelled + unlabelled
    if isinstance(settings, FedSHVRSettings):
        from semisilo.common.learning.averaging.normalised import local_steps

        steps = local_steps(labelled, unlabelled, epochs=settings.local_epochs, labelled_batch=settings.labelled_batch,
                            unlabelled_batch=settings.unlabelled_batch)
        return RoundSteps(steps=steps, labelled_batch=settings.labelled_batch if labelled else 0,
                          unlabelled_batch=settings.unlabelled_batch if unlabelled else 0,
                          usual=settings.unlabelled_batch)
    if isinstance(settings, FedMatchSettings):
        from semisilo.silo.trainers import fedmatch

        plan = fedmatch.epoch_plan(settings, labelled, unlabelled)
        return RoundSteps(
            steps=settings.local_epochs * plan.steps, usual=settings.unlabelled_batch, remedy=fedmatch.MORE_STEPS,
            labelled_batch=settings.labelled_batch if labelled else 0,
            unlabelled_batch=plan.unlabelled_batch if unlabelled else 0)
    from semisilo.silo.objectives.steps import MORE_STEPS, one_step, plan_of

    if settings.objective == "sl":
        unlabelled = 0
        if not labelled:
            return _passes(settings, labelled=0, unlabelled=0)
    dp = needs.task.dp
    by = one_step if isinstance(settings, FedSGDSettings) or (dp is not None and dp.honest_silos) else plan_of
    found = by(settings, num_labelled=labelled, num_unlabelled=unlabelled)
    return RoundSteps(steps=found.steps, labelled_batch=found.labelled_batch, unlabelled_batch=found.unlabelled_batch,
                      usual=settings.unlabelled_batch, remedy=MORE_STEPS)


def _passes(settings: object, *, labelled: int, unlabelled: int) -> RoundSteps:
    batch = int(getattr(settings, "unlabelled_batch", 0) or getattr(settings, "labelled_batch", 0) or 32)
    epochs = int(getattr(settings, "local_epochs", 1) or 1)
    own = int(getattr(settings, "labelled_steps", 0)) if labelled and _has_labels(settings) else 0
    images = unlabelled if own else labelled + unlabelled
    return RoundSteps(steps=max(1, own + epochs * math.ceil(images / batch)), unlabelled_batch=batch, usual=batch)


def _has_labels(settings: object) -> bool:
    return silos_have_labels(getattr(settings, "scenario", "labels-at-silo"))


def _settings(needs: StudyNeeds) -> object:
    spec = find_method(needs.task.method)
    settings: object = from_dict(spec.settings, needs.task.settings, where=f"settings of {spec.name}")
    return settings
