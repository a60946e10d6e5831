"""Labels with statistics of a silo's own images in the first batch-norm layer, where the model is surer so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.methods.contract import SiloTask, TensorGroup
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers.parts.adaptive_batch_norm import (
    adapted_statistics,
    adaptive_logits,
    certainty,
    received_logits,
)

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


class _Bright(nn.Module):
    """Class 1 is brighter than the mean of the first layer's statistics. The second layer has no part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = StaticBatchNorm(1), StaticBatchNorm(1)
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        z_B = self.first(images_BCHW).mean(dim=(1, 2, 3))
        self.second(images_BCHW)
        return self.scale * torch.stack([-z_B, z_B], dim=1)


def _images(*brightness: int) -> Tensor:
    return torch.tensor(brightness, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


OF_ALL = _images(*[60] * 10, *[190] * 10)
PALE = _images(*[127] * 10, *[130] * 10)
"""The same two classes by a scanner with hardly any contrast: both are a little brighter than the others' mean."""


def _task(received_of: Tensor = OF_ALL) -> SiloTask:
    model = _Bright()
    statistics = batch_norm.to_tensors(batch_norm.measure(model, received_of, form=FORM,
                                                          generator=torch.Generator().manual_seed(1)))
    groups = {"model": TensorGroup(initial_model(_Bright, 3)), "batch_norm": TensorGroup(statistics)}
    return SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, settings=SelfTrainingSettings(),
                    groups=groups, build_model=_Bright, augmentation=AugmentationSettings(),
                    image=FORM)


def _model(task: SiloTask) -> nn.Module:
    model = _Bright()
    tensors.load_into(model, task.groups["model"].tensors)
    return model


def test_images_of_a_strange_scanner_are_told_apart_by_statistics_of_its_own() -> None:
    task = _task()
    model = _model(task)
    assert received_logits(task, model, PALE).argmax(1).unique().tolist() == [1]
    found = adaptive_logits(task, model, PALE)
    assert found.argmax(1).tolist() == [0] * 10 + [1] * 10
    assert not model.training
    assert torch.equal(model.first.mean, task.groups["batch_norm"].tensors["first.mean"]), "the received ones again"


def test_where_the_received_statistics_make_the_model_surer_they_are_used() -> None:
    """A silo of one class alone: its own statistics hide what all of its images have."""
    task = _task()
    model, images = _model(task), _images(*range(180, 200))
    own = adapted_statistics(task, model, images)
    batch_norm.load(model, own)
    assert logits_of(model.eval(), images, FORM).argmax(1).unique().tolist() == [0, 1]
    assert adaptive_logits(task, model, images).argmax(1).unique().tolist() == [1]


def test_only_the_first_layers_statistics_are_the_silos_own() -> None:
    task = _task()
    sent = task.groups["batch_norm"].tensors
    found = adapted_statistics(task, _model(task), PALE)
    assert set(found) == set(sent)
    assert [name for name in sorted(sent) if not torch.equal(found[name], sent[name])] == ["first.mean", "first.var"]
    pixels = augment.to_input(PALE, FORM)
    assert float(found["first.mean"]) == pytest.approx(float(pixels.mean()), abs=1e-6)


def test_a_network_without_statistics_labels_as_it_is() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(16, 2)

        def forward(self, images_BCHW: Tensor) -> Tensor:
            logits_BK: Tensor = self.last(images_BCHW.flatten(1))
            return logits_BK

    w = initial_model(Plain, 3)
    task = replace(_task(), groups={"model": TensorGroup(w)}, build_model=Plain)
    model = Plain()
    tensors.load_into(model, w)
    assert adapted_statistics(task, model, PALE) == {}
    assert torch.equal(adaptive_logits(task, model, PALE), received_logits(task, model, PALE))


def test_certainty_is_the_mean_of_the_largest_probability_of_each_image_or_of_each_finding() -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]).log()
    assert certainty(logits) == pytest.approx((0.5 + 0.9) / 2)
    odds = torch.logit(torch.tensor([[0.2, 0.6], [0.5, 0.95]]))
    assert certainty(odds, multi_label=True) == pytest.approx((0.8 + 0.6 + 0.5 + 0.95) / 4)


def test_findings_are_labelled_by_the_surer_statistics_as_well() -> None:
    task = _task()
    model = _model(task)
    assert torch.equal(adaptive_logits(task, model, PALE, multi_label=True), adaptive_logits(task, model, PALE))
