"""Both halves of FedMatch in one process on the embedded digits: it learns in both scenarios, and it resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.readers import read_images
from semisilo.common.learning import tensors
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import (
    FROM_TASK,
    CoordinatorData,
    Environment,
    Meaning,
    ModelSettings,
    Phase,
    SiloData,
    SiloTask,
    TensorGroup,
    Update,
    UpdateHeader,
)
from semisilo.common.methods.fedmatch import FedMatchSettings
from semisilo.common.models.factory import initial_model, model_builder
from semisilo.common.storage import checkpoint
from semisilo.coordinator.compute.evaluation import build_with
from semisilo.coordinator.strategies.fedmatch.strategy import FedMatchState, FedMatchStrategy
from semisilo.silo.trainers.fedmatch import FedMatchTrainer
from semisilo.simulation.splits import splits

SEED, ROUNDS = 1, 4
AUGMENTATION = AugmentationSettings(policy="small", without=("Invert", "Solarize"))
SILO, COORDINATOR = "labels-at-silo", "labels-at-coordinator"


@dataclass(frozen=True)
class World:
    """Fifty labelled digits at the coordinator, or at each of three silos; 150 for validation."""

    environment: Environment
    silos: dict[str, SiloData]


def _world(scenario: str, *, most: int = 10_000) -> World:
    """
    Args:
        most: unlabelled images of a silo.
    """
    found = read_images("digits#train", size=8, channels=1)
    images, truth = found.images, found.images.labels_N
    assert truth is not None
    at_silo = scenario == SILO
    labelled = splits.labelled_selection(truth.numpy(), 150 if at_silo else 50, 10, SEED)
    parts = splits.iid(truth.numpy(), 3, seed=SEED, labelled=labelled)
    form = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.35,))
    measured = read_images("digits#test", size=8, channels=1).images
    data = CoordinatorData(labelled=None if at_silo else images.subset(labelled),
                           validation=measured.subset(range(150)), test=measured.subset(range(150, len(measured))))
    environment = Environment(
        seed=SEED, rounds=ROUNDS, num_silos=3, image=form, augmentation=AUGMENTATION, data=data,
        build_model=model_builder(ModelSettings(classes=found.classes, normalisation="static_batch"), form))
    silos = {f"silo-{letter}": SiloData(unlabelled=images.subset(part[:most]),
                                        labelled=images.subset(labelled[number::3]) if at_silo else None)
             for number, (letter, part) in enumerate(zip("abc", parts.silos, strict=True))}
    return World(environment, silos)


@dataclass
class Federation:
    """A coordinator and its silos; `reload` is put between any two steps, as a restart would be."""

    world: World
    settings: FedMatchSettings
    reload: Callable[[Any], Any] = lambda value: value
    arrival: int = 1
    kept: dict[str, Any] = field(default_factory=dict)
    memories: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the last round, by silo."""
    numbers: list[dict[str, float]] = field(default_factory=list)

    def start(self) -> FedMatchState:
        return self._strategy().start(initial_model(self.world.environment.build_model, SEED))

    def run(self, rounds: int = ROUNDS) -> list[float]:
        """Accuracy of round 0, 1, ..."""
        state = self.start()
        accuracies = [self.accuracy(state)]
        for number in range(1, rounds + 1):
            state = self.round(state, number)
            accuracies.append(self.accuracy(state))
        self.state = state
        return accuracies

    def round(self, state: FedMatchState, number: int) -> FedMatchState:
        for phase in self._strategy().phases(state, number):
            state = self._phase(self.reload(state), phase, number)
        self.numbers.append(dict(self._strategy().diagnostics(state)))
        return state

    def _phase(self, state: FedMatchState, phase: Phase, number: int) -> FedMatchState:
        strategy, environment = self._strategy(), self.world.environment
        accepted: dict[str, tuple[UpdateHeader, dict[str, TensorGroup]]] = {}
        for silo in sorted(self.world.silos)[:: self.arrival]:
            task = strategy.task(state, phase, silo, self.reload(self.kept.get(silo)), round=number)
            work = SiloTask(study="s", round=number, rounds=environment.rounds, phase=phase.name, silo=silo, seed=SEED,
                            settings=dataclasses.replace(self.settings, **task.settings), groups=task.groups,
                            build_model=environment.build_model, augmentation=AUGMENTATION, image=environment.image)
            update, memory = FedMatchTrainer().train(work, self.world.silos[silo], self.reload(self.memories.get(silo)))
            _check_contract(strategy, state, phase, number, work, update)
            self.memories[silo] = memory
            self.metrics[silo] = dict(update.metrics)
            accepted[silo] = UpdateHeader(silo, update.num_examples, update.metrics), dict(update.groups)
        headers = tuple(accepted[silo][0] for silo in sorted(accepted))
        tally = strategy.begin(state, phase, headers, round=number)
        for header in headers:
            tally, self.kept[header.silo] = strategy.fold(state, tally, header, accepted[header.silo][1],
                                                          self.reload(self.kept.get(header.silo)))
        return strategy.finish(state, phase, tally, round=number)

    def _strategy(self) -> FedMatchStrategy:
        return FedMatchStrategy(self.settings, self.world.environment)

    def accuracy(self, state: FedMatchState) -> float:
        environment, (w, statistics) = self.world.environment, self._strategy().model(state)
        assert environment.data.test is not None
        return evaluate(build_with(environment, w, statistics), environment.data.test, form=environment.image).accuracy


def _check_contract(strategy: FedMatchStrategy, state: FedMatchState, phase: Phase, number: int, task: SiloTask,
                    update: Update) -> None:
    expected = strategy.expects(state, phase, round=number)
    assert set(update.groups) == set(expected)
    check_metrics(METHODS["fedmatch"], update.metrics, update=True)
    for name, layout in expected.items():
        group = update.groups[name]
        assert group.meaning is layout.meaning is METHODS["fedmatch"].up[name]
        assert tensors.specs(group.tensors) == layout.tensors
        if layout.meaning is Meaning.OVERWRITE:
            assert layout.base == FROM_TASK
            assert group.base == tensors.digest(task.groups[name].tensors)


def _settings(scenario: str, preset: str, **changes: Any) -> FedMatchSettings:
    """The published values but for the learning rate and the epochs: 4 rounds on 1,400 digits are little."""
    own: dict[str, Any] = {"lr": 0.01, "local_epochs": 2}
    if scenario == COORDINATOR:
        own["coordinator_epochs"] = 5
    if preset == "paper_v3":
        own["helper_interval"] = 2
    return FedMatchSettings(scenario=scenario, preset=preset, **{**own, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("scenario", "preset", "most"), [
    pytest.param(COORDINATOR, "paper_v1", 100, marks=pytest.mark.slow),
    pytest.param(COORDINATOR, "paper_v3", 250, marks=pytest.mark.slow),
    pytest.param(SILO, "paper_v1", 250, marks=pytest.mark.slow),
    pytest.param(SILO, "paper_v3", 250, marks=pytest.mark.slow)])
def test_it_learns(scenario: str, preset: str, most: int) -> None:
    """Measured after 4 rounds: 0.92 in all but v3 with labels at the silos, 0.97. Chance is 0.1."""
    federation = Federation(_world(scenario, most=most), _settings(scenario, preset))
    accuracies = federation.run()
    assert accuracies[-1] > 0.85, accuracies
    assert accuracies[-1] > accuracies[0] + (0.3 if scenario == SILO else 0.0), accuracies
    helped = ["consistency_loss" in metrics for metrics in federation.metrics.values()]
    assert helped == [True] * 3, "round 4 has helpers in both presets"
    assert federation.numbers[0]["s2c_percent"] == pytest.approx(200.0)
    assert all(numbers["c2s_percent"] <= (200.0 if scenario == SILO else 100.0) for numbers in federation.numbers)


@pytest.mark.slow
def test_strong_sparsity_sends_a_tenth_of_the_values_and_still_learns() -> None:
    """Proximal steps and coarse thresholds: psi has few values left, most differences stay at home. Measured: 1.4 % of
    the values against 100 %, accuracy 0.86 against 0.92."""
    world = _world(COORDINATOR, most=250)
    dense, sparse = (Federation(world, _settings(COORDINATOR, "paper_v3", num_helpers=0, **changes))
                     for changes in ({"lambda_l1": 0.0, "l1_thres": 0.0, "delta_thres": 0.0},
                                     {"lambda_l1": 0.1, "lambda_l2": 0.1, "l1_update": "proximal", "l1_thres": 1e-3,
                                      "delta_thres": 1e-3}))
    accuracies = [federation.run()[-1] for federation in (dense, sparse)]
    costs = [federation.numbers[-1]["c2s_percent"] for federation in (dense, sparse)]
    assert costs[0] > 90.0
    assert costs[1] < 10.0, costs
    assert sparse.numbers[-1]["psi_density"] < 0.1
    assert 0.7 < accuracies[1] < accuracies[0], accuracies


SMALL: dict[str, Any] = {"local_epochs": 1, "keep_helpers": True, "helper_interval": 2, "sbn_source": "silos",
                         "abstain_if_no_confident": False}


@pytest.mark.slow  # quickly: test_contract.py, through engine, codec and disk
@pytest.mark.parametrize("preset", ["paper_v1", "paper_v3"])
@pytest.mark.parametrize("scenario", [COORDINATOR, SILO])
def test_a_restart_between_any_two_steps_changes_no_bit_nor_does_the_order_of_arrival(
        scenario: str, preset: str, tmp_path: Path) -> None:
    """State, shadows and memories go through the disk before every use; strategy and trainers are new each time."""

    def through_the_disk(value: Any) -> Any:
        if value is None:
            return None
        checkpoint.save(tmp_path / "file", value)
        torch.default_generator.manual_seed(torch.initial_seed() + 1)  # a new process has another global generator
        return checkpoint.load(tmp_path / "file", type(value))

    changes = {**SMALL, "coordinator_epochs": 1} if scenario == COORDINATOR else SMALL
    world, results = _world(scenario, most=80), []
    for reload, arrival in ((lambda value: value, 1), (through_the_disk, -1)):
        federation = Federation(world, _settings(scenario, preset, **changes), reload, arrival)
        state = federation.start()
        for number in (1, 2, 3):
            state = federation.round(state, number)
        assert all(memory is not None for memory in federation.memories.values()), "helpers are kept"
        checkpoint.save(tmp_path / "state", state)
        results.append(((tmp_path / "state").read_bytes(),
                        [tensors.digest(federation.kept[silo].psi) for silo in sorted(federation.kept)]))
    assert results[0] == results[1]
