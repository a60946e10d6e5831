"""What the compute process of `silo check --measure` does: steps of a study's network on made-up images, with the
optimiser that trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional

from semisilo.common.config import from_dict
from semisilo.common.learning.sgd import SGDSettings, learn, make_optimiser
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.models.factory import check_model, model_builder
from semisilo.common.numerics import numerics
from semisilo.common.numerics.passes import Term
from semisilo.common.numerics.thread_count import TrainingStep, fastest_threads
from semisilo.common.process.messages import Handler
from semisilo.common.process.processors import usable_processors
from semisilo.silo.compute.messages import MeasuredSteps, MeasureSteps

__all__ = ["Operations", "descent_of"]

_WARM_STEPS, _SECONDS, _MOST_STEPS = 2, 2.0, 50
_LEARNING_RATE = 1e-4
"""Small, for the labels are noise: what a step takes does not depend on it, unless the weights overflow."""


class Operations:
    """What the compute process of `silo check --measure` can do."""

    def __init__(self, progress: Callable[[float, str], None]) -> None:
        self._progress = progress

    def handlers(self) -> tuple[Handler, ...]:
        """See `semisilo.common.process.messages.Operations`."""
        return (MeasureSteps.handled_by(self.measure),)

    def measure(self, request: MeasureSteps) -> MeasuredSteps:
        """See `MeasureSteps`."""
        order, form = request.task, request.task.image
        device = "cuda" if torch.cuda.is_available() else "cpu"
        record = numerics.apply(order.numerics, device=device)
        build = model_builder(order.model, form, request.factories)
        check_model(build, form, len(order.model.classes))
        passes = getattr(_settings_of(order), "passes_side_by_side", 1)
        if not order.numerics.threads and device == "cpu":  # as training will find them
            threads = fastest_threads(TrainingStep(
                build=build, image=form, num_classes=len(order.model.classes), batch=request.batch, passes=passes),
                processors=usable_processors())
            record = numerics.apply(replace(order.numerics, threads=threads), device=device)
        model = build().to(device).train()
        optimiser = make_optimiser(model, descent_of(order))
        generator = torch.Generator().manual_seed(0)
        images_BCHW = torch.randn(request.batch, form.channels, form.size, form.size, generator=generator).to(device)
        labels_B = torch.randint(len(order.model.classes), (request.batch,), generator=generator).to(device)
        taken, began = 0, time.perf_counter()
        while taken < _WARM_STEPS + _MOST_STEPS:
            if taken == _WARM_STEPS:
                _settle(device)
                began = time.perf_counter()
            learn(optimiser, [Term(1.0, lambda: functional.cross_entropy(model(images_BCHW), labels_B))] * passes)
            taken += 1
            if taken > _WARM_STEPS and time.perf_counter() - began > _SECONDS:
                break
        _settle(device)
        timed = taken - _WARM_STEPS
        return MeasuredSteps(seconds_per_step=(time.perf_counter() - began) / timed, steps=timed, device=record.device,
                             batch=request.batch)


def descent_of(task: TaskSpec) -> SGDSettings:
    """The descent of the task's method as far as a step's time depends on it: momentum, Nesterov, decay, clipping.

    What a method has no setting for, its trainer does not do.
    """
    settings = _settings_of(task)
    return SGDSettings(lr=_LEARNING_RATE, momentum=getattr(settings, "momentum", 0.0),
                       nesterov=getattr(settings, "nesterov", False),
                       weight_decay=getattr(settings, "weight_decay", 0.0),
                       clip_norm=getattr(settings, "clip_norm", 0.0))


def _settings_of(task: TaskSpec) -> object:
    spec = find_method(task.method)
    settings: object = from_dict(spec.settings, task.settings, where=f"settings of {spec.name}")
    return settings


def _settle(device: str) -> None:
    """Waits for what was handed to an accelerator."""
    if device == "cuda":
        torch.cuda.synchronize()
