"""The labelled-only line: the paper's settings, reproducible, and honest about what it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.coordinator.compute.baseline import train_labelled_only

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), StaticBatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))


def _halves(count: int, seed: int) -> ImageSet:
    """Class 0 is bright on the left, class 1 on the right, under noise: a net that learns tells them apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    pixels = torch.randint(0, 120, (count, 1, 4, 4), generator=generator)
    for index, label in enumerate(labels.tolist()):
        pixels[index, 0, :, 2 * label : 2 * label + 2] += 130
    return ImageSet(pixels.to(torch.uint8), labels, tuple(map(str, range(count))))


def _environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "seed": 1, "rounds": 1, "num_silos": 1, "build_model": _net, "image": FORM,
        "augmentation": AugmentationSettings(policy="none"),
        "data": CoordinatorData(labelled=_halves(20, 0), test=_halves(101, 1))}
    return Environment(**{**values, **changes})


def test_it_learns_what_the_labels_teach_and_reports_the_last_epoch() -> None:
    told: list[float] = []
    found = train_labelled_only(_environment(progress=lambda share, text: told.append(share)), epochs=40)
    assert found.evaluation.count == 101
    assert found.evaluation.accuracy > 0.95
    assert [point.epoch for point in found.history] == list(range(2, 41, 2))
    assert found.history[-1].accuracy == found.evaluation.accuracy
    assert (found.epochs, found.steps, found.lr) == (40, 80, 0.1)
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(("labels", "batch"), [(20, 10), (1000, 10), (1001, 250)])
def test_batches_are_the_papers(labels: int, batch: int) -> None:
    data = CoordinatorData(labelled=_halves(labels, 0), test=_halves(4, 1))
    assert train_labelled_only(_environment(data=data), epochs=1).batch_size == batch


def test_the_same_seed_gives_the_same_line_whatever_the_global_generator() -> None:
    lines = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        lines.append(train_labelled_only(_environment(), epochs=3))
    assert lines[0] == lines[1]
    assert train_labelled_only(_environment(seed=2), epochs=3) != lines[0]


@pytest.mark.parametrize("data", [
    CoordinatorData(test=_halves(4, 0)), CoordinatorData(labelled=_halves(4, 0)),
    CoordinatorData(labelled=_halves(4, 0).without_labels(), test=_halves(4, 0)),
    CoordinatorData(labelled=_halves(4, 0), test=_halves(0, 0))])
def test_without_labelled_or_test_images_it_is_refused(data: CoordinatorData) -> None:
    with pytest.raises(BadData, match="labelled-only line needs"):
        train_labelled_only(_environment(data=data), epochs=1)
