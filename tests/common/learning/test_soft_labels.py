"""Soft pseudo-labels, regularisers and the objective of Fed-SHVR against the specification's oracles and limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from semisilo.common.learning.soft_labels import (
    RampShape,
    confidence_penalty,
    label_regulariser,
    objective,
    ramp,
    soft_cross_entropy,
    soft_labels,
)
from tests.each_of import each_of


def _log(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.parametrize(("probs", "alpha0", "alpha1", "expected"), [
    pytest.param([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], 1.0, 0.75,
                 [[0.791853, 0.149012, 0.059135], [0.417214, 0.417214, 0.165572]], id="V1"),
    pytest.param([[0.7, 0.2, 0.1]], 0.0, 0.75, [[0.333333, 0.333333, 0.333333]], id="V2"),
    pytest.param([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], 1.0, 0.0, [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], id="V3"),
    pytest.param([[0.7, 0.2, 0.1]], 0.375, 0.75, [[0.522879, 0.279491, 0.19763]], id="V4"),
])
def test_oracles_v1_to_v4_of_the_soft_labels(probs: list[list[float]], alpha0: float, alpha1: float,
                                             expected: list[list[float]]) -> None:
    found = soft_labels(_log(probs), alpha0=alpha0, alpha1=alpha1)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-5)


def test_oracle_v6_of_the_objective_and_its_terms() -> None:
    terms = objective(_log([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]), torch.tensor([0, 1]),
                      _log([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]),
                      torch.tensor([[0.8, 0.15, 0.05], [0.333333, 0.333333, 0.333333]], dtype=torch.float64),
                      alpha0=1.0, alpha1=0.75, alpha2=0.1)
    found = [float(each) for each in (terms.ce_labelled, terms.ce_unlabelled, terms.r1, terms.r2, terms.total)]
    assert found == pytest.approx([0.458145, 0.874982, 0.242871, 0.153253, 1.530606], abs=1e-5)


def test_the_penalty_as_a_sum_is_the_mean_times_the_images() -> None:
    """Oracle V6 with Eq. 9 as it is printed: r2 = 2 * 0.153253, F = 1.530606 + 0.1 * 0.153253. Nothing else changes."""
    terms = objective(_log([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]), torch.tensor([0, 1]),
                      _log([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]),
                      torch.tensor([[0.8, 0.15, 0.05], [0.333333, 0.333333, 0.333333]], dtype=torch.float64),
                      alpha0=1.0, alpha1=0.75, alpha2=0.1, r2_reduction="sum")
    found = [float(each) for each in (terms.ce_labelled, terms.ce_unlabelled, terms.r1, terms.r2, terms.total)]
    assert found == pytest.approx([0.458145, 0.874982, 0.242871, 0.306506, 1.545931], abs=1e-5)


def test_the_gradient_of_the_summed_penalty_is_each_images_own() -> None:
    """Oracle V7's rows together: p (log p - <p, log p>) for every image, not over the number of images."""
    logits_BK = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64,
                             requires_grad=True)
    confidence_penalty(torch.log_softmax(logits_BK, dim=-1),
                       reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert logits_BK.grad is not None
    for row, expected in zip(logits_BK.grad, ([0.282587, -0.14077, -0.141817], [0.0] * 3,
                                              [0.282587, -0.14077, -0.141817]), strict=True):
        assert row.tolist() == pytest.approx(expected, abs=1e-5)


def test_oracle_v7_of_the_penaltys_gradient_at_the_logits() -> None:
    for row, expected in (([2.0, 1.0, 0.0], [0.282587, -0.14077, -0.141817]), ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])):
        logits_1K = torch.tensor([row], dtype=torch.float64, requires_grad=True)
        confidence_penalty(torch.log_softmax(logits_1K, dim=-1)).backward()  # type: ignore[no-untyped-call]
        assert logits_1K.grad is not None
        assert logits_1K.grad[0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("shape", "epoch", "ramp_epochs", "expected"), [
    pytest.param("sigmoid", 25, 50, 0.286505, id="V16"), pytest.param("linear", 10, 50, 0.2, id="B10"),
    ("sigmoid", 50, 50, 1.0), ("sigmoid", 500, 50, 1.0), ("linear", 80, 50, 1.0), ("none", 1, 50, 1.0),
    ("sigmoid", 0, 50, math.exp(-5)), ("linear", 1, 1, 1.0),
])
def test_oracles_v16_and_b10_of_the_ramp_and_its_ends(shape: RampShape, epoch: float, ramp_epochs: int,
                                                      expected: float) -> None:
    assert ramp(shape, epoch=epoch, ramp_epochs=ramp_epochs) == pytest.approx(expected, abs=1e-5)


def test_soft_labels_are_where_the_objective_is_least() -> None:
    """Stationarity on the simplex: d/dv [alpha0 CE + alpha1 r1] = -alpha0 log f + alpha1 (log v + 1) is the same for
    every class of an image, and any step that keeps the sum makes the objective larger."""
    log_probs = torch.log_softmax(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double(), dim=-1)
    v = soft_labels(log_probs, alpha0=0.9, alpha1=0.4)
    slope = -0.9 * log_probs + 0.4 * v.log()
    assert torch.allclose(slope, slope[:, :1].expand_as(slope), atol=1e-10)

    def value(labels: Tensor) -> float:
        return float(0.9 * soft_cross_entropy(log_probs, labels) + 0.4 * label_regulariser(labels))

    for column in range(3):
        step = torch.zeros_like(v)
        step[:, column], step[:, column + 1] = 1e-3, -1e-3
        assert value(v + step) > value(v) < value(v - step)


def test_alpha1_of_zero_gives_hard_labels_and_their_cross_entropy() -> None:
    """Also with alpha0 = 0; ties go to the lowest class. The soft labels of a small alpha1 tend to the same."""
    log_probs = _log([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])
    hard = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(soft_labels(log_probs, alpha0=0.0, alpha1=0.0), hard)
    assert torch.equal(soft_labels(log_probs, alpha0=1.0, alpha1=0.0), hard)
    assert torch.allclose(soft_labels(log_probs[:1], alpha0=1.0, alpha1=1e-4), hard[:1], atol=1e-9)
    expected = functional.cross_entropy(log_probs, torch.tensor([1, 0]))
    assert float(soft_cross_entropy(log_probs, hard)) == pytest.approx(float(expected))
    assert float(label_regulariser(hard)) == pytest.approx(math.log(3))


@each_of("alpha1", [0.0, 1e-320, 1e-30, 0.75, 1e30])
def test_a_saturated_softmax_gives_finite_labels_that_sum_to_one(alpha1: float) -> None:
    logits = torch.tensor([[500.0, -500.0, 0.0], [0.0, 0.0, 0.0], [3e38, 0.0, -3e38]])
    v = soft_labels(torch.log_softmax(logits, dim=-1), alpha0=1.0, alpha1=alpha1)
    assert torch.isfinite(v).all()
    assert torch.allclose(v.sum(dim=-1), torch.ones(3))
    if alpha1 < 1.0:
        assert v[0].tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_a_saturated_softmax_gives_finite_losses_and_gradients() -> None:
    logits = torch.tensor([[500.0, -500.0, 0.0], [1e30, 0.0, 0.0]], requires_grad=True)
    log_probs = torch.log_softmax(logits, dim=-1)
    terms = objective(log_probs, torch.tensor([0, 0]), log_probs, soft_labels(log_probs, alpha0=1.0, alpha1=0.75),
                      alpha0=1.0, alpha1=0.75, alpha2=0.1)
    terms.total.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(terms.total)
    assert torch.isfinite(logits.grad).all()
    assert float(terms.r2.detach()) == pytest.approx(math.log(3)), "certainty is as far from uniform as can be"


def test_probabilities_of_exactly_zero_contribute_nothing() -> None:
    log_probs, v = _log([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(soft_cross_entropy(log_probs, v)) == 0.0
    assert float(confidence_penalty(log_probs)) == pytest.approx(math.log(3))
    assert float(label_regulariser(v)) == pytest.approx(math.log(3))
    assert torch.equal(soft_labels(log_probs, alpha0=1.0, alpha1=0.75), v)


def test_a_silo_without_labelled_or_unlabelled_images_lacks_just_those_terms() -> None:
    log_probs, v = _log([[0.5, 0.5]]), torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    labels = torch.tensor([0])
    only_labels = objective(log_probs, labels, None, None, alpha0=1.0, alpha1=1.0, alpha2=1.0)
    only_images = objective(None, None, log_probs, v, alpha0=1.0, alpha1=1.0, alpha2=1.0)
    neither = objective(None, None, None, None, alpha0=1.0, alpha1=1.0, alpha2=1.0)
    assert float(only_labels.total) == float(only_labels.ce_labelled) == pytest.approx(math.log(2))
    assert float(only_images.ce_labelled) == 0.0
    assert float(only_images.total) == pytest.approx(math.log(2))
    assert float(neither.total) == 0.0


def test_soft_labels_have_no_gradient_in_the_model() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    assert not soft_labels(torch.log_softmax(logits, dim=-1), alpha0=1.0, alpha1=0.75).requires_grad
