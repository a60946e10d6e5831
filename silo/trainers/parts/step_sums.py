"""What the steps of one round at a silo add up to: mean losses, how many there were, and batches passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from semisilo.common.learning.batch_norm import OneValuePerChannel

__all__ = ["StepSums"]

_LOG = logging.getLogger("semisilo.silo")


class StepSums:
    """Begins with no step. Every batch goes inside `batch()`, every step of the optimiser is followed by `add`."""

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        self._sums: dict[str, float] = {}

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around a batch: one that a batch-norm layer sees with one value per channel is passed over and counted."""
        try:
            yield
        except OneValuePerChannel:
            self.skipped += 1

    def add(self, **losses: Tensor) -> None:
        """A step, and its losses: scalars (), in the names under which their means are told."""
        self.steps += 1
        for name, loss in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(loss.detach())

    def metrics(self) -> dict[str, float]:
        """"steps", and the mean of every loss over the steps; of no step only that there was none."""
        return {"steps": float(self.steps)} | {name: total / self.steps for name, total in self._sums.items()}

    def tell_skipped(self) -> None:
        """A line in the silo's log when batches were passed over."""
        if self.skipped:
            _LOG.warning("%d of %d batches were skipped: one value per channel at a batch-norm layer",
                         self.skipped, self.skipped + self.steps)
