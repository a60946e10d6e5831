"""The rounds of a method with one training phase: training, and the phase in which silos measure batch-norm statistics.

A method writes what happens in training; the phase "statistics" is the same for all of them and stands here. This is
the only class that strategies inherit: what else they share are functions.

Tests: tests/coordinator/strategies/test_semifl.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from semisilo.common.methods.contract import Environment, GroupLayout, Phase, Task, TensorGroup, UpdateHeader, Updates
from semisilo.common.methods.parts.imbalance import ImbalanceSettings
from semisilo.common.methods.spec import MEASURING, StatisticsSource
from semisilo.coordinator.strategies.batch_norm.statistics import StaticStatistics, StatisticsTally
from semisilo.coordinator.strategies.parts.averaging import AverageTally, difference_to
from semisilo.coordinator.strategies.parts.labelled_hints import LabelledHints
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator
from semisilo.coordinator.strategies.parts.robust import RobustAveraging
from semisilo.coordinator.strategies.parts.served import ServedGroups

__all__ = ["TRAIN", "TrainAndMeasure"]

TRAIN = Phase("train")


class Measured(Protocol):
    """A state, as far as the phase "statistics" changes it: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # Any: what a field holds; so says dataclasses' own stub

    @property
    def batch_norm(self) -> dict[str, Tensor]:
        """The statistics in use; empty for a network without static batch-norm, and until they are measured."""

    @property
    def served(self) -> ServedGroups:
        """What silos are sent of it."""

    @property
    def own_statistics(self) -> dict[str, Tensor]:
        """The coordinator's part of them, with counts; empty where it measures nothing."""


StateT = TypeVar("StateT", bound=Measured)
TallyT = TypeVar("TallyT")
KeptT = TypeVar("KeptT")


class TrainAndMeasure(ABC, Generic[StateT, TallyT, KeptT]):
    """A `semisilo.common.methods.contract.Strategy` whose `train_*` methods are still to be written, besides `start`
    and `model`.

    Type parameters: the method's State, its Tally of the training phase, and what it keeps per silo (None for nothing).
    """

    def __init__(self, environment: Environment, source: StatisticsSource,
                 imbalance: ImbalanceSettings | None = None, *, settings: object = None) -> None:
        """
        Args:
            imbalance: the method's settings; silos are told of the labelled images here what these need. None: nothing.
            settings: likewise, of a method without these.
        Raises: BadConfiguration as `StaticStatistics` and `RobustAveraging`.
        """
        self._robust = RobustAveraging(environment, settings if imbalance is None else imbalance)
        self._environment = environment
        self._hints = LabelledHints(environment, imbalance)
        self._statistics = StaticStatistics(environment, source)

    # What a method writes ---------------------------------------------------------------------------------------------

    @abstractmethod
    def sent_model(self, state: StateT) -> TensorGroup:
        """The model that all silos are sent, whose statistics they measure: the same object for a state."""

    def sent_statistics(self, state: StateT) -> dict[str, Tensor]:
        """Batch-norm statistics of that model."""
        return state.batch_norm

    @abstractmethod
    def train_task(self, state: StateT, silo: str, kept: KeptT | None, *, round: int) -> Task:
        """What one silo is asked in training."""

    def train_expects(self, state: StateT) -> dict[str, GroupLayout]:
        """What an update of training must hold: a difference to the model that was sent."""
        return difference_to(self.sent_model(state))

    @abstractmethod
    def train_begin(self, state: StateT, headers: tuple[UpdateHeader, ...], *, round: int) -> TallyT:
        """Fixes the weights of the accepted updates."""

    @abstractmethod
    def train_fold(self, state: StateT, tally: TallyT, header: UpdateHeader, groups: Mapping[str, TensorGroup],
                   kept: KeptT | None) -> tuple[TallyT, KeptT | None]:
        """Adds one silo's update."""

    @abstractmethod
    def train_finish(self, state: StateT, tally: TallyT, *, round: int) -> StateT:
        """The state after training. It has the only references to `state` and `tally`, so that what is let go is free:
        several models are in memory otherwise while one is trained."""

    def train_appraise(self, state: StateT, tally: TallyT, updates: Updates, *,
                       round: int) -> tuple[TallyT, Mapping[str, float]]:
        """The tally with the weights of table [robust], and numbers about them. To be overridden by methods that do
        not average differences of the group `model` alone; with a tally of another kind, as FedMatch's, nothing is
        weighed anew."""
        if not isinstance(tally, AverageTally) or not updates.headers:
            return tally, {}
        return self._robust.appraised(
            tally, updates, group="model", w=self.sent_model(state).tensors, round=round,
            lr=lambda: self.sent_lr(state, round=round), stretches_N=self.stretches(tally, updates))

    def sent_lr(self, state: StateT, *, round: int) -> float:
        """The learning rate that silos are sent."""
        return float(self.train_task(state, "", None, round=round).settings["round_lr"])

    def stretches(self, tally: TallyT, updates: Updates) -> Sequence[float] | None:
        """By how much more than its plain weight each update counts; None where the tally's weights are the plain ones.
        """
        return None

    def measured(self, state: StateT) -> StateT:
        """The state after a statistics phase, which has changed `batch_norm`."""
        return state

    # The contract -----------------------------------------------------------------------------------------------------

    def phases(self, state: StateT, round: int) -> tuple[Phase, ...]:
        """"train"; with statistics from silos the phase that `StaticStatistics` describes."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: StateT, phase: Phase, silo: str, kept: KeptT | None, *, round: int) -> Task:
        """As `train_task`; in the statistics phase the model to be measured."""
        if phase.name in MEASURING:
            reference = self._statistics.reference(state.own_statistics, state.batch_norm)
            return self._statistics.task(self.sent_model(state), state.served.group(
                "batch-norm reference", lambda: reference, digest=False) if reference else None)
        task = self.train_task(state, silo, kept, round=round)
        if not self._hints.wanted:
            return task
        hints = state.served.fact("labelled_hints", lambda: self._hints.settings(
            self.sent_model(state).tensors, self.sent_statistics(state), round=round))
        return replace(task, settings={**task.settings, **hints})

    def expects(self, state: StateT, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """As `train_expects`; or batch-norm statistics with counts."""
        return self._statistics.expects() if phase.name in MEASURING else self.train_expects(state)

    def begin(self, state: StateT, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> TallyT | StatisticsTally:
        """As `train_begin`; statistics start with the coordinator's own."""
        if phase.name in MEASURING:
            return self._statistics.begin(state.own_statistics, state.batch_norm)
        return self.train_begin(state, headers, round=round)

    def appraise(self, state: StateT, phase: Phase, tally: TallyT | StatisticsTally, updates: Updates, *,
                 round: int) -> tuple[TallyT | StatisticsTally, Mapping[str, float]]:
        """As `train_appraise`; or batch-norm statistics by the rule of [robust]."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.appraised(tally, updates, round=round, model=lambda: model_at_coordinator(
                self._environment, self.sent_model(state).tensors, round=round)), {}
        return self.train_appraise(state, tally, updates, round=round)

    def notices(self, tally: TallyT | StatisticsTally) -> Mapping[str, str]:
        """Whose batch-norm statistics are impossible, far from the others', or spoil the coordinator's answers."""
        return tally.notices if isinstance(tally, StatisticsTally) else {}

    def fold(self, state: StateT, tally: TallyT | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: KeptT | None
             ) -> tuple[TallyT | StatisticsTally, KeptT | None]:
        """As `train_fold`; or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        return self.train_fold(state, tally, header, groups, kept)

    def finish(self, state: StateT, phase: Phase, tally: TallyT | StatisticsTally, *, round: int) -> StateT:
        """As `train_finish`; or the state with the merged statistics."""
        if isinstance(tally, StatisticsTally):
            return self.measured(replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm)))
        states, tallies = [state], [tally]
        del state, tally
        return self.train_finish(states.pop(), tallies.pop(), round=round)
