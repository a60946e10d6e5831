"""Which updates a phase is closed without, so that its model is finite: every value of an update may be finite, and the
sum, the step or what the coordinator trains from there is not.

Tests: tests/coordinator/compute/test_left_out.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Any

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation.augment import to_input
from semisilo.common.data.form import ImageForm
from semisilo.common.learning.outliers import UpdateMeasure

__all__ = ["answers_finitely", "fewest_left_out", "not_finite_in", "suspects"]

_TRIED_IMAGES = 2


def suspects(measures: Mapping[str, UpdateMeasure], *, weights: Mapping[str, float] | None = None,
             steps: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """Silos in the order in which their updates are left out: who is furthest above the middle of the others first, by
    the length with which its update counts or by the number of steps that it says, of equals by name.

    Args:
        weights: p_k by silo, what the method multiplies each update by; where none is given all count alike.
        steps: by silo, where updates are multiplied by the mean of all of them: such a number may do the harm however
            short the update is.
    """
    lengths = _times_the_middle({silo: each.norm * (weights or {}).get(silo, 1.0) for silo, each in measures.items()})
    stretch = _times_the_middle({silo: (steps or {}).get(silo, 0.0) for silo in measures})
    above = {silo: max(lengths[silo], stretch[silo]) for silo in measures}
    return tuple(sorted(measures, key=lambda silo: (-above[silo], silo.encode())))


def _times_the_middle(values: Mapping[str, float]) -> dict[str, float]:
    """Each over the lower median of those above 0."""
    middle = median_low([value for value in values.values() if value > 0] or [1.0])
    return {silo: value / middle for silo, value in values.items()}


def fewest_left_out(names: Sequence[str], works: Callable[[frozenset[str]], bool]) -> frozenset[str] | None:
    """The shortest beginning of `names` without which a phase ends well; None where it does not without all of them.

    Asks `works` about 1, 2, 4, ... of them and then halves, so a study whose own training diverges is not trained once
    for every silo. Where more of them never do harm, the answer is the shortest.

    Args:
        names: the first to be left out first.
        works: whether the phase ends well without these.
    """
    least, most = 0, 1
    while most <= len(names) and not works(frozenset(names[:most])):
        if most == len(names):
            return None
        least, most = most, min(2 * most, len(names))
    if most > len(names):
        return None
    while most - least > 1:
        middle = (least + most) // 2
        if works(frozenset(names[:middle])):
            most = middle
        else:
            least = middle
    return frozenset(names[:most])


def not_finite_in(state: Any) -> str:
    """The field of a strategy's state, a dataclass, with a value that is not finite; empty when all are finite."""
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Mapping) and not all(
                bool(torch.isfinite(each).all()) for each in value.values()
                if isinstance(each, Tensor) and each.is_floating_point()):
            return field.name
    return ""


def answers_finitely(model: nn.Module, form: ImageForm) -> bool:
    """Whether a network's answers to two images of noise are finite, in evaluation mode; its mode is restored.

    A network whose weights are finite and far too large overflows on its way.
    """
    generator = torch.Generator().manual_seed(0)
    images_BCHW = torch.randint(0, 256, (_TRIED_IMAGES, form.channels, form.size, form.size), dtype=torch.uint8,
                                generator=generator)
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    try:
        with torch.no_grad():
            return bool(torch.isfinite(model(to_input(images_BCHW.to(device), form))).all())
    finally:
        model.train(was_training)
