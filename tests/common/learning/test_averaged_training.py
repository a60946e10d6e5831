"""The parts of the strong recipe, against what they are by definition."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings
from semisilo.common.learning.averaged_training import (
    average_decay,
    log_prior,
    mixed_cross_entropy,
    mixed_views,
    stream,
)
from tests.each_of import each_of


def test_the_average_looks_back_over_a_tenth_of_the_training_and_less_at_its_beginning() -> None:
    assert average_decay(0, 1000) == pytest.approx(0.1)
    assert average_decay(90, 1000) == pytest.approx(91 / 100)
    assert average_decay(10**6, 1000) == pytest.approx(0.99)
    assert average_decay(5, 5) == 0.0  # too short to average: the last weights


@each_of(("counts", "adjusted"), [
    ((10, 10), False), ((15, 10), False), ((16, 10), True), ((4, 0), False), ((10, 1), True)])
def test_only_imbalanced_labels_have_a_prior(counts: tuple[int, int], adjusted: bool) -> None:
    labels_N = torch.tensor([0] * counts[0] + [1] * counts[1])
    prior_K = log_prior(labels_N, 2)
    assert (prior_K is not None) == adjusted
    if prior_K is not None:
        assert prior_K.exp().tolist() == pytest.approx([count / sum(counts) for count in counts])


def test_the_loss_with_a_prior_is_least_at_the_likelihood_ratio_and_not_at_the_frequency() -> None:
    """Labels 9 to 1 that nothing tells apart: softmax(logits + prior) fits them with equal logits."""
    labels_B = torch.tensor([0] * 9 + [1])
    prior_K = torch.tensor([0.9, 0.1]).log()
    logits_K = torch.zeros(2, requires_grad=True)
    mixed_cross_entropy(logits_K.expand(10, 2), labels_B, labels_B, 1.0, prior_K).backward()  # type: ignore[no-untyped-call]
    assert logits_K.grad is not None
    assert logits_K.grad.abs().max() < 1e-6
    without = torch.zeros(2, requires_grad=True)
    mixed_cross_entropy(without.expand(10, 2), labels_B, labels_B, 1.0, None).backward()  # type: ignore[no-untyped-call]
    assert without.grad is not None
    assert without.grad.abs().max() > 0.3


def test_mixed_cross_entropy_is_that_of_the_mixed_labels() -> None:
    logits_BK = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    labels_B, others_B = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 1, 0, 1])
    target_BK = 0.3 * functional.one_hot(labels_B, 3) + 0.7 * functional.one_hot(others_B, 3)
    expected = -(target_BK * logits_BK.log_softmax(1)).sum(1).mean()
    found = mixed_cross_entropy(logits_BK, labels_B, others_B, 0.3, None)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_the_stream_is_made_of_shuffled_passes_wherever_it_is_cut() -> None:
    whole = stream(7, first=0, length=21, seed=3, purpose="p")
    for start in (0, 7, 14):
        assert sorted(whole[start:start + 7].tolist()) == list(range(7))
    assert whole[:7].tolist() != whole[7:14].tolist()
    pieces = [stream(7, first=start, length=5, seed=3, purpose="p") for start in range(0, 20, 5)]
    assert torch.equal(torch.cat(pieces), whole[:20])


def test_half_of_every_batch_is_strong_and_the_rest_weak() -> None:
    images = torch.randint(0, 256, (8, 1, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    settings = AugmentationSettings(policy="small")
    views = mixed_views(images, settings, torch.Generator().manual_seed(5), batch_size=4)
    generator = torch.Generator().manual_seed(5)
    strong = augment.strong(images[[0, 1, 4, 5]], settings, generator)
    weak = augment.weak(images[[2, 3, 6, 7]], settings, generator)
    assert torch.equal(views[[0, 1, 4, 5]], strong)
    assert torch.equal(views[[2, 3, 6, 7]], weak)
