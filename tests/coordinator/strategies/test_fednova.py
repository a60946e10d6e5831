"""FedNova at the coordinator: normalised averaging, and the limits in which it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import effective_steps
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fednova import FedNovaSettings
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.strategies.fedavg import FedAvgStrategy
from semisilo.coordinator.strategies.fednova import FedNovaStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN


def _net() -> nn.Module:
    return nn.Linear(3, 2)


ENVIRONMENT = Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(), build_model=_net,
                          image=ImageForm(size=1, channels=1, mean=(0.5,), std=(0.25,)),
                          augmentation=AugmentationSettings(policy="none"))


def _moved(strategy: Any, steps: dict[str, int], factors: dict[str, float],
           sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    state = strategy.start(initial_model(_net, 1))
    headers = tuple(UpdateHeader(silo, sizes[silo], {"steps": float(steps[silo])}) for silo in sorted(steps))
    tally = strategy.begin(state, TRAIN, headers, round=1)
    for header in headers:
        values = {name: torch.full_like(tensor, factors[header.silo]) for name, tensor in state.w.items()}
        tally, _ = strategy.fold(state, tally, header, {"model": TensorGroup(values, Meaning.DIFFERENCE)}, None)
    return tensors.subtract(strategy.finish(state, TRAIN, tally, round=1).w, state.w)


def test_each_silo_counts_by_its_mean_gradient() -> None:
    """p = (1/4, 3/4), tau = (10, 2): tau_eff = 4, so w moves by 1/4 * 4/10 * 1.0 + 3/4 * 4/2 * 0.2 = 0.1 + 0.3."""
    moved = _moved(FedNovaStrategy(FedNovaSettings(), ENVIRONMENT), {"a": 10, "b": 2}, {"a": 1.0, "b": 0.2},
                   {"a": 100, "b": 300})
    assert all(torch.allclose(tensor, torch.full_like(tensor, 0.4), atol=1e-6) for tensor in moved.values())


def test_with_equal_steps_it_is_fedavg() -> None:
    """In the last place: the weights are multiplied by tau_eff / tau, which rounds."""
    given: tuple[Any, ...] = ({"a": 7, "b": 7}, {"a": 1.0, "b": -0.3}, {"a": 100, "b": 300})
    nova = _moved(FedNovaStrategy(FedNovaSettings(momentum=0.9), ENVIRONMENT), *given)
    plain = _moved(FedAvgStrategy(FedAvgSettings(momentum=0.9), ENVIRONMENT), *given)
    assert all(torch.allclose(nova[name], plain[name], atol=1e-6) for name in nova)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_are_how_far_a_constant_gradient_leads(momentum: float, steps: int) -> None:
    """Plain reference: buf = m buf + 1, distance += buf."""
    buffer = distance = 0.0
    for _ in range(steps):
        buffer = momentum * buffer + 1.0
        distance += buffer
    assert effective_steps(steps, momentum=momentum) == pytest.approx(distance)


def test_without_updates_the_model_stays() -> None:
    moved = _moved(FedNovaStrategy(FedNovaSettings(), ENVIRONMENT), {}, {}, {})
    assert all(not tensor.any() for tensor in moved.values())
