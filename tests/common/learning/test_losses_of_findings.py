"""Losses and pseudo-labels of images that may have several labels or none, against plain loops.

Tests of semisilo/common/learning/losses.py, consistency.py, mixing.py and imbalance/labels.py, where labels are rows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from semisilo.common.learning.averaged_training import log_prior, mixed_cross_entropy
from semisilo.common.learning.consistency import fixmatch_unsup
from semisilo.common.learning.imbalance.labels import class_weights, finding_shares, log_odds, weighted_loss
from semisilo.common.learning.losses import (
    ClassThresholds,
    cross_entropy,
    example_losses,
    mix_loss,
    pseudo_labels,
)
from semisilo.common.learning.mixing import fedmix_pseudo

GENERATOR = torch.Generator().manual_seed(3)
LOGITS_BK = 3 * torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
ROWS_BK = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, -1, 0], [-1, -1, -1, -1], [0, 0, 1, -1]],
                       dtype=torch.int8)


def _plain(logits_BK: Tensor, rows_BK: Tensor, weights: tuple[float, ...] = (1.0,) * 4) -> list[float]:
    """sum_k -w_k y log s(f) - (1 - y) log(1 - s(f)) of every image, class by class."""
    found = []
    for logits, row in zip(logits_BK.tolist(), rows_BK.tolist(), strict=True):
        loss = 0.0
        for logit, shown, weight in zip(logits, row, weights, strict=True):
            p = 1 / (1 + math.exp(-logit))
            loss -= weight * math.log(p) if shown == 1 else math.log(1 - p) if shown == 0 else 0.0
        found.append(loss)
    return found


def test_binary_cross_entropy_is_summed_over_the_known_classes() -> None:
    assert example_losses(LOGITS_BK, ROWS_BK).tolist() == pytest.approx(_plain(LOGITS_BK, ROWS_BK), rel=1e-12)
    assert float(cross_entropy(LOGITS_BK, ROWS_BK)) == pytest.approx(np.mean(_plain(LOGITS_BK, ROWS_BK)), rel=1e-12)


def test_a_class_that_is_not_known_has_no_gradient() -> None:
    logits_BK = LOGITS_BK.clone().requires_grad_()
    cross_entropy(logits_BK, ROWS_BK).backward()
    assert logits_BK.grad is not None
    assert ((logits_BK.grad == 0) == (ROWS_BK < 0)).all()


def test_the_gradient_of_a_class_is_of_the_size_of_cross_entropys() -> None:
    """(s(f) - y) / B, as cross-entropy's (softmax(f) - y) / B: no division by the number of classes."""
    logits_BK = LOGITS_BK.clone().requires_grad_()
    cross_entropy(logits_BK, (ROWS_BK == 1).to(torch.int8)).backward()
    assert torch.allclose(logits_BK.grad, (torch.sigmoid(LOGITS_BK) - (ROWS_BK == 1).double()) / 6)  # type: ignore


def test_mixed_images_have_the_loss_of_both_labels_in_their_shares() -> None:
    other_BK = ROWS_BK.flip(0)
    wanted = 0.3 * np.mean(_plain(LOGITS_BK, ROWS_BK)) + 0.7 * np.mean(_plain(LOGITS_BK, other_BK))
    assert float(mix_loss(LOGITS_BK, ROWS_BK, other_BK, 0.3)) == pytest.approx(wanted, rel=1e-12)
    assert float(mixed_cross_entropy(LOGITS_BK, ROWS_BK, other_BK, 0.3, None)) == pytest.approx(wanted, rel=1e-12)
    soft = 0.3 * (ROWS_BK[:3] == 1).double() + 0.7 * (other_BK[:3] == 1).double()
    both = ROWS_BK[:3].clamp(min=0), other_BK[:3].clamp(min=0)
    by_soft_targets = nn.functional.binary_cross_entropy_with_logits(LOGITS_BK[:3], soft, reduction="sum") / 3
    assert float(mix_loss(LOGITS_BK[:3], *both, 0.3)) == pytest.approx(float(by_soft_targets), rel=1e-12)


def test_every_class_gets_a_pseudo_label_of_its_own_or_none() -> None:
    logits_BK = torch.logit(torch.tensor([[0.96, 0.04, 0.5], [0.5, 0.06, 0.94], [0.95, 0.95, 0.05]]).double())
    logits_BK[2] += torch.tensor([1e-6, 1e-6, -1e-6])  # at the cut-offs, beyond rounding
    found = pseudo_labels(logits_BK, ClassThresholds(0.95, 0.05))
    assert found.hard_label_B.tolist() == [[1, 0, -1], [-1, -1, -1], [1, 1, 0]]
    assert found.keep_B.tolist() == [True, False, True]
    assert found.max_prob_B.tolist() == pytest.approx(
        [(0.96 + 0.96 + 0.5) / 3, (0.5 + 0.94 + 0.94) / 3, 0.95], abs=1e-6)


def test_a_model_that_has_diverged_labels_no_class() -> None:
    found = pseudo_labels(torch.full((2, 3), math.nan), ClassThresholds(0.9, 0.1))
    assert (found.hard_label_B == -1).all()
    assert not found.keep_B.any()


@pytest.mark.parametrize("mask_mean", ["batch", "kept"])
def test_fixmatch_of_several_labels_against_a_plain_loop(mask_mean: str) -> None:
    weak_BK, strong_BK = LOGITS_BK, LOGITS_BK.roll(1, dims=0)
    p_BK = torch.sigmoid(weak_BK)
    labels_BK = torch.where(p_BK >= 0.9, 1, torch.where(p_BK <= 0.2, 0, -1)).to(torch.int8)
    losses = _plain(strong_BK, labels_BK)
    kept = [bool((row >= 0).any()) for row in labels_BK]
    assert 0 < int((labels_BK < 0).sum()) < labels_BK.numel()
    wanted = sum(loss for loss, keep in zip(losses, kept, strict=True) if keep) / (
        len(losses) if mask_mean == "batch" else sum(kept))
    found = fixmatch_unsup(weak_BK, strong_BK, ClassThresholds(0.9, 0.2), mask_mean=mask_mean)  # type: ignore[arg-type]
    assert float(found.loss) == pytest.approx(wanted, rel=1e-12)
    assert torch.equal(found.labels.hard_label_B, labels_BK)


def test_fedmix_labels_classes_by_their_mean_over_the_views() -> None:
    prob_views_ABK = torch.tensor([[[0.9, 0.2, 0.5]], [[1.0, 0.0, 0.7]]], dtype=torch.float64)
    found = fedmix_pseudo(prob_views_ABK, ClassThresholds(0.9, 0.1))
    assert found.hard_label_B.tolist() == [[1, 0, -1]]


def test_balanced_weights_are_scikit_learns_or_the_odds_of_not_being_shown() -> None:
    labels_N = torch.tensor([0] * 6 + [1] * 3 + [2])
    wanted = compute_class_weight("balanced", classes=np.arange(3), y=labels_N.numpy())
    assert class_weights(labels_N, "balanced", 3).tolist() == pytest.approx(wanted.tolist())  # type: ignore[union-attr]
    rows_NK = torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]], dtype=torch.int8)
    assert class_weights(rows_NK, "balanced", 2).tolist() == pytest.approx([1 / 3, 3.0])  # type: ignore[union-attr]
    assert class_weights(rows_NK, (), 2) is None
    assert class_weights(rows_NK, (2.0, 0.5), 2).tolist() == [2.0, 0.5]  # type: ignore[union-attr]


def test_weights_count_the_images_of_a_class_or_where_it_is_shown() -> None:
    weights, labels_B = (2.0, 1.0, 0.5, 4.0), torch.tensor([0, 1, 2, 3, 3, 0])
    losses_B = nn.functional.cross_entropy(LOGITS_BK, labels_B, reduction="none")
    wanted = (losses_B * torch.tensor(weights).double()[labels_B]).mean()
    of_one, of_rows = weighted_loss(labels_B, weights), weighted_loss(ROWS_BK, weights)
    assert float(of_one(LOGITS_BK, labels_B)) == pytest.approx(float(wanted), rel=1e-6)
    assert float(of_rows(LOGITS_BK, ROWS_BK)) == pytest.approx(np.mean(_plain(LOGITS_BK, ROWS_BK, weights)), rel=1e-6)
    assert weighted_loss(labels_B, "") is cross_entropy


def test_the_prior_of_rows_is_the_log_odds_of_each_class() -> None:
    """Class 0 is shown by 3 of 4 images, class 1 by none, which counts as half an image; balanced rows need nothing."""
    rows_NK = torch.tensor([[1, 0], [1, 0], [1, 0], [0, 0]], dtype=torch.int8)
    assert finding_shares(rows_NK).tolist() == pytest.approx([0.75, 0.125])
    prior_K = log_prior(rows_NK, 2)
    assert prior_K is not None
    assert prior_K.tolist() == pytest.approx([math.log(3), math.log(1 / 7)])
    assert log_odds(torch.tensor([0.5])).tolist() == [0.0]
    assert log_prior(torch.tensor([[1, 0], [0, 1]], dtype=torch.int8), 2) is None
