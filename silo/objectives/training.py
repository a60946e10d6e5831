"""The steps of one round at a silo, with any local objective.

Shapes: B images of a step.

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import SGD, descend
from semisilo.common.learning.training import named_randomness
from semisilo.common.methods.contract import SiloData, SiloTask
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.silo.objectives.batch_room import check_batch_fits
from semisilo.silo.objectives.labelling import balance_of
from semisilo.silo.objectives.private_training import train_privately
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.objectives.step import Objective, Step, StepTerms
from semisilo.silo.objectives.steps import MORE_STEPS, StepPlan, epoch_of, image_batches, plan_of
from semisilo.silo.objectives.views import View, viewed

__all__ = ["LocalTraining", "Penalty", "train_locally", "usable_data"]

_LOG = logging.getLogger("semisilo.silo")

Penalty = Callable[[nn.Module], Tensor]
"""A term of the loss that looks at the weights alone, a scalar ()."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """What training leaves behind, besides the model."""

    steps: int
    """Changes of the model."""
    skipped: int
    """Steps left out because a batch-norm layer saw one value per channel, or because gradients overflowed (fp16)."""
    metrics: Mapping[str, float]
    """`semisilo.common.methods.parts.objectives.OBJECTIVE_METRICS` and those of the pseudo-labels."""
    exact: Mapping[str, Tensor] | None = None
    """See `semisilo.common.methods.contract.Update.exact`."""


def usable_data(settings: ObjectiveSettings, data: SiloData) -> tuple[ImageSet | None, ImageSet | None, str]:
    """What of a silo's images its objective may train on: (labelled, unlabelled, reason to abstain or "").

    With labels-at-coordinator no labels of the silo are looked at, with "sl" no unlabelled image.
    """
    labelled = data.labelled if settings.scenario == "labels-at-silo" else None
    if labelled is not None and (len(labelled) == 0 or labelled.labels_N is None):
        labelled = None
    unlabelled = data.unlabelled if settings.objective != "sl" else None
    if unlabelled is not None and len(unlabelled) == 0:
        unlabelled = None
    if labelled is None and unlabelled is None:
        return None, None, "no_labelled_data" if data.unlabelled is not None and len(data.unlabelled) else "no_data"
    return labelled, unlabelled, ""


def train_locally(task: SiloTask, model: nn.Module, optimiser: SGD, objective: Objective, labelled: ImageSet | None,
                  unlabelled: ImageSet | None, *, penalty: Penalty | None = None) -> LocalTraining:
    """Trains `model` in place for one round; `labelled` and `unlabelled` as `usable_data` gives them.

    Args:
        optimiser: over the model's parameters, at the round's learning rate.
        penalty: added to the loss of every step; not in the losses that are reported.
    Raises: what `task.report` raises to abort; ComputeFailed where a step cannot fit into memory.
    """
    settings: ObjectiveSettings = task.settings
    if task.private is not None:
        done = train_privately(task, task.private, model, optimiser, objective, labelled, unlabelled, penalty=penalty)
        return LocalTraining(steps=done.steps, skipped=0, metrics=done.metrics, exact=done.exact)
    plan = plan_of(settings, num_labelled=0 if labelled is None else len(labelled),
                   num_unlabelled=0 if unlabelled is None else len(unlabelled))
    if unlabelled is not None:
        check_batch_fits(task, plan.unlabelled_batch, settings.unlabelled_batch, remedy=MORE_STEPS)
    report = PseudoLabelReport()
    truth_N = None if unlabelled is None else unlabelled.labels_N
    if objective.labels is not None:
        report.add(objective.labels.hard_label_B, objective.labels.keep_B, truth_N)
    first_reported = plan.last_pass(plan.unlabelled_batch, 0 if unlabelled is None else len(unlabelled))
    total, labelled_mean, unlabelled_mean = RunningMean(), RunningMean(), RunningMean()
    steps = skipped = overflows = 0
    text = f"training on {sum(len(each) for each in (labelled, unlabelled) if each is not None)} images"
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for number, now in enumerate(_steps(task, plan, objective.views, labelled, unlabelled)):
            task.report(number / plan.steps, text)
            terms = StepTerms(objective, model, now)
            try:
                gradients = optimiser.descent.gradients(
                    terms.terms(), without_pass=None if penalty is None else partial(penalty, model))
            except OneValuePerChannel:
                terms.undo()
                skipped += 1
                continue
            if (found := terms.found) is not None and objective.labels is None and number >= first_reported:
                truth_B = None if truth_N is None else truth_N[now.index_B]
                report.add(found.labels.hard_label_B, found.labels.keep_B, truth_B, soft_BK=found.soft_BK)
            if gradients.overflow:
                overflows += 1
                continue
            losses = terms.losses(gradients)
            for mean, loss in ((labelled_mean, losses.labelled), (unlabelled_mean, losses.unlabelled)):
                if loss is not None:
                    mean.add(loss)
            if losses.total is not None:
                total.add(losses.total)
                descend(optimiser, gradients.by_name)
                objective.after_step(model)
                steps += 1
    task.report(1.0, text)
    if skipped:
        _LOG.warning("%d of %d steps were skipped: one value per channel at a batch-norm layer", skipped, plan.steps)
    if overflows:
        _LOG.warning("%d of %d steps were skipped: gradients that overflow in fp16", overflows, plan.steps)
    metrics = {**report.metrics(), **total.named("loss"), **labelled_mean.named("labelled_loss"),
               **unlabelled_mean.named("unlabelled_loss"), "steps": float(steps)}
    return LocalTraining(steps=steps, skipped=skipped + overflows, metrics=metrics)


def _steps(task: SiloTask, plan: StepPlan, views: tuple[View, ...], labelled: ImageSet | None,
           unlabelled: ImageSet | None) -> Iterator[Step]:
    """The steps with their images. Labelled and unlabelled ones have random streams of their own, so that a silo
    without the one draws the other as it would with it."""
    settings: ObjectiveSettings = task.settings

    def stream(kind: str, images: ImageSet, batch: int, views: tuple[View, ...],
               balance_N: Tensor | None = None) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        order, draws = (torch_generator(task.seed, f"{kind}_{what}", round=task.round, silo=task.silo)
                        for what in ("order", "views"))
        return viewed(images.images_NCHW, image_batches(plan, len(images), batch, order, balance_N=balance_N), views,
                      batch=batch, augmentation=task.augmentation, generator=draws, device=task.device)

    nothing = torch.empty(0, dtype=torch.int64)
    weak: tuple[View, ...] = ("original",) if settings.weak_view == "none" else ("weak",)
    with_labels = None if labelled is None else stream("labelled", labelled, plan.labelled_batch, weak,
                                                       balance_of(settings, labelled))
    without = None if unlabelled is None else stream("unlabelled", unlabelled, plan.unlabelled_batch, views)
    for number in range(plan.steps):
        labelled_BCHW = labels_B = None
        if with_labels is not None:
            index_B, (labelled_BCHW,) = next(with_labels)
            assert labelled is not None
            assert labelled.labels_N is not None
            labels_B = labelled.labels_N[index_B].to(task.device)
        index_B, seen = next(without) if without is not None else (nothing, ())
        yield Step(epoch=epoch_of(task, plan, number), labelled_BCHW=labelled_BCHW, labels_B=labels_B, index_B=index_B,
                   views=seen if len(index_B) else ())
