"""Every method trains on a device that is not the CPU: nothing lies on the wrong one, and no step waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.averaged_training import AveragedTraining
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.process import compute
from semisilo.coordinator.compute.operations import Operations as CoordinatorOperations
from semisilo.silo.compute.operations import Operations as SiloOperations
from semisilo.silo.trainers.fed_shvr import FedSHVRTrainer
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.self_training import SelfTrainingTrainer
from semisilo.silo.trainers.semifl import SemiFLTrainer
from semisilo.simulation import run
from tests.pretended_device import DEVICE, PretendedTensor, WrongDevice, on_the_device, pretended_device
from tests.semisilo.studies import CASES, study

FORM = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.4,))
MORE: Mapping[str, dict[str, Any]] = {
    "labels alone by the paper's recipe": study("semifl", rounds=1, **{
        "study": {"labelled_only_baseline": True, "baseline_recipe": "paper", "baseline_epochs": 2}}),
    "joined passes": study("self_training", rounds=1, settings={"joined_passes": True}),
    "standardised one by one": study("self_training", rounds=1, data={"image": {
        "size": 8, "channels": 1, "standardise": "image"}}),
    "the judge": study("self_training", rounds=1, robust={"rule": "judge"}),
    "geometric median": study("semifl", rounds=1, robust={"rule": "geometric_median"}),
    "privacy of images": study("self_training", rounds=1, model={"normalisation": "group"}, privacy={
        "dp": {"unit": "example", "noise_multiplier": 1.0}}, settings={
        "mix_weight": 0.0, "silo_prior": "model", "local_logit_adjustment": 0.0}),
    "statistics of silos": study("semifl", rounds=1, settings={"sbn_source": "coordinator+silos"}),
    "few numbers of an update": study("self_training", rounds=1, wire={"uplink": "top-k 5% int8"}),
}


def loss_of(tables: dict[str, Any], out: Path) -> float:
    """Of the model after the last round; with local training, where there is no model of all, how much silos' own ones
    get right."""
    metrics = run(tables, out=out, device="cpu").rounds[-1].metrics
    return metrics["local_accuracy" if tables["method"]["name"] == "local" else "loss"]


def works_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides' compute processes take the pretended device for one that the machine has."""
    monkeypatch.setattr(compute, "run_operation", on_the_device(compute.run_operation))
    for each in (CoordinatorOperations, SiloOperations):
        monkeypatch.setattr(each, "__init__", _with_device(each.__init__))


def _with_device(init: Callable[..., None]) -> Callable[..., None]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._device = DEVICE

    return wrapped


QUICK = ("self_training", "labels-at-coordinator"), ("fed_shvr", "labels-at-silo")


@pytest.mark.parametrize("tables", [
    *(pytest.param(study(*case, rounds=1), id=" ".join(case), marks=() if case in QUICK else pytest.mark.slow)
      for case in CASES),
    *(pytest.param(tables, id=name, marks=pytest.mark.slow) for name, tables in MORE.items())])
def test_a_round_on_another_device_comes_to_what_the_cpu_computes(
        tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = loss_of(tables, tmp_path / "cpu")
    works_on_the_device(monkeypatch)
    assert loss_of(tables, tmp_path / "device") == pytest.approx(alone, abs=2e-3)


# Waiting --------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(144, 3)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.first(images_BCHW)).flatten(1))
        return found


def images(count: int, *, labelled: bool = False) -> ImageSet:
    drawn = torch.Generator().manual_seed(7)
    return ImageSet(torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=drawn),
                    torch.arange(count) % 3 if labelled else None, tuple(map(str, range(count))))


def task(settings: Any) -> SiloTask:
    return SiloTask(study="s", round=1, rounds=4, phase="train", silo="a", seed=1, settings=settings,
                    groups={"model": TensorGroup(initial_model(Network, 3))}, build_model=Network,
                    augmentation=AugmentationSettings(policy="small"), image=FORM, device=DEVICE)


def waits_of_hub(steps: int) -> Counter[str]:
    model = Network()
    with pretended_device() as waits:
        training = AveragedTraining(
            task(SelfTrainingSettings()), model.to(DEVICE), images(12, labelled=True), log_prior_K=torch.zeros(3),
            initial=initial_model(Network, 3), sgd=SGDSettings(lr=0.01), steps=steps, batch_size=4, purpose="test")
        for _ in training.run():
            pass
        assert training.loss > 0
        return Counter(waits)


KEPT = {"confidence_threshold": 0.0, "unlabelled_batch": 4, "round_lr": 0.01}
OWN_LABELS = {"scenario": "labels-at-silo", "labelled_batch": 4}


@pytest.mark.parametrize(("trainer", "settings"), [
    (SelfTrainingTrainer, SelfTrainingSettings(**KEPT, model_prior=(1 / 3,) * 3)),
    (SemiFLTrainer, SemiFLSettings(**KEPT)),
    (FedAvgTrainer, FedAvgSettings(**KEPT, objective="fixmatch")),
    (FedAvgTrainer, FedAvgSettings(**KEPT, **OWN_LABELS, objective="uda")),
    (FedAvgTrainer, FedAvgSettings(**OWN_LABELS, round_lr=0.01, objective="sl")),
    (FedSHVRTrainer, FedSHVRSettings(labelled_batch=4, unlabelled_batch=4)),
], ids=["self-training", "SemiFL", "FixMatch", "UDA", "labels alone", "Fed-SHVR"])
def test_a_silo_waits_for_its_device_no_more_often_when_it_takes_more_steps(trainer: type, settings: Any) -> None:
    labelled = images(8, labelled=True) if settings.scenario == "labels-at-silo" else None

    def waits(epochs: int) -> Counter[str]:
        with pretended_device() as found:
            update, _ = trainer().train(task(replace(settings, local_epochs=epochs)),
                                        SiloData(labelled=labelled, unlabelled=images(20)), None)
            assert update.groups
            return Counter(found)

    assert waits(6) == waits(2)


def test_the_coordinator_waits_for_its_device_no_more_often_when_it_takes_more_steps() -> None:
    assert waits_of_hub(9) == waits_of_hub(3)


# The device itself ----------------------------------------------------------------------------------------------------


def test_what_a_real_device_refuses_is_refused() -> None:
    with pretended_device():
        there = torch.ones(3, device=DEVICE)
        assert isinstance(there, PretendedTensor)
        for mistake in (lambda: there + torch.ones(3), lambda: torch.ones(3).add_(there),
                        lambda: torch.ones(3)[torch.tensor([1], device=DEVICE)],
                        lambda: torch.rand(3, device=DEVICE, generator=torch.Generator())):
            with pytest.raises(WrongDevice, match="test_devices"):
                mistake()
        assert (there + torch.tensor(2.0)).tolist() == [3.0] * 3
        assert there[torch.tensor([0, 2])].to("cpu").equal(torch.ones(2))


def test_what_waits_for_the_device_is_counted_by_place() -> None:
    with pretended_device() as waits:
        there = torch.ones(3, device=DEVICE)
        there = there * 2 + torch.tensor(1.0, device=DEVICE)
        assert not waits
        assert float(there.sum()) == 9
        there.to("cpu")
        torch.nonzero(there)
        there[there > 0]
        assert sum(waits.values()) == 4
        assert all("test_what_waits_for_the_device_is_counted_by_place" in place for place in waits)
