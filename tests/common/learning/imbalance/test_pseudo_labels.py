"""Alignment and thresholds of pseudo-labels, against products and quotients worked out by hand."""

from __future__ import annotations

import pytest
import torch

from semisilo.common.data.form import AugmentationSettings
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.imbalance.pseudo_labels import (
    Alignment,
    Confidence,
    align_logits,
    confidence_of,
    labelled_confidence,
    thresholds_of,
)
from semisilo.common.learning.losses import pseudo_labels

P = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
"""Mean 0.6, 0.4."""


def _target(*shares: float) -> torch.Tensor:
    return torch.tensor(shares, dtype=torch.float64)


def test_aligned_probabilities_are_remixmatchs() -> None:
    """p * target / mean with target 0.3, 0.7 and mean 0.6, 0.4: ratios 1/2 and 7/4; [0.8, 0.2] -> 0.4 : 0.35."""
    found = torch.softmax(align_logits(P.log(), _target(0.3, 0.7), _target(0.6, 0.4)), dim=-1)
    assert found[0].tolist() == pytest.approx([0.4 / 0.75, 0.35 / 0.75])
    assert found[2].tolist() == pytest.approx([0.2 / 1.25, 1.05 / 1.25])


def test_a_strength_below_1_takes_a_power_of_the_ratio() -> None:
    found = torch.softmax(align_logits(P.log(), _target(0.3, 0.7), _target(0.6, 0.4), strength=0.5), dim=-1)
    a, b = 0.8 * 0.5**0.5, 0.2 * 1.75**0.5
    assert found[0].tolist() == pytest.approx([a / (a + b), b / (a + b)])


def test_a_class_that_is_never_predicted_or_never_there_stays_finite() -> None:
    found = align_logits(P.log(), _target(1.0, 0.0), _target(1.0, 0.0))
    assert bool(torch.isfinite(found).all())


def test_all_images_are_aligned_by_the_mean_over_just_these() -> None:
    found = torch.softmax(Alignment(lambda classes: _target(0.3, 0.7), strength=1.0).whole(P.log()), dim=-1)
    assert found[0].tolist() == pytest.approx([0.4 / 0.75, 0.35 / 0.75])


def test_the_running_mean_is_arithmetic_at_first_then_exponential() -> None:
    """Two batches with means 0.9 and 0.5 of class 0: 0.9, then 0.7. The 200th enters with weight 0.01."""
    def batch(share: float) -> torch.Tensor:
        return torch.tensor([[share, 1 - share]], dtype=torch.float64).log()

    alignment = Alignment(lambda classes: _target(0.5, 0.5), strength=1.0)
    first = torch.softmax(alignment.batch(batch(0.9)), dim=-1)
    assert first[0].tolist() == pytest.approx([0.5, 0.5]), "its own mean is the target now"
    second = torch.softmax(alignment.batch(batch(0.5)), dim=-1)
    a, b = 0.5 / 0.7, 0.5 / 0.3
    assert second[0].tolist() == pytest.approx([a / (a + b), b / (a + b)])
    for _ in range(300):
        alignment.batch(batch(0.5))
    before = torch.softmax(alignment.batch(batch(0.5)), dim=-1)[0, 0]
    mean = float(1 / (1 + (before / (1 - before))))  # p / mean is 1:1 before, so mean_0 = 1 - found
    after = torch.softmax(alignment.batch(batch(0.9)), dim=-1)[0, 0]
    moved = 0.99 * mean + 0.01 * 0.9
    a, b = 0.9 / moved, 0.1 / (1 - moved)
    assert float(after) == pytest.approx(a / (a + b))


def test_views_and_images_enter_the_mean_alike() -> None:
    whole = Alignment(lambda classes: _target(0.3, 0.7), strength=1.0)
    views_ABK = P.log()[None].repeat(2, 1, 1)
    assert torch.allclose(whole.batch(views_ABK)[1], whole.whole(P.log()))


def test_confidence_is_the_mean_of_the_largest_and_by_class_of_the_true_one() -> None:
    """Largest: 0.8, 0.6, 0.6. Class 0 has images 0 and 1: 0.8, 0.6; class 1 has image 2: 0.6."""
    found = confidence_of(P.log(), torch.tensor([0, 0, 1]))
    assert found.mean == pytest.approx(2 / 3)
    assert found.by_class == pytest.approx((0.7, 0.6))
    assert confidence_of(P.log(), torch.tensor([0, 0, 0])).by_class == pytest.approx((0.6, -1.0))


def test_thresholds_by_hand() -> None:
    """tau 0.9, mean 0.8: 0.72; classes 0.6 and 0.3 of the surest 0.6: 0.72 and 0.36; the unknown one as the surest."""
    confidence = Confidence(mean=0.8, by_class=(0.6, 0.3, -1.0))
    assert thresholds_of("fixed", 0.9, confidence) == 0.9
    assert thresholds_of("relative", 0.9, confidence) == pytest.approx(0.72)
    found = thresholds_of("class_relative", 0.9, confidence)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == pytest.approx([0.72, 0.36, 0.72])


def test_where_no_class_is_known_all_have_the_relative_threshold() -> None:
    for unknown in (-1.0, 0.0):
        found = thresholds_of("class_relative", 0.5, Confidence(mean=0.8, by_class=(unknown, unknown)))
        assert isinstance(found, torch.Tensor)
        assert found.tolist() == pytest.approx([0.4, 0.4])


def test_a_threshold_by_class_is_that_of_the_label() -> None:
    """Labels 0, 0, 1 with 0.8, 0.6, 0.6 against 0.7 for class 0 and 0.5 for class 1."""
    labels = pseudo_labels(P.log(), torch.tensor([0.7, 0.5]))
    assert labels.hard_label_B.tolist() == [0, 0, 1]
    assert labels.keep_B.tolist() == [True, False, True]


def test_labelled_images_are_measured_in_order_and_in_pieces() -> None:
    images = ImageSet(torch.arange(600, dtype=torch.int64).remainder(2).to(torch.uint8)[:, None, None, None],
                      torch.arange(600) % 2, tuple(map(str, range(600))))
    sizes: list[int] = []

    def answers(views_BCHW: torch.Tensor) -> torch.Tensor:
        sizes.append(len(views_BCHW))
        sure = torch.where(views_BCHW.flatten() == 0, 0.9, 0.3)
        return torch.stack([sure, 1 - sure], dim=1).log()

    found = labelled_confidence(answers, images, augmentation=AugmentationSettings(policy="none"),
                                generator=torch.Generator().manual_seed(1), device="cpu")
    assert sizes == [250, 250, 100]
    assert found.mean == pytest.approx(0.8)
    assert found.by_class == pytest.approx((0.9, 0.7))
