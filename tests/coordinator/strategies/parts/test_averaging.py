"""Averaging one update at a time, what an update must look like, and the step of the server."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Meaning, TensorGroup, UpdateHeader
from semisilo.coordinator.strategies.parts.averaging import apply_global_momentum, difference_to, own_model, weighed

W = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([[0.5]])}


def test_the_sum_is_of_every_update_times_its_weight() -> None:
    """Sizes 30 and 10: p = (0.75, 0.25), so 0.75 * 1 + 0.25 * 5 = 2 for all elements; q_a goes from 2 to 3."""
    tally = weighed("size", (UpdateHeader("a", 30), UpdateHeader("b", 10)), {"a": 2, "c": 4})
    assert tally.weights == {"a": 0.75, "b": 0.25}
    assert tally.participation == {"a": 3, "b": 1, "c": 4}
    for silo, value in (("a", 1.0), ("b", 5.0)):
        tally = tally.plus(silo, {name: torch.full_like(tensor, value) for name, tensor in W.items()}, like=W)
    assert tally.delta is not None
    assert all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in tally.delta.values())


def test_nobody_accepted_is_no_sum_and_no_weights() -> None:
    tally = weighed("uniform", (), {"a": 2})
    assert (tally.weights, tally.delta, tally.participation) == ({}, None, {"a": 2})


def test_an_update_of_another_layout_is_refused() -> None:
    tally = weighed("uniform", (UpdateHeader("a", 1),), {})
    with pytest.raises(LayoutMismatch, match="'b' is missing"):
        tally.plus("a", {"w": W["w"]}, like=W)


def test_an_update_is_a_difference_to_exactly_what_was_sent() -> None:
    layout = difference_to(TensorGroup(W))["model"]
    assert (layout.meaning, layout.base) == (Meaning.DIFFERENCE, tensors.digest(W))
    assert layout.tensors == tensors.specs(W)
    delta = TensorGroup({name: torch.ones_like(tensor) for name, tensor in W.items()}, Meaning.DIFFERENCE, layout.base)
    assert own_model(TensorGroup(W), {"model": delta})["w"].tolist() == [2.0, -1.0]
    with pytest.raises(KeyError):
        own_model(TensorGroup(W), {"batch_norm": delta})


def test_oracle_s5_global_momentum_over_a_round_without_updates() -> None:
    w: dict[str, Tensor] = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    buffer: dict[str, Tensor] | None = None
    seen_w, seen_buffer = [], []
    for average in ([0.8, -1.0], None, [0.5, -1.5]):
        delta = None if average is None else {"w": torch.tensor(average, dtype=torch.float64) - w["w"]}
        w, buffer = apply_global_momentum(w, buffer, delta, momentum=0.5)
        assert buffer is not None
        seen_w.append(w["w"].tolist())
        seen_buffer.append(buffer["w"].tolist())
    assert torch.allclose(torch.tensor(seen_w), torch.tensor([[0.8, -1.0], [0.8, -1.0], [0.4, -1.0]]), atol=1e-5)
    assert torch.allclose(torch.tensor(seen_buffer), torch.tensor([[0.2, -1.0], [0.2, -1.0], [0.4, 0.0]]), atol=1e-5)
