"""FedProx at the coordinator is FedAvg with a uniform mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fedprox import FedProxSettings
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.strategies.fedavg import FedAvgStrategy
from semisilo.coordinator.strategies.fedprox import FedProxStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN


def _net() -> nn.Module:
    return nn.Linear(3, 2)


def _after(strategy: Any) -> dict[str, torch.Tensor]:
    state = strategy.start(initial_model(_net, 1))
    headers = (UpdateHeader("a", 100), UpdateHeader("b", 300))
    tally = strategy.begin(state, TRAIN, headers, round=1)
    for header, factor in zip(headers, (0.1, 0.7), strict=True):
        values = {name: torch.full_like(tensor, factor) for name, tensor in state.w.items()}
        tally, _ = strategy.fold(state, tally, header, {"model": TensorGroup(values, Meaning.DIFFERENCE)}, None)
    w: dict[str, torch.Tensor] = strategy.finish(state, TRAIN, tally, round=1).w
    return w


def test_its_mean_is_uniform_and_otherwise_fedavgs_bit_for_bit() -> None:
    environment = Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(), build_model=_net,
                              image=ImageForm(size=1, channels=1, mean=(0.5,), std=(0.25,)),
                              augmentation=AugmentationSettings(policy="none"))
    prox = tensors.digest(_after(FedProxStrategy(FedProxSettings(), environment)))
    assert prox == tensors.digest(_after(FedAvgStrategy(FedAvgSettings(weighting="uniform"), environment)))
    assert prox != tensors.digest(_after(FedAvgStrategy(FedAvgSettings(), environment)))
