"""Local-only training at the coordinator: gives all silos the same initial model and reports how theirs fare.

It has no model of its own but the initial one, which is what an evaluation or an export of such a study shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from semisilo.common.learning.training import lr_of_round
from semisilo.common.methods.contract import (
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    SiloState,
    Task,
    TensorGroup,
    TensorSpec,
    UpdateHeader,
)
from semisilo.common.methods.local import LocalSettings
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["LocalState", "LocalStrategy", "LocalTally"]

_REPORTED = ("local_accuracy", "local_labelled_accuracy")
_STEPS = TensorSpec("steps", (1,), "int64")


@dataclass(frozen=True, kw_only=True)
class LocalState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    initial: dict[str, Tensor]
    """What every silo starts from."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """What the silos that answered in this round said of their models: means, and each silo's."""


@dataclass(frozen=True, kw_only=True)
class LocalTally:
    """The training phase being folded."""

    accuracies: dict[str, float]


class LocalStrategy:
    """The coordinator half of local-only training."""

    State = LocalState
    Tally = LocalTally

    def __init__(self, settings: LocalSettings, environment: Environment) -> None:
        self._settings = settings
        self._environment = environment

    def start(self, initial: Mapping[str, Tensor]) -> LocalState:
        """Keeps the initial model."""
        return LocalState(round=0, initial=dict(initial))

    def phases(self, state: LocalState, round: int) -> tuple[Phase, ...]:
        """Training alone."""
        return (TRAIN,)

    def task(self, state: LocalState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The initial model and lr_t.

        The model stands in every task, for a silo that comes late or has lost its memory; it crosses only to a silo
        that does not hold it yet.
        """
        lr = lr_of_round(self._settings.lr, self._settings.schedule, round=round, rounds=self._environment.rounds)
        return Task(groups={"model": state.served.group("model", lambda: state.initial)}, settings={"round_lr": lr})

    def expects(self, state: LocalState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """The number of steps."""
        return {"steps": GroupLayout(Meaning.VALUES, "", (_STEPS,))}

    def begin(self, state: LocalState, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> LocalTally:
        """What silos say of their own models, and the means, every silo the same weight."""
        accuracies: dict[str, float] = {}
        for name in _REPORTED:
            said = [_share(header.metrics[name]) for header in headers if name in header.metrics]
            if said:
                accuracies[name] = math.fsum(said) / len(said)
        for header in headers:
            if "local_accuracy" in header.metrics:
                accuracies[f"local_accuracy/{header.silo}"] = _share(header.metrics["local_accuracy"])
        return LocalTally(accuracies=accuracies)

    def fold(self, state: LocalState, tally: LocalTally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: SiloState) -> tuple[LocalTally, SiloState]:
        """Nothing to add: folding is what makes the silo keep its model."""
        return tally, kept

    def finish(self, state: LocalState, phase: Phase, tally: LocalTally, *, round: int) -> LocalState:
        """Notes the round's accuracies."""
        return replace(state, round=round, accuracies=tally.accuracies)

    def model(self, state: LocalState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The initial model, without batch-norm statistics, which nobody measures."""
        return state.initial, {}

    def diagnostics(self, state: LocalState) -> dict[str, float]:
        """"local_accuracy" and "local_labelled_accuracy": means over the silos that gave them in this round;
        "local_accuracy/<silo>"."""
        return state.accuracies


def _share(value: float) -> float:
    """A silo's number as what it must be, 0..1."""
    return min(max(value, 0.0), 1.0)
