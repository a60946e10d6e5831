"""The coordinator half of `perturb`: w + sum p_k delta_k, with equal p_k. No training, no evaluation of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import (
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    SiloState,
    Task,
    TensorGroup,
    UpdateHeader,
)
from semisilo_perturb.method import PerturbSettings

__all__ = ["PerturbState", "PerturbStrategy", "PerturbTally"]

_TRAIN = Phase("train")
_INITIAL_DEVIATION = 0.05


@dataclass(frozen=True, kw_only=True)
class PerturbState:
    """What survives a round."""

    w: dict[str, Tensor]
    """The model."""
    digest: str
    """`semisilo.common.learning.tensors.digest` of w, computed once."""


@dataclass(frozen=True, kw_only=True)
class PerturbTally:
    """A round being folded."""

    weight: float
    """p_k, the same for every accepted update."""
    delta: dict[str, Tensor] | None = None
    """sum p_k delta_k so far. Ours alone, so it is added to in place: one model of memory, whatever the silos."""


class PerturbStrategy:
    """The coordinator half."""

    State = PerturbState
    Tally = PerturbTally

    def __init__(self, settings: PerturbSettings, environment: Environment) -> None:
        self._seed = environment.seed
        self._served: tuple[PerturbState, TensorGroup] | None = None

    def start(self, initial: Mapping[str, Tensor]) -> PerturbState:
        """Normal noise in the layout of `initial`, so that a compressor meets weights and not the network's zeros."""
        generator = torch_generator(self._seed, "perturb_initial")
        return _state({name: torch.empty_like(tensor).normal_(0, _INITIAL_DEVIATION, generator=generator)
                       for name, tensor in initial.items()})

    def phases(self, state: PerturbState, round: int) -> tuple[Phase, ...]:
        """One."""
        return (_TRAIN,)

    def task(self, state: PerturbState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The model; the same object for every silo, so that it is encoded once."""
        if self._served is None or self._served[0] is not state:
            self._served = state, TensorGroup(state.w, digest=state.digest)
        return Task(groups={"model": self._served[1]})

    def expects(self, state: PerturbState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that was sent."""
        return {"model": GroupLayout(Meaning.DIFFERENCE, state.digest, tensors.specs(state.w))}

    def begin(self, state: PerturbState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> PerturbTally:
        """p_k = 1 / number of accepted updates."""
        return PerturbTally(weight=1.0 / max(1, len(headers)))

    def fold(self, state: PerturbState, tally: PerturbTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[PerturbTally, SiloState]:
        """Adds p_k delta_k."""
        update = groups["model"].tensors
        if tally.delta is None:
            tensors.check_same_layout(state.w, update)
            return replace(tally, delta={name: update[name] * tally.weight for name in state.w}), kept
        for name, total in tally.delta.items():
            total.add_(update[name], alpha=tally.weight)
        return tally, kept

    def finish(self, state: PerturbState, phase: Phase, tally: PerturbTally, *, round: int) -> PerturbState:
        """w + delta, where nobody changed an element w itself."""
        self._served = None
        if tally.delta is None:
            return state
        for name, total in tally.delta.items():
            total.add_(state.w[name])
        return _state(tally.delta)

    def model(self, state: PerturbState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The model; it has no batch-norm statistics."""
        return state.w, {}


def _state(w: dict[str, Tensor]) -> PerturbState:
    return PerturbState(w=w, digest=tensors.digest(w))
