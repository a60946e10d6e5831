"""Labelled images at the coordinator: who needs them says so, and training on them starts where the momentum ended."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, ComputeFailed
from semisilo.common.learning import tensors
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.learning.training import train_labelled
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.coordinator.strategies.parts.labelled_training import (
    labelled_images,
    model_at_coordinator,
    train_on_labels,
    weak_views,
)

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="small")


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int = 12) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _environment(labelled: ImageSet | None, said: list[tuple[float, str]] | None = None) -> Environment:
    return Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(labelled=labelled), build_model=_net,
                       image=FORM, augmentation=AUGMENTATION,
                       progress=None if said is None else lambda share, text: said.append((share, text)))


@pytest.mark.parametrize("labelled", [None, ImageSet(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), None, ("0", "1"))])
def test_without_labelled_images_the_error_says_who_needs_them(labelled: ImageSet | None) -> None:
    with pytest.raises(BadData, match="SemiFL needs labelled images at the coordinator; there are none"):
        labelled_images(_environment(labelled), "SemiFL")


def test_training_is_train_labelled_on_the_study_form_and_reports_its_share() -> None:
    said: list[tuple[float, str]] = []
    environment = _environment(_images(), said)
    w = tensors.parameters_of(_net())
    model, plain = (model_at_coordinator(environment, w, round=2) for _ in range(2))
    momentum = {name: torch.full_like(tensor, 0.1) for name, tensor in w.items()}
    found = train_on_labels(model, _images(), environment, sgd=SGDSettings(lr=0.1), epochs=2, batch_size=5,
                            purpose="fine_tune", round=2, momentum=momentum, report_until=0.95)
    expected = train_labelled(plain, _images(), form=FORM, augmentation=AUGMENTATION, sgd=SGDSettings(lr=0.1), epochs=2,
                              batch_size=5, seed=1, purpose="fine_tune", round=2, momentum=momentum)
    assert tensors.digest(tensors.parameters_of(model)) == tensors.digest(tensors.parameters_of(plain))
    assert tensors.digest(found.momentum) == tensors.digest(expected.momentum)
    assert found.loss == expected.loss
    assert said[-1] == (0.95, "training on 12 labelled images")


def test_without_a_step_the_loss_is_zero_and_divergence_is_an_error() -> None:
    environment = _environment(_images())
    model = model_at_coordinator(environment, tensors.parameters_of(_net()), round=1)
    nothing = train_on_labels(model, _images(), environment, sgd=SGDSettings(lr=0.1), epochs=0, batch_size=5,
                              purpose="p", round=1, momentum=None)
    assert nothing.loss == 0.0
    with pytest.raises(ComputeFailed, match="at the coordinator before round 1"):
        train_on_labels(model, _images(), environment, sgd=SGDSettings(lr=1e38, clip_norm=0.0), epochs=3, batch_size=5,
                        purpose="p", round=1, momentum=None, when="before")


def test_labelled_images_are_seen_as_the_study_or_as_they_are() -> None:
    environment = _environment(_images())
    assert weak_views(environment, "weak") is AUGMENTATION
    assert weak_views(environment, "none").policy == "none"
