"""Local-only training at the coordinator: one initial model for all, and the means of what silos say of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning import tensors
from semisilo.common.learning.training import cosine_lr
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.local import LocalSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies.local import LocalState, LocalStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN


def _net() -> nn.Module:
    return nn.Linear(3, 2)


def _strategy(**settings: Any) -> LocalStrategy:
    environment = Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(), build_model=_net,
                              image=ImageForm(size=1, channels=1, mean=(0.5,), std=(0.25,)),
                              augmentation=AugmentationSettings(policy="none"))
    return LocalStrategy(LocalSettings(**settings), environment)


def _round(strategy: LocalStrategy, state: LocalState, metrics: dict[str, dict[str, float]],
           round: int = 1) -> LocalState:
    headers = tuple(UpdateHeader(silo, 10, metrics[silo]) for silo in sorted(metrics))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        tally, kept = strategy.fold(state, tally, header, {"steps": TensorGroup({"steps": torch.tensor([3])})}, None)
        assert kept is None
    return strategy.finish(state, TRAIN, tally, round=round)


def test_every_silo_is_offered_the_initial_model_in_every_round() -> None:
    """The same bits every time, so that a silo that holds them is sent nothing."""
    strategy = _strategy(lr=0.2, schedule="cosine")
    state = strategy.start(initial_model(_net, 1))
    later = _round(strategy, state, {"a": {"local_accuracy": 0.5}})
    first = strategy.task(state, TRAIN, "a", None, round=1)
    second = strategy.task(later, TRAIN, "b", None, round=2)
    assert first.groups["model"].digest == second.groups["model"].digest == tensors.digest(initial_model(_net, 1))
    assert second.settings == {"round_lr": cosine_lr(0.2, round=2, rounds=4)}
    assert strategy.model(later) == (later.initial, {})


def test_an_update_is_a_number_of_steps() -> None:
    strategy = _strategy()
    state = strategy.start(initial_model(_net, 1))
    layout = strategy.expects(state, TRAIN, round=1)
    assert set(layout) == {"steps"}
    assert layout["steps"].meaning is Meaning.VALUES
    assert layout["steps"].tensors == tensors.specs({"steps": torch.tensor([3])})
    assert strategy.phases(state, 1) == (TRAIN,)


def test_accuracies_are_means_over_the_silos_that_gave_one() -> None:
    strategy = _strategy()
    state = strategy.start(initial_model(_net, 1))
    assert strategy.diagnostics(state) == {}
    state = _round(strategy, state, {"a": {"local_accuracy": 0.5, "local_labelled_accuracy": 0.75},
                                     "b": {"local_accuracy": 0.25}, "c": {}})
    assert strategy.diagnostics(state) == {"local_accuracy": 0.375, "local_labelled_accuracy": 0.75,
                                           "local_accuracy/a": 0.5, "local_accuracy/b": 0.25}
    assert strategy.diagnostics(_round(strategy, state, {}, round=2)) == {}


def test_an_impossible_accuracy_counts_as_the_nearest_possible_one() -> None:
    strategy = _strategy()
    state = _round(strategy, strategy.start(initial_model(_net, 1)),
                   {"a": {"local_accuracy": 1e30}, "b": {"local_accuracy": -4.0}})
    assert strategy.diagnostics(state)["local_accuracy"] == pytest.approx(0.5)


def test_a_state_survives_the_disk(tmp_path: Path) -> None:
    strategy = _strategy()
    state = _round(strategy, strategy.start(initial_model(_net, 1)), {"a": {"local_accuracy": 0.5}})
    checkpoint.save(tmp_path / "s.safetensors", state)
    again = checkpoint.load(tmp_path / "s.safetensors", LocalState)
    assert tensors.digest(again.initial) == tensors.digest(state.initial)
    assert again.accuracies == state.accuracies
