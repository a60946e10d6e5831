"""A mean over steps whose sum stays on the device: nothing waits for it before it is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RunningMean"]


class RunningMean:
    """Begins with nothing, or where another one was left. Sums are float64, in the order of `add`."""

    def __init__(self, *, total: float = 0.0, count: float = 0.0) -> None:
        self._sum: Tensor | None = torch.tensor(total, dtype=torch.float64) if count else None
        self.count = count
        """How many values were added."""

    def add(self, value: Tensor, *, count: float = 1.0) -> None:
        """A scalar (), which counts as `count` of them."""
        value = value.detach().double()
        if count != 1:
            value = value * count
        self._sum = value if self._sum is None else self._sum + value
        self.count += count

    def value(self, *, otherwise: float = float("nan")) -> float:
        """The mean, or what stands for it when nothing was added. Waits for the device."""
        return float(self._sum) / self.count if self._sum is not None else otherwise

    def total(self) -> float:
        """The sum. Waits for the device."""
        return 0.0 if self._sum is None else float(self._sum)

    def named(self, name: str) -> dict[str, float]:
        """{name: mean}, or nothing when nothing was added."""
        return {} if self._sum is None else {name: self.value()}
