"""Evaluation against counts made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.evaluation import evaluate

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _images(count: int, *, labels: Tensor | None = None) -> ImageSet:
    truth = torch.arange(count) % 2 if labels is None else labels
    return ImageSet(torch.zeros(count, 1, 4, 4, dtype=torch.uint8), truth, tuple(map(str, range(count))))


class _Fixed(nn.Module):
    """Answers every image with logits that are looked up by its first pixel."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, images: Tensor) -> Tensor:
        index = (images[:, 0, 0, 0] * 0.25 + 0.5).mul(255).round().long()
        return self.logits[index]


def test_evaluation_counts_accuracy_loss_recall_and_confusion() -> None:
    """Five images of classes 0, 0, 0, 1, 1; class 2 does not occur. Predictions by hand are 0, 0, 1, 1, 2; the
    third image is a tie of classes 1 and 2, which goes to 1."""
    logits = [[3.0, 0, 0], [3.0, 0, 0], [0, 3.0, 3.0], [0, 3.0, 0], [0, 0, 3.0]]
    pixels = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(5)
    images = ImageSet(pixels, torch.tensor([0, 0, 0, 1, 1]), tuple("abcde"))
    model = _Fixed(logits).train()
    found = evaluate(model, images, form=FORM, batch_size=2)
    assert (found.correct, found.count, found.accuracy) == (3, 5, 0.6)
    assert found.per_class_recall == (2 / 3, 0.5, None)
    assert found.balanced_accuracy == pytest.approx((2 / 3 + 0.5) / 2)
    assert found.confusion == ((2, 1, 0), (0, 1, 1), (0, 0, 0))
    sure, wrong = math.log(math.exp(3) + 2) - 3, math.log(math.exp(3) + 2)
    both = math.log(2 * math.exp(3) + 1)
    assert found.loss == pytest.approx((3 * sure + both + wrong) / 5, abs=1e-6)
    assert model.training, "the mode is restored"


def test_evaluation_refuses_images_without_usable_labels() -> None:
    model = _Fixed([[0.0, 0.0]] * 256)
    for images in (_images(3).without_labels(), _images(0), _images(3, labels=torch.tensor([0, 1, 2])),
                   _images(3, labels=torch.tensor([0, -1, 1]))):
        with pytest.raises(BadData):
            evaluate(model, images, form=FORM)
