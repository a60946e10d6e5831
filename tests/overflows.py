"""Steps that fp16 leaves out because their gradients overflow, on a machine that trains in fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from semisilo.common.numerics.passes import Descent, Gradients, Term

__all__ = ["overflowing"]


def overflowing(count: int) -> Callable[..., Gradients]:
    """In the place of `Descent.gradients`: the first `count` steps of every descent overflow."""
    real, taken = Descent.gradients, dict[int, tuple[Descent, int]]()

    def gradients(self: Descent, terms: Sequence[Term], **options: Any) -> Gradients:
        found = real(self, terms, **options)
        _, before = taken.get(id(self), (self, 0))
        taken[id(self)] = self, before + 1  # held, so that no other descent gets its number
        return replace(found, by_name={}, overflow=True) if before < count else found

    return gradients
