"""Whose models a silo gets as helpers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from semisilo.coordinator.strategies.fedmatch.helpers import (
    helpers_by_embedding,
    helpers_by_reliability,
    noise_image,
    pool_joined,
    pool_keeping,
    pool_psi,
    pool_silos,
    pool_with,
)


def test_oracle_m8_the_best_scores_of_the_others() -> None:
    scores = {"s0": 0.41, "s1": 0.52, "s2": 0.52, "s3": 0.6}
    assert helpers_by_reliability(scores, "s3", 2) == ("s1", "s2")
    assert helpers_by_reliability(scores, "s1", 2) == ("s3", "s2")


def test_oracle_m9_the_nearest_embeddings_of_the_others() -> None:
    embeddings = {"s0": [0.7, 0.3], "s1": [0.6, 0.4], "s2": [0.1, 0.9], "s3": [0.72, 0.28]}
    found = helpers_by_embedding(embeddings, "s0", 2)
    assert found.helpers == ("s3", "s1")
    assert found.sq_dist == pytest.approx([0.0008, 0.02], abs=1e-5)


def test_fewer_silos_than_helpers_give_fewer() -> None:
    assert helpers_by_reliability({"a": 1.0}, "a", 2) == ()
    assert helpers_by_reliability({"a": 1.0, "b": 0.0}, "a", 2) == ("b",)
    assert helpers_by_embedding({"a": [1.0]}, "a", 2).helpers == ()
    assert helpers_by_reliability({"a": 1.0, "b": 0.0}, "c", 0) == ()


def test_a_silo_that_nobody_has_scored_may_still_be_helped_by_reliability_alone() -> None:
    assert helpers_by_reliability({"a": 0.1, "b": 0.2}, "new", 1) == ("b",)
    assert helpers_by_embedding({"a": [0.1], "b": [0.2]}, "new", 1).helpers == ()


def test_ties_go_to_the_smaller_name_whatever_the_order() -> None:
    for order in (("b", "a", "c"), ("c", "b", "a")):
        assert helpers_by_reliability(dict.fromkeys(order, 0.5), "z", 2) == ("a", "b")
        assert helpers_by_embedding({**{silo: [0.5] for silo in order}, "z": [0.0]}, "z", 2).helpers == ("a", "b")


def test_the_noise_is_a_truncated_normal_and_always_the_same() -> None:
    """normal(125, 125) within 0..255 is nearly symmetric about its mode, which is nearly the middle: its mean is
    125 + 125 * (phi(-1) - phi(1.04)) / (Phi(1.04) - Phi(-1)) = 126.7, of 255 0.497; a clipped normal would have a third
    of its pixels at 0 or 255."""
    image = noise_image(1, channels=3, size=64)
    assert image.shape == (1, 3, 64, 64)
    assert image.dtype is torch.float32
    assert 0.0 <= float(image.min()) < 0.01
    assert 0.99 < float(image.max()) <= 1.0
    assert float(image.mean()) == pytest.approx(0.497, abs=0.01)
    assert float((image < 1e-3).float().mean()) < 0.01
    assert torch.equal(image, noise_image(1, channels=3, size=64))
    assert not torch.equal(image, noise_image(2, channels=3, size=64))


def test_a_pool_of_many_silos_grows_by_one_in_a_pass() -> None:
    """Of 2000 tensors; what a pass over them costs is counted, not what the machine takes for it."""
    class Counted(dict[str, Tensor]):
        seen = 0

        def items(self) -> Any:
            for item in super().items():
                Counted.seen += 1
                yield item

    one = torch.zeros(1)
    pool = Counted({f"silo-{number:03}/{name}": one for number in range(200) for name in "abcdefghij"})
    found = pool_with(pool, "silo-100", dict.fromkeys("abcdefghij", one))
    assert list(found) == list(pool)
    assert list(pool_keeping(pool, pool_silos(pool))) == list(pool)
    assert list(pool_joined(pool, {"new/a": one})) == ["new/a", *pool]
    assert Counted.seen <= 2000 * 6


def test_a_pool_holds_one_psi_per_silo_in_byte_order() -> None:
    pool: dict[str, torch.Tensor] = {}
    for silo, value in (("b", 1.0), ("a", 2.0), ("a-1", 3.0), ("b", 4.0)):
        pool = pool_with(pool, silo, {"x.weight": torch.tensor([value]), "y": torch.tensor([value])})
    assert pool_silos(pool) == ("a", "a-1", "b")
    assert list(pool) == [f"{silo}/{name}" for silo in ("a", "a-1", "b") for name in ("x.weight", "y")]
    assert pool_psi(pool, "b")["x.weight"].tolist() == [4.0]
    assert pool_psi(pool, "c") == {}
    assert pool_silos(pool_keeping(pool, ["a-1"])) == ("a-1",)
