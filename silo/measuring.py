"""What the compute process of `silo check --measure` does: plain steps of a study's network on made-up images."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from common import numerics
from common.config import from_dict
from common.exchange import TaskSpec
from common.models import check_model, model_builder

__all__ = ["Operations"]

_WARM_STEPS, _SECONDS, _MOST_STEPS = 2, 2.0, 50


class Operations:
    """The operations by name."""

    def __init__(self, progress: Callable[[float, str], None]) -> None:
        self._progress = progress

    def steps(self, task: dict[str, Any], batch: int, factories: list[str]) -> dict[str, Any]:
        """Times forward, backward and update for about two seconds.

        Args:
            task: a TaskSpec as `to_dict` gives it; its network, image form and numerics count.
            batch: images of a step.
            factories: model factories that this silo permits.
        Returns: {"seconds_per_step", "steps", "device", "batch"}.
        Raises: SemisiloError when the network cannot be built or does not fit its images.
        """
        order = from_dict(TaskSpec, task, where="task")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        record = numerics.apply(order.numerics, device=device)
        build = model_builder(order.model, order.image, tuple(factories))
        check_model(build, order.image, len(order.model.classes))
        model = build().to(device).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        generator = torch.Generator().manual_seed(0)
        form = order.image
        images_BCHW = torch.randn(batch, form.channels, form.size, form.size, generator=generator).to(device)
        labels_B = torch.randint(len(order.model.classes), (batch,), generator=generator).to(device)
        taken, began = 0, time.perf_counter()
        while taken < _WARM_STEPS + _MOST_STEPS:
            if taken == _WARM_STEPS:
                _settle(device)
                began = time.perf_counter()
            optimiser.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(model(images_BCHW), labels_B)
            loss.backward()
            optimiser.step()
            taken += 1
            if taken > _WARM_STEPS and time.perf_counter() - began > _SECONDS:
                break
        _settle(device)
        timed = taken - _WARM_STEPS
        return {"seconds_per_step": (time.perf_counter() - began) / timed, "steps": timed, "device": record.device,
                "batch": batch}


def _settle(device: str) -> None:
    """Waits for what was handed to an accelerator."""
    if device == "cuda":
        torch.cuda.synchronize()
