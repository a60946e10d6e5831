"""Losses against the specification's numeric oracles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from semisilo.common.learning.losses import cross_entropy, first_argmax, mix, mix_loss, pseudo_labels
from semisilo.common.numerics.passes import Descent, Term


def test_oracle_s1_sets_of_a_silo() -> None:
    logits = torch.tensor([[4, 0, 0], [1, 0.5, 0], [0, 5, 0], [2, 2, 2], [0, 0, 3.5]], dtype=torch.float64)
    found = pseudo_labels(logits, 0.95)
    assert found.max_prob_B.tolist() == pytest.approx([0.964663, 0.50648, 0.986703, 0.333333, 0.943045], abs=1e-5)
    assert found.hard_label_B.tolist() == [0, 0, 1, 0, 2]
    assert found.keep_B.tolist() == [True, False, True, False, False]


def test_oracle_s2_nobody_is_confident() -> None:
    found = pseudo_labels(torch.tensor([[1, 0, 0], [0, 1, 0]], dtype=torch.float64), 0.95)
    assert found.max_prob_B.tolist() == pytest.approx([0.576117, 0.576117], abs=1e-5)
    assert found.hard_label_B.tolist() == [0, 1]
    assert not found.keep_B.any()


def test_a_probability_equal_to_the_threshold_is_kept() -> None:
    logits = torch.zeros(1, 4)
    assert pseudo_labels(logits, 0.25).keep_B.tolist() == [True]
    assert pseudo_labels(logits, 0.2500001).keep_B.tolist() == [False]


def test_ties_go_to_the_lowest_class_wherever_they_stand() -> None:
    assert first_argmax(torch.tensor([[1.0, 7.0, 7.0], [7.0, 1.0, 7.0], [7.0, 7.0, 7.0]])).tolist() == [1, 0, 0]


def test_a_model_that_has_diverged_labels_nothing() -> None:
    found = pseudo_labels(torch.full((2, 3), float("nan")), 0.0)
    assert not found.keep_B.any()
    assert found.hard_label_B.tolist() == [2, 2], "still a class, so that nothing indexes beyond the table"


def test_oracle_s3_fix_and_mix_loss() -> None:
    strong = torch.tensor([[2, 0, 0], [0, 1, 0]], dtype=torch.float64)
    mixed = torch.tensor([[1, 1, 0], [0, 2, 1]], dtype=torch.float64)
    y_fix, y_mix = torch.tensor([0, 1]), torch.tensor([1, 2])
    fix, mix = cross_entropy(strong, y_fix), mix_loss(mixed, y_fix, y_mix, 0.7)
    assert float(fix) == pytest.approx(0.395495, abs=1e-5)
    assert float(cross_entropy(mixed, y_fix)) == pytest.approx(0.6348, abs=1e-4)
    assert float(cross_entropy(mixed, y_mix)) == pytest.approx(1.1348, abs=1e-4)
    assert float(mix) == pytest.approx(0.7848, abs=1e-4)
    weight = nn.Parameter(torch.ones((), dtype=torch.float64))
    found = Descent({"w": weight}).gradients([Term(1.0, lambda: weight * fix), Term(1.0, lambda: weight * mix)])
    assert float(found.total) == pytest.approx(1.180295, abs=1e-5)


def test_cross_entropy_of_equal_logits_is_the_logarithm_of_the_number_of_classes() -> None:
    assert float(cross_entropy(torch.zeros(3, 10), torch.tensor([0, 4, 9]))) == pytest.approx(math.log(10), abs=1e-6)


def test_mix_at_its_ends_is_one_image_or_the_other() -> None:
    a, b = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    assert torch.equal(mix(a, b, 1.0), a)
    assert torch.equal(mix(a, b, 0.0), b)
    assert torch.allclose(mix(a, b, 0.25), 0.25 * a + 0.75 * b)
