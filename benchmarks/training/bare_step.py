"""The arithmetic of a silo's round of SemiFL and nothing else: no loop around torch's operations can be quicker.

Images lie in memory, normalised and with channels last; two passes go side by side on a thread each; no augmentation,
no clipping, no weight decay, one learning rate. Labels cost one forward pass over all images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.process.allocator import settle_allocator

__all__ = ["BareRound"]

FoundT = TypeVar("FoundT")

_LABEL_BATCH = 50


class BareRound:
    """A round that can be timed again and again. Sets the threads of this process."""

    def __init__(self, model: nn.Module, *, size: int, batch: int, images: int, epochs: int, bf16: bool) -> None:
        """`model` has torch's own layers."""
        settle_allocator(arenas=3)
        torch.set_num_threads(1)
        self._model = model.to(memory_format=torch.channels_last)
        self._weights = list(model.parameters())
        self._momentum = [torch.zeros_like(weight) for weight in self._weights]
        self._batches = [torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last) for _ in range(2)]
        self._labelled = torch.randn(_LABEL_BATCH, 3, size, size).to(memory_format=torch.channels_last)
        self._labels_B = torch.randint(10, (batch,))
        self._steps, self._pieces = epochs * -(-images // batch), -(-images // _LABEL_BATCH)
        self._bf16 = bf16
        self._beside = ThreadPoolExecutor(1)

    def round_seconds(self) -> float:
        """Seconds of one round."""
        began = time.perf_counter()
        self._model.eval()
        for _ in range(-(-self._pieces // 2)):
            self._two(self._label, (self._labelled, self._labelled))
        self._model.train()
        for _ in range(self._steps):
            one, other = self._two(self._gradient, self._batches)
            with torch.no_grad():
                torch._foreach_mul_(self._momentum, 0.9)
                torch._foreach_add_(self._momentum, torch._foreach_add(one, other))
                torch._foreach_add_(self._weights, self._momentum, alpha=-1e-4)
        return time.perf_counter() - began

    def _two(self, work: Callable[[Tensor], FoundT], images: Sequence[Tensor]) -> tuple[FoundT, FoundT]:
        beside = self._beside.submit(work, images[1])
        here = work(images[0])
        return here, beside.result()

    def _logits(self, images_BCHW: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            logits_BK: Tensor = self._model(images_BCHW)
        return logits_BK.float()

    def _label(self, images_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            return self._logits(images_BCHW).argmax(dim=-1)

    def _gradient(self, images_BCHW: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(functional.cross_entropy(self._logits(images_BCHW), self._labels_B), self._weights)
