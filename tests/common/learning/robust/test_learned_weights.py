"""Weights learned on images: they reach the least loss near the plain weights, and move only where it falls."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from semisilo.common.learning.robust.learned_weights import Look, faded, learned_weights


def _linear(slope_N: list[float]) -> Look:
    """L(a) = <slope, a>: the least of L + lambda KL is p_k exp(-slope_k / lambda) / Z."""
    slope = torch.tensor(slope_N, dtype=torch.float64)
    return lambda weights_N: (float(slope @ weights_N), lambda: slope)


def test_the_end_is_the_least_sum_of_loss_and_divergence() -> None:
    plain, slope = [0.5, 0.3, 0.2], [0.01, -0.01, 0.0]
    exact = [p * math.exp(-s / 0.003) for p, s in zip(plain, slope, strict=True)]
    look = _linear(slope)

    def value(weights: list[float]) -> float:
        return sum(s * w for s, w in zip(slope, weights, strict=True)) + 0.003 * sum(
            w * math.log(w / p) for w, p in zip(weights, plain, strict=True))

    least = value([each / sum(exact) for each in exact])
    assert least <= value(learned_weights(plain, look)) <= least + 1e-4 + 1e-9


def test_what_harms_by_a_nat_counts_next_to_nothing() -> None:
    found = learned_weights([0.2] * 5, _linear([0.0, 1.0, 0.0, 1.0, 0.0]))
    assert found[1] + found[3] < 1e-3
    assert found[0] == pytest.approx(1 / 3, abs=1e-3)
    assert sum(found) == pytest.approx(1.0)


def test_alike_silos_keep_the_plain_weights_after_one_step() -> None:
    looks = []

    def look(weights_N: Tensor) -> tuple[float, Callable[[], Tensor]]:
        looks.append(weights_N)
        return 0.7, lambda: torch.full((3,), 5.0, dtype=torch.float64)

    assert learned_weights([5.0, 3.0, 2.0], look) == pytest.approx([0.5, 0.3, 0.2], abs=1e-12)
    assert len(looks) < 10


def test_a_weight_of_nothing_stays_nothing() -> None:
    found = learned_weights([0.5, 0.0, 0.5], _linear([0.0, -9.0, 1.0]))
    assert found[1] == 0.0
    assert found[0] > 0.99


@pytest.mark.parametrize("curvature", [1.0, 30.0, 1000.0])
def test_a_step_that_is_too_long_is_taken_back(curvature: float) -> None:
    """A loss that is steep about its least: the value never rises above that of the plain weights."""
    best = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)

    def loss(weights_N: Tensor) -> float:
        return curvature * float((weights_N - best).square().sum())

    found = learned_weights([1.0, 1.0, 1.0], lambda weights_N: (
        loss(weights_N), lambda: 2 * curvature * (weights_N - best)))
    assert loss(torch.tensor(found, dtype=torch.float64)) < 0.2 * loss(torch.full((3,), 1 / 3, dtype=torch.float64))


def test_a_loss_that_is_no_number_moves_nothing() -> None:
    found = learned_weights([0.4, 0.6], lambda _: (math.inf, lambda: torch.zeros(2, dtype=torch.float64)))
    assert found == pytest.approx([0.4, 0.6])


def test_what_counts_less_than_its_share_fades() -> None:
    """Half of a share becomes a sixteenth; what has its share or more keeps its proportions."""
    found = faded([0.125, 0.375, 0.5, 0.0], [2.0, 2.0, 4.0, 0.0])
    assert found[1] / found[2] == pytest.approx(0.375 / 0.5)
    assert found[0] / found[2] == pytest.approx(0.125 / 8 / 0.5)
    assert found[3] == 0.0
    assert sum(found) == pytest.approx(1.0)


def test_the_plain_weights_fade_nowhere() -> None:
    assert faded([0.5, 0.3, 0.2], [5.0, 3.0, 2.0]) == pytest.approx([0.5, 0.3, 0.2])
