"""What the steps of one round at a silo add up to: mean losses, how many there were, and batches passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.numerics.passes import Gradients

__all__ = ["StepSums"]

_LOG = logging.getLogger("semisilo.silo")
_NOTHING = torch.zeros(())


class StepSums:
    """Begins with no step. Every batch goes inside `batch()`, every step of the optimiser is followed by `add`."""

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        self._overflows = 0
        self._means: dict[str, RunningMean] = {}

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around a batch: one that a batch-norm layer sees with one value per channel is passed over and counted."""
        try:
            yield
        except OneValuePerChannel:
            self.skipped += 1

    def add(self, found: Gradients | None = None, /, **losses: Tensor | None) -> None:
        """A step, and its losses: scalars (), in the names under which their means are told; None counts as 0.

        Args:
            found: what the optimiser went by; where that overflowed there was no step, and the batch was passed over.
        """
        if found is not None and found.overflow:
            self.skipped += 1
            self._overflows += 1
            return
        self.steps += 1
        for name, loss in losses.items():
            self._means.setdefault(name, RunningMean()).add(_NOTHING if loss is None else loss)

    def metrics(self) -> dict[str, float]:
        """"steps", and the mean of every loss over the steps; of no step only that there was none."""
        return {"steps": float(self.steps)} | {name: mean.value() for name, mean in self._means.items()}

    def tell_skipped(self) -> None:
        """A line in the silo's log when batches were passed over."""
        if alone := self.skipped - self._overflows:
            _LOG.warning("%d of %d batches were skipped: one value per channel at a batch-norm layer",
                         alone, self.skipped + self.steps)
        if self._overflows:
            _LOG.warning("%d of %d batches were skipped: gradients that overflow in fp16",
                         self._overflows, self.skipped + self.steps)
