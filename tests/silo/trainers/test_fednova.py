"""FedNova's silo half: FedAvg's, but a silo that took no step abstains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fednova import FedNovaSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.numerics.passes import Descent
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.fednova import FedNovaTrainer
from tests.overflows import overflowing


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _train(trainer: Any, **settings: Any) -> Update:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (20, 1, 4, 4), generator=generator, dtype=torch.uint8)
    data = SiloData(unlabelled=ImageSet(pixels, None, tuple(map(str, range(20)))))
    values = {"round_lr": 0.1, "unlabelled_batch": 5, "objective": "fixmatch", "mask_mean": "kept", **settings}
    task = SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, build_model=_net,
                    settings=FedNovaSettings(**values), groups={"model": TensorGroup(initial_model(_net, 3))},
                    image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)),
                    augmentation=AugmentationSettings(policy="none"))
    update: Update = trainer.train(task, data, None)[0]
    return update


def test_a_silo_with_steps_answers_as_fedavgs() -> None:
    ours, theirs = (_train(each, confidence_threshold=0.0) for each in (FedNovaTrainer(), FedAvgTrainer()))
    assert tensors.digest(ours.groups["model"].tensors) == tensors.digest(theirs.groups["model"].tensors)
    check_metrics(METHODS["fednova"], ours.metrics, update=True)


def test_a_silo_without_a_step_abstains_where_fedavgs_returns_its_zero() -> None:
    ours, theirs = (_train(each, confidence_threshold=1.0) for each in (FedNovaTrainer(), FedAvgTrainer()))
    assert ours.abstention == "no_confident_example"
    assert ours.groups == {}
    check_metrics(METHODS["fednova"], ours.metrics, update=False)
    assert not theirs.abstention
    assert not any(tensor.any() for tensor in theirs.groups["model"].tensors.values())


def test_a_step_that_overflows_is_none_of_those_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _train(FedNovaTrainer(), confidence_threshold=0.0, momentum=0.9)
    assert whole.metrics["steps"] == 4
    monkeypatch.setattr(Descent, "gradients", overflowing(3))
    update = _train(FedNovaTrainer(), confidence_threshold=0.0, momentum=0.9)
    assert update.metrics["steps"] == update.totals["steps"] == 1
    assert update.metrics["loss"] != whole.metrics["loss"]


def test_a_silo_of_which_all_steps_overflow_abstains_and_its_teacher_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descent, "gradients", overflowing(4))
    moved: list[int] = []
    monkeypatch.setattr("semisilo.silo.objectives.mean_teacher.MeanTeacher.after_step",
                        lambda self, model: moved.append(1))
    for settings in ({"confidence_threshold": 0.0}, {"objective": "mean_teacher", "mask_mean": "batch"}):
        for trainer in (FedNovaTrainer(), FedAvgTrainer()):
            update = _train(trainer, **settings)
            assert (update.abstention, update.num_examples) == ("no_usable_batch", 20)
    assert not moved
