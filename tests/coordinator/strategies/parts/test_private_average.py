"""The average with differential privacy of whole silos against a loop, and its known ways to be wrong, planted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.methods.parts.privacy import SiloNoise
from semisilo.coordinator.strategies.parts.private_average import PrivateAverage

W = {"a": torch.zeros(40, 50), "b": torch.zeros(7)}


def update(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(each.shape, generator=generator) * scale for name, each in W.items()}


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.double().flatten() for each in found.values()])


def average(noise: float = 1.0, clip: float = 0.5, key: bytes = b"k" * 32) -> PrivateAverage:
    return PrivateAverage(SiloNoise(noise_multiplier=noise, clip_norm=clip, key=key))


def mean(updates: list[dict[str, Tensor]], of: PrivateAverage, *, round: int = 1,
         w: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    total: dict[str, Tensor] | None = None
    for each in updates:
        total = of.plus(total, each, like=W)
    assert total is not None
    return of.mean(total, w=W if w is None else w, silos=len(updates), round=round)


def test_it_is_the_mean_of_clipped_updates_with_noise_of_sigma_c_over_their_number() -> None:
    updates = [update(seed, scale) for seed, scale in ((1, 10.0), (2, 1e-4), (3, 0.1))]
    plain = sum((flat(each) * min(1.0, 0.5 / float(flat(each).norm())) for each in updates), torch.zeros(2007).double())
    rest = flat(mean(updates, average(2.0))) - plain / 3
    assert float(rest.std()) == pytest.approx(2.0 * 0.5 / 3, rel=0.06)
    assert abs(float(rest.mean())) < 5 * float(rest.std()) / math.sqrt(2007)
    assert float((flat(mean(updates, average(0.1))) - plain / 3).std()) == pytest.approx(0.1 * 0.5 / 3, rel=0.06)


@given(seed=st.integers(0, 50), scale=st.sampled_from([1e-6, 0.01, 1.0, 1e20]), clip=st.floats(1e-3, 100.0))
@settings(max_examples=30)
def test_one_silo_moves_the_sum_by_at_most_the_clip(seed: int, scale: float, clip: float) -> None:
    """Exactly, for whole numbers are added; an update that is not clipped (planted) moves it by its own length."""
    of = average(clip=clip)
    others = of.plus(None, update(seed + 100), like=W)
    units = flat(of.plus(others, update(seed, scale), like=W)) - flat(others)
    grid = 2.0 ** (math.floor(math.log2(clip)) - 20)
    assert float(units.norm()) * grid <= clip
    assert scale < 1 or float(flat(update(seed, scale)).norm()) > clip or clip > 40


def test_the_same_round_has_the_same_noise_and_any_other_has_other_noise() -> None:
    """Reused noise: the difference of two rounds would be bare."""
    updates = [update(1), update(2)]
    first = flat(mean(updates, average()))
    assert torch.equal(first, flat(mean(updates, average())))
    moved = {name: each + 1 for name, each in W.items()}
    for other in (mean(updates, average(), round=2), mean(updates, average(key=b"j" * 32)),
                  mean(updates, average(), w=moved), mean([update(1), update(3)], average())):
        assert float((flat(other) - first).std()) > 0.8 * math.sqrt(2) * 0.5 / 2


def test_an_update_of_another_layout_is_refused() -> None:
    with pytest.raises(LayoutMismatch):
        average().plus(None, {"a": torch.zeros(3)}, like=W)
