"""A task's model: made from what was received, taken back as a difference; what was kept is used only where it fits."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import ComputeFailed, LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm, layers_of
from semisilo.common.methods.contract import Meaning, SiloTask, TensorGroup
from semisilo.silo.trainers.parts.model import (
    difference,
    load_received_statistics,
    task_model,
    that_fits,
    trained_parameters,
)


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


W = tensors.parameters_of(_net())
STATISTICS = {"1.mean": torch.full((4,), 0.5), "1.var": torch.full((4,), 2.0)}


def _task(**changes: Any) -> SiloTask:
    task = SiloTask(study="s", round=2, rounds=4, phase="train", silo="a", seed=1, settings=None,
                    groups={"model": TensorGroup(W), "batch_norm": TensorGroup(STATISTICS)}, build_model=_net,
                    augmentation=AugmentationSettings(policy="none"),
                    image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)))
    return replace(task, **changes)


def test_a_tasks_model_has_what_was_received_and_leaves_torchs_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    model = task_model(_task(), W)
    assert torch.equal(torch.get_rng_state(), before)
    assert tensors.digest(tensors.parameters_of(model)) == tensors.digest(W)
    load_received_statistics(_task(), model)
    mean = layers_of(model)["1"].mean
    assert mean is not None
    assert torch.equal(mean, STATISTICS["1.mean"])


def test_a_network_that_needs_statistics_does_not_go_without() -> None:
    with pytest.raises(LayoutMismatch, match=r"'1\.mean' is missing"):
        load_received_statistics(_task(groups={"model": TensorGroup(W)}), task_model(_task(), W))


def test_what_goes_back_is_the_difference_to_what_was_sent() -> None:
    found = difference(_task(), tensors.add(W, W))
    assert (found.meaning, found.base) == (Meaning.DIFFERENCE, tensors.digest(W))
    for name, tensor in found.tensors.items():
        torch.testing.assert_close(tensor, W[name], rtol=0, atol=1e-6)


def test_a_model_that_has_diverged_is_not_sent() -> None:
    model = task_model(_task(), W)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ComputeFailed, match="at this silo in round 2"):
        trained_parameters(_task(), model)


def test_what_was_kept_of_another_model_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert that_fits(W, W, "momentum") is W
    with caplog.at_level(logging.WARNING, "semisilo.silo"):
        assert that_fits({"other": torch.ones(2)}, W, "momentum") is None
    assert "momentum starts anew" in caplog.text
