"""FedMatch's sparse transfer: what is sent, what the receiver holds, and the paper's measure of its cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.sparse_transfer import (
    comm_cost,
    density,
    nonzero_count,
    num_elements,
    sparse_delta,
    threshold,
)


def _w(values: list[float]) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def test_oracle_m7_small_values_and_small_differences_are_not_sent() -> None:
    sender, receiver = _w([4e-06, 2e-05, 0.1, -0.2, 0.30001]), _w([0.0, 0.0, 0.1, 0.0, 0.3])
    found = sparse_delta(sender, receiver, l1_thres=5e-6, delta_thres=5e-5)
    sent = found.sent["w"]
    assert torch.nonzero(sent).flatten().tolist() == [3]
    assert found.receiver_after["w"][sent].tolist() == [-0.2]
    assert found.nnz == 1
    assert found.receiver_after["w"].tolist() == pytest.approx([0.0, 0.0, 0.1, -0.2, 0.3], abs=1e-5)


def test_what_equals_a_threshold_is_not_sent() -> None:
    """0.25 is exact: a difference of just delta_thres is left out, and a value of just l1_thres is sent as 0."""
    found = sparse_delta(_w([0.5, -0.75, 0.25]), _w([0.25, -0.25, 0.75]), l1_thres=0.25, delta_thres=0.25)
    assert found.sent["w"].tolist() == [False, True, True]
    assert found.receiver_after["w"].tolist() == [0.25, -0.75, 0.0]


def test_oracle_m7b_an_explicit_zero_is_sent() -> None:
    found = sparse_delta(_w([4e-06, 0.2]), _w([0.3, 0.2]), l1_thres=5e-6, delta_thres=5e-5)
    assert torch.nonzero(found.sent["w"]).flatten().tolist() == [0]
    assert found.receiver_after["w"].tolist() == [0.0, 0.2]
    assert found.nnz == 1


def test_oracle_m11_cost_in_percent_of_dense() -> None:
    assert comm_cost(1000, 1000, 20) == pytest.approx(102.0)


def test_thresholds_of_zero_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    sender, receiver = ({"a": torch.randn(4, 5, generator=generator), "b": torch.randn(3, generator=generator)}
                        for _ in range(2))
    found = sparse_delta(sender, receiver, l1_thres=0.0, delta_thres=0.0)
    assert all(torch.equal(found.receiver_after[name], sender[name]) for name in sender)
    assert found.nnz == num_elements(sender) == 23


def test_what_was_sent_is_not_sent_again() -> None:
    """Over many transfers with drifting values: the receiver never lags behind by more than the two thresholds, a
    repeated transfer sends nothing, and elements that were not sent keep their bits."""
    generator = torch.Generator().manual_seed(1)
    sender = {"w": torch.randn(200, generator=generator) * 1e-2}
    receiver = {"w": torch.zeros(200)}
    for _ in range(20):
        sender = {"w": sender["w"] + torch.randn(200, generator=generator) * 1e-3}
        found = sparse_delta(sender, receiver, l1_thres=1e-3, delta_thres=2e-3)
        assert 0 < found.nnz < 200
        assert float((found.receiver_after["w"] - sender["w"]).abs().max()) <= 3.0001e-3
        assert torch.equal(found.receiver_after["w"][~found.sent["w"]], receiver["w"][~found.sent["w"]])
        receiver = found.receiver_after
        assert sparse_delta(sender, receiver, l1_thres=1e-3, delta_thres=2e-3).nnz == 0


def test_thresholding_keeps_only_what_is_larger() -> None:
    found = threshold(_w([-1e-5, 1e-5, 2e-5, -2e-5, 0.0]), 1e-5)
    assert found["w"].tolist() == [0.0, 0.0, 2e-5, -2e-5, 0.0]
    assert found["w"].dtype is torch.float64
    assert nonzero_count(found) == 2
    assert density(found) == pytest.approx(0.4)


def test_inputs_are_left_as_they_were() -> None:
    sender, receiver = _w([1.0, 1e-9]), _w([0.0, 0.0])
    sparse_delta(sender, receiver, l1_thres=1e-5, delta_thres=1e-5)
    assert sender["w"].tolist() == [1.0, 1e-9]
    assert receiver["w"].tolist() == [0.0, 0.0]


def test_another_layout_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match="'w'"):
        sparse_delta(_w([1.0]), _w([1.0, 2.0]), l1_thres=0.0, delta_thres=0.0)
