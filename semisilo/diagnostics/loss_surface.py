"""The loss around a model, on a plane through it: how flat the place is that training has found.

    Q(b1, b2) = F(w + b1 delta_1 + b2 delta_2, v)

with soft labels v fixed and two random directions. Fed-SHVR's Figure 5 shows it for models trained with and without the
confidence penalty. Batch-norm statistics are measured anew at every point, as training would.

Tests: tests/semisilo/diagnostics/test_diagnostics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.seeds import torch_generator
from semisilo.diagnostics.problem import ObjectiveValue, Problem, objective_of

__all__ = ["LossSurface", "loss_surface", "random_direction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSurface:
    """Q on a grid: rows by b1, columns by b2."""

    b1: list[float]
    b2: list[float]
    total: list[list[float]]
    """Q, with the penalty as the problem's alpha2 weighs it."""
    ce_labelled: list[list[float]]
    ce_unlabelled: list[list[float]]
    r2: list[list[float]]
    """The penalty alone, unweighted: `total` without it is total - alpha2 r2."""


def random_direction(w: Mapping[str, Tensor], *, seed: int, number: int) -> dict[str, Tensor]:
    """A random direction from a named seed: each tensor Gaussian, scaled to the Euclidean norm of w's tensor.

    So b = 1 moves every tensor by its own length, and a tensor of zeros stays as it is. Scaling is ours (after Li et
    al., NeurIPS 2018); the paper says only that the directions are random.

    Args:
        number: 1, 2, ...: different numbers give independent directions.
    """
    generator = torch_generator(seed, f"loss_surface_{number}")
    direction: dict[str, Tensor] = {}
    for name, tensor in w.items():
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        length = torch.linalg.vector_norm(drawn)
        scale = torch.linalg.vector_norm(tensor.double()) / length if bool(length > 0) else 0.0
        direction[name] = (drawn * scale).to(tensor.dtype)
    return direction


def loss_surface(problem: Problem, w: Mapping[str, Tensor], v: Mapping[str, Tensor], *, b1: Sequence[float],
                 b2: Sequence[float], directions: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None,
                 progress: Callable[[float], None] | None = None) -> LossSurface:
    """Q on the grid b1 x b2.

    Args:
        v: soft labels by silo (`labels_of`), the same at every point.
        b1, b2: coordinates; 0 is w itself.
        directions: delta_1 and delta_2; None draws them from the problem's seed.
        progress: called with 0..1 after every point.
    Raises: BadData when soft labels are missing; LayoutMismatch for directions of other tensors.
    """
    one, other = directions or (random_direction(w, seed=problem.seed, number=1),
                                random_direction(w, seed=problem.seed, number=2))
    values: list[list[ObjectiveValue]] = []
    for row, x in enumerate(b1):
        moved = tensors.add(w, one, factor=x)
        values.append([])
        for column, y in enumerate(b2):
            values[-1].append(objective_of(problem, tensors.add(moved, other, factor=y), v))
            if progress is not None:
                progress((row * len(b2) + column + 1) / (len(b1) * len(b2)))

    def grid(pick: Callable[[ObjectiveValue], float]) -> list[list[float]]:
        return [[pick(value) for value in row] for row in values]

    return LossSurface(b1=list(b1), b2=list(b2), total=grid(lambda value: value.total),
                       ce_labelled=grid(lambda value: value.ce_labelled),
                       ce_unlabelled=grid(lambda value: value.ce_unlabelled), r2=grid(lambda value: value.r2))
