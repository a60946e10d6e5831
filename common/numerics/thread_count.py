"""How many threads one operation should have on this machine: found by training a few steps with each number."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.form import ImageForm
from semisilo.common.methods.contract import ModelBuilder
from semisilo.common.numerics.side_by_side import lanes, set_lanes, side_by_side

__all__ = ["TrainingStep", "candidates", "fastest", "fastest_threads"]

_SECONDS, _MOST_STEPS = 0.5, 20
"""For each number of threads, after a first step that is not timed."""
_WORTH = 1.05
"""How much faster more threads must be: fewer give the bits of more machines, and leave cores to others."""
_QUICK_SECONDS = 0.004
"""A step that is quicker than this on one thread stays there: threads would wait for each other as long as they
compute, and how long that is hangs on what else runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStep:
    """What is timed."""

    build: ModelBuilder
    image: ImageForm
    num_classes: int
    batch: int
    """Images in a pass."""
    passes: int = 1
    """That do not need each other and go side by side where there is a core for each."""


def candidates(processors: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all processors."""
    return tuple(sorted({processors, *(2**power for power in range(processors.bit_length()) if 2**power < processors)}))


def fastest_threads(step: TrainingStep, *, processors: int) -> int:
    """The number of threads with which a step takes the least time on this CPU, the others' cores put to the passes
    side by side. Takes about half a second for each candidate, a few steps where one thread is quick enough, nothing
    where there is one processor.

    The numerics in force stay as they are.
    """
    numbers = candidates(processors)
    if len(numbers) == 1:
        return numbers[0]
    before = torch.get_num_threads(), lanes()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = step.build().train()
        work = _work(step, model)
        seconds: dict[int, float] = {}
        try:
            for threads in numbers:
                seconds[threads] = _seconds(work, threads, lanes=min(step.passes, processors // threads))
                if seconds[threads] <= _QUICK_SECONDS:
                    break  # more threads would not be taken
            return fastest(seconds)
        finally:
            torch.set_num_threads(before[0])
            set_lanes(before[1])


def fastest(seconds: dict[int, float]) -> int:
    """The number of threads of the least time; of those that are nearly as quick, the lowest."""
    limit = max(_QUICK_SECONDS, min(seconds.values()) * _WORTH)
    return min(threads for threads, each in seconds.items() if each <= limit)


def _work(step: TrainingStep, model: nn.Module) -> Callable[[], object]:
    form, generator = step.image, torch.Generator().manual_seed(0)
    images_BCHW = torch.randn(max(2, step.batch), form.channels, form.size, form.size, generator=generator)
    labels_B = torch.randint(step.num_classes, (len(images_BCHW),), generator=generator)
    weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def one() -> object:
        try:
            loss = functional.cross_entropy(model(images_BCHW), labels_B)
            return torch.autograd.grad(loss, weights, allow_unused=True)
        except ValueError:  # of batch-norm with one value per channel: nothing is learnt from such a batch
            return None

    return lambda: side_by_side([one] * step.passes)


def _seconds(work: Callable[[], object], threads: int, *, lanes: int) -> float:
    """Of the quickest step: what else runs on the machine makes steps slower, never quicker. Steps end with one that is
    quick enough."""
    torch.set_num_threads(threads)
    set_lanes(lanes)
    work()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    for _ in range(_MOST_STEPS):
        began = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - began)
        if now > end or best <= _QUICK_SECONDS:
            break
    return best
