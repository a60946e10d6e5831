"""Batches that are far larger than the study says: what they need of memory at least, and that what fits is done."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import ComputeFailed
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.objectives import batch_room
from semisilo.silo.objectives.batch_room import kept_bytes_per_image
from semisilo.silo.trainers.fedavg import FedAvgTrainer


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(5, 3))


def _task(**settings: Any) -> SiloTask:
    values = {"round_lr": 0.1, "objective": "fixmatch", "scenario": "labels-at-silo", "unlabelled_batch": 2, **settings}
    return SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, build_model=_net,
                    settings=FedAvgSettings(**values), groups={"model": TensorGroup(initial_model(_net, 3))},
                    image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)),
                    augmentation=AugmentationSettings(policy="none"))


def _train(task: SiloTask, unlabelled: int) -> Update:
    pixels = torch.zeros((unlabelled + 1, 1, 4, 4), dtype=torch.uint8)
    names = tuple(map(str, range(unlabelled)))
    return FedAvgTrainer().train(task, SiloData(
        labelled=ImageSet(pixels[:1], torch.zeros(1, dtype=torch.int64), ("x",)),
        unlabelled=ImageSet(pixels[1:], None, names)), None)[0]


def test_what_a_network_keeps_of_an_image_is_counted_without_its_weights() -> None:
    """float32: the input, 16; what is behind the sigmoid, 5, and behind dropout, 5, whose mask is 5 as well."""
    state = torch.get_rng_state()
    assert kept_bytes_per_image(_task()) == 4 * (16 + 5 + 5 + 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_cannot_fit_is_refused_and_one_that_does_is_only_told(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One label: all nine images without one are a batch."""
    monkeypatch.setattr(batch_room, "_SAID", set())
    needed = 9 * kept_bytes_per_image(_task())
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(batch_room, "free_bytes", lambda: needed)
        whole = _train(_task(), 9)
        assert whole.metrics["steps"] == 1
        said, = caplog.messages
        assert said.startswith("round 1: a step takes 9 unlabelled images at once, where the study has unlabelled_batch"
                               " = 2")
        assert 'steps_rule = "fed_shvr"' in said
        _train(_task(), 9)
        assert caplog.messages == [said]  # a simulation has many silos in one process
        monkeypatch.setattr(batch_room, "free_bytes", lambda: needed - 1)
        with pytest.raises(ComputeFailed, match=r"A step takes 9 unlabelled images at once \(unlabelled_batch = 2\)") \
                as caught:
            _train(_task(), 9)
        assert 'steps_rule = "fed_shvr"' in caught.value.remedy
        caplog.clear()
        for task, images in ((_task(), 8), (_task(steps_rule="fed_shvr"), 9)):
            assert _train(task, images).metrics["steps"] >= 1
        assert not caplog.messages
