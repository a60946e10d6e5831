"""A method whose groups overwrite, both ways and for each silo its own base: as small as that can be, and no learning.

Every silo replaces a hundredth of the group `psi` that it was sent, by numbers that follow from its name and the round,
among them zeros of both signs. The coordinator keeps what each silo holds (its shadow), averages, and sends a silo of
the average only what differs from its shadow by more than `threshold`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.contract import (
    FROM_TASK,
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    SiloData,
    SiloTask,
    Task,
    TensorGroup,
    Update,
    UpdateHeader,
)

__all__ = ["OVERWRITING", "Kept", "OverwritingSettings", "OverwritingStrategy", "OverwritingTrainer"]

TRAIN, LOOK = Phase("train"), Phase("look", asks="roster", quorum="any")


@dataclass(frozen=True, kw_only=True, slots=True)
class OverwritingSettings:
    """Settings."""

    scenario: Literal["labels-at-coordinator"] = "labels-at-coordinator"
    threshold: float = 0.0
    share: float = 0.01


OVERWRITING = MethodSpec(
    name="overwriting", source="nowhere", scenarios=("labels-at-coordinator",),
    down={"psi": Meaning.OVERWRITE, "model": Meaning.VALUES}, up={"psi": Meaning.OVERWRITE, "seen": Meaning.VALUES},
    metrics=("changed", "told"), counts=("changed",), settings=OverwritingSettings, discloses="nothing")


@dataclass(frozen=True, kw_only=True)
class State:
    psi: dict[str, Tensor]
    seen: float


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the coordinator knows a silo to hold."""

    psi: dict[str, Tensor]
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Tally:
    weight: float
    total: dict[str, Tensor] | None = None
    seen: float = 0.0


class OverwritingStrategy:
    """The coordinator half."""

    State = State
    SiloState = Kept
    Tally = Tally

    def __init__(self, settings: OverwritingSettings, environment: Environment) -> None:
        self._settings = settings
        self._served: tuple[State, TensorGroup] | None = None

    def start(self, initial: Mapping[str, Tensor]) -> State:
        return State(psi=dict(initial), seen=0.0)

    def phases(self, state: State, round: int) -> tuple[Phase, ...]:
        return (TRAIN, LOOK)

    def task(self, state: State, phase: Phase, silo: str, kept: Kept | None, *, round: int) -> Task:
        if phase.name == "look":
            return Task(groups={"model": self._whole(state)})
        if kept is None:
            return Task(groups={"psi": self._whole(state)})
        sent = {name: torch.where((state.psi[name] - shadow).abs() > self._settings.threshold, state.psi[name], shadow)
                for name, shadow in kept.psi.items()}
        return Task(groups={"psi": TensorGroup(sent, Meaning.OVERWRITE, tensors.digest(kept.psi),
                                               base_tensors=kept.psi)})

    def expects(self, state: State, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        if phase.name == "look":
            return {"seen": GroupLayout(Meaning.VALUES, "", tensors.specs({"norm": torch.zeros(())}))}
        return {"psi": GroupLayout(Meaning.OVERWRITE, FROM_TASK, tensors.specs(state.psi))}

    def begin(self, state: State, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> Tally:
        return Tally(weight=1 / max(len(headers), 1))

    def fold(self, state: State, tally: Tally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: Kept | None) -> tuple[Tally, Kept | None]:
        if "seen" in groups:
            return replace(tally, seen=tally.seen + tally.weight * float(groups["seen"].tensors["norm"])), kept
        total = tensors.zeros_like(state.psi) if tally.total is None else tally.total
        psi = dict(groups["psi"].tensors)
        return (replace(tally, total=tensors.add(total, psi, factor=tally.weight)),
                Kept(psi=psi, rounds=1 if kept is None else kept.rounds + 1))

    def finish(self, state: State, phase: Phase, tally: Tally, *, round: int) -> State:
        if phase.name == "look":
            return replace(state, seen=tally.seen)
        return state if tally.total is None else replace(state, psi=tally.total)

    def model(self, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return state.psi, {}

    def diagnostics(self, state: State) -> dict[str, float]:
        return {"seen": state.seen, "nonsense": float("nan"), "accuracy": 2.0}

    def local_model(self, state: State, groups: Mapping[str, TensorGroup],
                    kept: Any) -> tuple[Mapping[str, Tensor], dict[str, Tensor]]:
        return groups["psi"].tensors, {}

    def _whole(self, state: State) -> TensorGroup:
        if self._served is None or self._served[0] is not state:
            self._served = state, TensorGroup(state.psi, digest=tensors.digest(state.psi))
        return self._served[1]


class OverwritingTrainer:
    """The silo half."""

    Memory = type(None)

    def train(self, task: SiloTask, data: SiloData, memory: None) -> tuple[Update, None]:
        if task.phase == "look":
            norm = torch.tensor(tensors.norm(task.groups["model"].tensors))
            return Update(groups={"seen": TensorGroup({"norm": norm.float()})}, metrics={"changed": 1.0}), None
        received = task.groups["psi"]
        chance = torch_generator(task.seed, "replaced", round=task.round, silo=task.silo)
        result, changed = {}, 1
        for name, tensor in received.tensors.items():
            flat = tensor.clone().reshape(-1)
            indices = torch.randperm(flat.numel(), generator=chance)[:round(task.settings.share * flat.numel())]
            flat[indices] = 0.1 * torch.randn(len(indices), generator=chance)
            flat[indices[0::3]] = 0.0
            flat[indices[1::3]] = -0.0
            result[name], changed = flat.reshape(tensor.shape), changed + len(indices)
        group = TensorGroup(result, Meaning.OVERWRITE, tensors.group_digest(received), base_tensors=received.tensors)
        return Update(groups={"psi": group}, num_examples=1, metrics={"changed": float(changed)}), None
