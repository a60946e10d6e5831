"""Evaluation against counts made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning import evaluation
from semisilo.common.learning.evaluation import evaluate, logits_of
from semisilo.common.numerics.side_by_side import set_lanes
from tests.each_of import each_of

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
    found = evaluate(model, images, form=FORM)
    assert (found.correct, found.count, found.accuracy) == (3, 5, 0.6)
    assert found.per_class_recall == (2 / 3, 0.5, None)
    assert found.balanced_accuracy == pytest.approx((2 / 3 + 0.5) / 2)
    assert found.confusion == ((2, 1, 0), (0, 1, 1), (0, 0, 0))
    sure, wrong = math.log(math.exp(3) + 2) - 3, math.log(math.exp(3) + 2)
    both = math.log(2 * math.exp(3) + 1)
    assert found.loss == pytest.approx((3 * sure + both + wrong) / 5, abs=1e-6)
    assert model.training, "the mode is restored"


def test_of_several_findings_images_of_which_nothing_is_known_do_not_count() -> None:
    """Logits 0 have a binary cross-entropy of log 2 for each class that is known: three of two images."""
    pixels = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    rows = torch.tensor([[1, 0], [1, -1], [-1, -1], [-1, -1]], dtype=torch.int8)
    found = evaluate(_Fixed([[0.0, 0.0]]), ImageSet(pixels, rows, tuple("abcd")), form=FORM)
    assert isinstance(found, evaluation.MultiLabelEvaluation)
    assert found.loss == pytest.approx(1.5 * math.log(2))
    assert found.exact_match == 0.5, "at 0.5 both classes are found: the second image is right where it is known"


@pytest.mark.parametrize("count", [1, 3])
def test_logits_are_in_the_order_of_the_images_whatever_goes_side_by_side(count: int,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_piece", lambda form, device: 2)
    set_lanes(count)
    try:
        pixels = torch.zeros(7, 1, 4, 4, dtype=torch.uint8)
        pixels[:, 0, 0, 0] = torch.arange(7)
        shares: list[float] = []
        found = logits_of(_Fixed([[float(number)] for number in range(7)]), pixels, FORM, progress=shares.append)
    finally:
        set_lanes(1)
    assert found.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert not found.requires_grad
    assert shares == [2 / 7, 4 / 7, 6 / 7, 1.0]


@each_of(("size", "device", "expected"), [
    (32, "cpu", 50), (8, "cpu", 250), (224, "cpu", 8), (32, "cuda", 1000), (224, "cuda", 50)])
def test_images_go_forward_in_pieces_that_suit_device_and_size(size: int, device: str, expected: int) -> None:
    form = ImageForm(size=size, channels=1, mean=(0.5,), std=(0.25,))
    assert evaluation._piece(form, torch.device(device)) == expected


def test_evaluation_refuses_images_without_usable_labels() -> None:
    model = _Fixed([[0.0, 0.0]] * 256)
    for images in (_images(3).without_labels(), _images(0), _images(3, labels=torch.tensor([0, 1, 2])),
                   _images(3, labels=torch.tensor([0, -1, 1]))):
        with pytest.raises(BadData):
            evaluate(model, images, form=FORM)


class _Constant(nn.Module):
    """Answers with its parameter itself, which has a gradient in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.logits_BK = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return self.logits_BK


def test_a_network_that_answers_with_a_parameter_is_evaluated() -> None:
    images = ImageSet(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    found = evaluate(_Constant(), images, form=FORM)
    assert found.accuracy == 1.0
    assert found.loss == pytest.approx(math.log(1 + math.exp(-1)))
