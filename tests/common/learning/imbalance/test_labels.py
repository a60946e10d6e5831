"""Labelled images of unequal classes: counts by hand, the equation of the adjusted loss, and the limits."""

from __future__ import annotations

import math

import pytest
import torch

from semisilo.common.learning.imbalance.labels import (
    adjust_logits,
    adjusted_loss,
    class_balanced_order,
    class_shares,
    epoch_order,
    smoothed_shares,
)
from semisilo.common.learning.losses import cross_entropy
from tests.each_of import each_of

LABELS = torch.tensor([0] * 7 + [1] * 2 + [2])


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_absent_class_has_the_share_of_half_an_image() -> None:
    """Counts 7, 2, 1 and 1/2 of 10.5."""
    assert class_shares(LABELS, 4).tolist() == pytest.approx([7 / 10.5, 2 / 10.5, 1 / 10.5, 0.5 / 10.5])
    assert class_shares(LABELS, 3).tolist() == pytest.approx([0.7, 0.2, 0.1])


@each_of("seed", range(5))
def test_in_a_balanced_epoch_every_class_comes_equally_often_and_within_it_every_image(seed: int) -> None:
    """10 images, 3 classes: 3 of each and one class a fourth time. Of 7 images of class 0 each comes at most once, of 2
    of class 1 each once or twice, the one of class 2 three or four times."""
    order = class_balanced_order(LABELS, _generator(seed))
    assert len(order) == 10
    assert sorted(torch.bincount(LABELS[order], minlength=3).tolist()) == [3, 3, 4]
    times = torch.bincount(order, minlength=10)
    assert int(times[:7].max()) == 1
    assert sorted(times[7:9].tolist()) in ([1, 2], [2, 2])
    assert int(times[9]) in (3, 4)


def test_over_many_epochs_every_class_and_every_image_of_a_class_comes_equally_often() -> None:
    generator, times = _generator(), torch.zeros(10)
    for _ in range(600):
        times += torch.bincount(class_balanced_order(LABELS, generator), minlength=10)
    by_class = [float(times[label == LABELS].sum()) for label in range(3)]
    assert by_class == pytest.approx([2000] * 3, rel=0.03)
    assert times[:7].tolist() == pytest.approx([2000 / 7] * 7, rel=0.15)


def test_the_order_is_mixed_and_follows_from_the_generator_alone() -> None:
    labels = torch.tensor([0] * 50 + [1] * 50)
    order = class_balanced_order(labels, _generator())
    assert order.tolist() == class_balanced_order(labels, _generator()).tolist()
    assert order.tolist() != class_balanced_order(labels, _generator(2)).tolist()
    assert 10 < int(labels[order][:50].sum()) < 40, "classes do not come one after the other"


def test_without_labels_to_balance_by_an_epoch_is_a_random_permutation() -> None:
    assert epoch_order(9, _generator()).tolist() == torch.randperm(9, generator=_generator()).tolist()
    assert torch.bincount(LABELS[epoch_order(10, _generator(), balance_N=LABELS)]).min() >= 3


def test_the_adjusted_loss_is_menons_equation_10() -> None:
    """-log( pi_y^tau e^{f_y} / sum_c pi_c^tau e^{f_c} ), with pi = 0.7, 0.2, 0.1 and tau = 2, in Python's numbers."""
    logits, labels, tau = [[0.3, -1.0, 2.0], [1.5, 0.2, -0.4]], [2, 0], 2.0
    pi = [0.7, 0.2, 0.1]
    expected = 0.0
    for row, label in zip(logits, labels, strict=True):
        raised = [share**tau * math.exp(value) for share, value in zip(pi, row, strict=True)]
        expected -= math.log(raised[label] / sum(raised)) / 2
    found = adjusted_loss(LABELS, tau)(torch.tensor(logits), torch.tensor(labels))
    assert float(found) == pytest.approx(expected, rel=1e-6)
    assert float(found) != pytest.approx(float(cross_entropy(torch.tensor(logits), torch.tensor(labels))), rel=1e-3)


def test_tau_0_and_equal_classes_change_nothing() -> None:
    logits = torch.randn(4, 3, generator=_generator())
    assert adjusted_loss(LABELS, 0.0) is cross_entropy
    even = adjusted_loss(torch.tensor([0, 1, 2]), 1.0)(logits, torch.tensor([0, 1, 2, 0]))
    assert float(even) == pytest.approx(float(cross_entropy(logits, torch.tensor([0, 1, 2, 0]))), rel=1e-6)


def test_with_tau_1_the_best_logits_are_those_of_equal_classes() -> None:
    """One input, labels drawn 0.7, 0.2, 0.1: softmax f of the least adjusted loss is uniform, of the plain pi."""
    for tau, best in ((1.0, [1 / 3] * 3), (0.0, [0.7, 0.2, 0.1]), (0.5, None)):
        f = torch.zeros(1, 3, requires_grad=True)
        loss_of = adjusted_loss(LABELS, tau)
        for _ in range(300):
            gradient, = torch.autograd.grad(loss_of(f.expand(10, 3), LABELS), f)
            f = (f - 0.5 * gradient).detach().requires_grad_()
        if best is None:
            raised = [share**0.5 for share in (0.7, 0.2, 0.1)]
            best = [each / sum(raised) for each in raised]
        assert torch.softmax(f, dim=-1)[0].tolist() == pytest.approx(best, abs=1e-3)


def test_adjustment_keeps_the_type_of_the_logits() -> None:
    assert adjust_logits(torch.zeros(2, 3), class_shares(LABELS, 3), tau=1.0).dtype == torch.float32


def test_smoothed_shares_by_hand() -> None:
    found = smoothed_shares(torch.tensor([3, 1, 0]), 0.3)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([3.4 / 5.2, 1.4 / 5.2, 0.4 / 5.2])
    assert float(found.sum()) == pytest.approx(1.0)
