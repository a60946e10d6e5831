"""Both halves of SemiFL in one process on the embedded digits: it learns from unlabelled images, and it resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.readers import measure_form, read_images
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import (
    CoordinatorData,
    Environment,
    ModelSettings,
    Phase,
    SiloData,
    SiloTask,
    TensorGroup,
    Update,
    UpdateHeader,
)
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import ModelBuilder, initial_model, model_builder
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies.semifl import SemiFLState, SemiFLStrategy
from semisilo.silo.trainers.semifl import SemiFLMemory, SemiFLTrainer
from semisilo.simulation.splits import splits
from tests.labels_alone import train_labelled_only

SEED = 1
AUGMENTATION = AugmentationSettings(policy="small", without=("Invert", "Solarize"))


@dataclass(frozen=True)
class World:
    """Twenty labelled digits at the coordinator, the others unlabelled at three silos."""

    environment: Environment
    silos: dict[str, ImageSet]
    build: ModelBuilder
    form: ImageForm


def _world(rounds: int) -> World:
    found = read_images("digits#train", size=8, channels=1)
    images, truth = found.images, found.images.labels_N
    assert truth is not None
    labelled = splits.labelled_selection(truth.numpy(), 20, 10, SEED)
    parts = splits.iid(truth.numpy(), 3, seed=SEED, labelled=labelled)
    mean, std = measure_form(images.subset(labelled))
    form = ImageForm(size=8, channels=1, mean=mean, std=std)
    build = model_builder(ModelSettings(classes=found.classes), form)
    test = read_images("digits#test", size=8, channels=1).images
    environment = Environment(seed=SEED, rounds=rounds, num_silos=3, build_model=build, image=form,
                              augmentation=AUGMENTATION,
                              data=CoordinatorData(labelled=images.subset(labelled), test=test))
    silos = {f"silo-{letter}": images.subset(part) for letter, part in zip("abc", parts.silos, strict=True)}
    return World(environment, silos, build, form)


@dataclass
class Federation:
    """A coordinator and its silos; `reload` is put between any two steps, as a restart would be."""

    world: World
    settings: SemiFLSettings
    reload: Callable[[Any], Any] = lambda value: value
    memories: dict[str, SemiFLMemory | None] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)

    def start(self) -> SemiFLState:
        return SemiFLStrategy(self.settings, self.world.environment).start(initial_model(self.world.build, SEED))

    def round(self, state: SemiFLState, number: int, *, arrival: int = 1) -> SemiFLState:
        for phase in SemiFLStrategy(self.settings, self.world.environment).phases(state, number):
            state = self.phase(self.reload(state), phase, number, arrival)
        return state

    def phase(self, state: SemiFLState, phase: Phase, number: int, arrival: int) -> SemiFLState:
        strategy = SemiFLStrategy(self.settings, self.world.environment)
        accepted: dict[str, tuple[UpdateHeader, dict[str, TensorGroup]]] = {}
        for silo in sorted(self.world.silos)[::arrival]:
            task = strategy.task(state, phase, silo, None, round=number)
            work = SiloTask(study="s", round=number, rounds=self.world.environment.rounds, phase=phase.name, silo=silo,
                            seed=SEED, settings=dataclasses.replace(self.settings, **task.settings), groups=task.groups,
                            build_model=self.world.build, augmentation=AUGMENTATION, image=self.world.form)
            update, memory = SemiFLTrainer().train(work, SiloData(unlabelled=self.world.silos[silo]),
                                                   self.reload(self.memories.get(silo)))
            self.updates.append(update)
            if not update.abstention:
                self.memories[silo] = memory
                accepted[silo] = UpdateHeader(silo, update.num_examples, update.metrics), dict(update.groups)
                _check_contract(strategy, state, phase, number, update)
        headers = tuple(accepted[silo][0] for silo in sorted(accepted))
        tally = strategy.begin(state, phase, headers, round=number)
        for header in headers:
            tally, _ = strategy.fold(state, tally, header, accepted[header.silo][1], None)
        return strategy.finish(state, phase, tally, round=number)

    def accuracy(self, state: SemiFLState) -> float:
        model, test = self.world.build(), self.world.environment.data.test
        assert test is not None
        tensors.load_into(model, state.w)
        batch_norm.load(model, state.batch_norm)
        return evaluate(model, test, form=self.world.form).accuracy


def _check_contract(strategy: SemiFLStrategy, state: SemiFLState, phase: Phase, number: int, update: Update) -> None:
    expected = strategy.expects(state, phase, round=number)
    assert set(update.groups) == set(expected)
    check_metrics(METHODS["semifl"], update.metrics, update=True)
    for name, layout in expected.items():
        group = update.groups[name]
        assert (group.meaning, group.base) == (layout.meaning, layout.base)
        assert tensors.specs(group.tensors) == layout.tensors
        assert METHODS["semifl"].up[name] is group.meaning


def _bits(state: SemiFLState) -> str:
    return tensors.digest({**{f"w/{name}": tensor for name, tensor in state.w.items()},
                           **{f"bn/{name}": tensor for name, tensor in state.batch_norm.items()},
                           **{f"g/{name}": tensor for name, tensor in (state.global_buf or {}).items()},
                           **{f"o/{name}": tensor for name, tensor in (state.opt_buf or {}).items()}})


@pytest.mark.slow
def test_unlabelled_images_at_three_silos_beat_labels_alone() -> None:
    """Five rounds from 20 labels. Measured for seeds 1, 2, 3: labels alone 0.78, 0.76, 0.85; round 0 0.76, 0.70,
    0.81; round 5 0.89, 0.89, 0.90. So leads of 5 and 2 points do not hang on luck."""
    world = _world(rounds=5)
    federation = Federation(world, SemiFLSettings(coordinator_epochs=40, local_epochs=2))
    state = federation.start()
    accuracies = [federation.accuracy(state)]
    for number in range(1, 6):
        state = federation.round(state, number)
        accuracies.append(federation.accuracy(state))
    alone = train_labelled_only(world.environment, epochs=200)
    assert accuracies[-1] > accuracies[0] + 0.05, accuracies
    assert accuracies[-1] > alone.evaluation.accuracy + 0.02, (accuracies, alone.evaluation.accuracy)
    assert alone.history[-1].epoch == alone.epochs == 200
    assert alone.history[-1].accuracy == alone.evaluation.accuracy
    assert (alone.batch_size, alone.num_labelled, alone.steps) == (10, 20, 400)
    last = [update.metrics for update in federation.updates[-3:]]
    assert all(metrics["threshold_accuracy"] > 0.9 for metrics in last)


SMALL = SemiFLSettings(coordinator_epochs=15, local_epochs=1, unlabelled_batch=64, confidence_threshold=0.6,
                       sbn_source="coordinator+silos")


@pytest.mark.slow  # quickly: test_contract.py, through engine, codec and disk
def test_a_restart_between_any_two_steps_changes_no_bit(tmp_path: Path) -> None:
    """State and memories go through the disk before every use, the strategy and the trainers are new each time."""

    def through_the_disk(value: Any) -> Any:
        if value is None:
            return None
        checkpoint.save(tmp_path / "file", value)
        torch.default_generator.manual_seed(torch.initial_seed() + 1)  # a new process has another global generator
        return checkpoint.load(tmp_path / "file", type(value))

    world, results = _world(rounds=3), []
    for reload in (lambda value: value, through_the_disk):
        federation = Federation(world, SMALL, reload)
        state = reload(federation.start())
        for number in (1, 2, 3):
            state = federation.round(state, number)
        assert not any(update.abstention for update in federation.updates[-3:])
        results.append((_bits(state), {silo: tensors.digest(memory.momentum)
                                       for silo, memory in sorted(federation.memories.items()) if memory}))
    assert results[0] == results[1]
    assert len(results[0][1]) == 3


@pytest.mark.slow  # quickly: test_contract.py, through engine, codec and disk
def test_the_order_in_which_silos_work_changes_no_bit() -> None:
    world = _world(rounds=2)
    forwards, backwards = (Federation(world, SMALL) for _ in range(2))
    start = forwards.start()
    assert _bits(forwards.round(start, 1)) == _bits(backwards.round(start, 1, arrival=-1))


@pytest.mark.slow
def test_silos_that_do_not_move_leave_the_fine_tuned_model() -> None:
    """With lr 0 at the silos every difference is zero, so w changes by fine-tuning alone: as if nobody had answered."""
    world = _world(rounds=2)
    federation = Federation(world, dataclasses.replace(SMALL, sbn_source="coordinator"))
    start = federation.start()
    strategy = SemiFLStrategy(federation.settings, world.environment)
    phase = strategy.phases(start, 1)[0]
    nobody = strategy.finish(start, phase, strategy.begin(start, phase, (), round=1), round=1)
    headers = tuple(UpdateHeader(silo, 1) for silo in sorted(world.silos))
    tally = strategy.begin(start, phase, headers, round=1)
    for header in headers:
        tally, _ = strategy.fold(start, tally, header, {"model": TensorGroup(tensors.zeros_like(start.w))}, None)
    still = strategy.finish(start, phase, tally, round=1)
    assert tensors.digest(still.w) == tensors.digest(nobody.w)
    assert nobody.global_buf is None
    assert still.global_buf is not None
