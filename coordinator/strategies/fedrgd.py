"""FedRGD at the coordinator: labelled training beside the silos', then averaging in random groups.

    w_avg,i = (w_s + sum of the w_k in group i) / (|G_i| + 1)        w_avg = mean_i w_avg,i

| when       | phases                                   | what a phase's end does                               |
|------------|------------------------------------------|-------------------------------------------------------|
| round 0    | none                                     | measure statistics on the labels                      |
| each round | train                                    | train w_s from w_avg on the labels, average groups;   |
|            |                                          | mode "semifl_variant": server momentum on w_avg;      |
|            |                                          | measure statistics                                    |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave   |

In the paper's mode a silo of group i is sent w_avg,i in the next round, so silos start from different models; one that
was in no group of the last aggregation is sent w_avg. The coordinator goes on from w_avg.

Source: Zhang et al., arXiv 2008.11364v2; the variant as SemiFL (Diao et al., NeurIPS 2022) runs it, with true sizes of
groups: its code divides by those of the first one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.grouped import group_mean, mean_of_groups, split_into_groups
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import lr_of_round
from semisilo.common.methods.contract import (
    FROM_TASK,
    Environment,
    GroupLayout,
    Meaning,
    Task,
    TensorGroup,
    UpdateHeader,
    Updates,
)
from semisilo.common.methods.fedrgd import FedRGDSettings
from semisilo.coordinator.strategies.parts.averaging import apply_global_momentum, own_model
from semisilo.coordinator.strategies.parts.labelled_training import (
    CoordinatorTraining,
    labelled_images,
    model_at_coordinator,
    train_on_labels,
    weak_views,
)
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.robust import bounded
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["FedRGDSilo", "FedRGDState", "FedRGDStrategy", "FedRGDTally", "fedrgd_lr"]

_TRAINING = 0.9
"""Of the reported progress; what remains is one pass forward over the labelled images, for their statistics."""
_FLOOR = 1e-4
"""Smallest share of the learning rate after warming up."""


@dataclass(frozen=True, kw_only=True)
class FedRGDState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """w_avg: evaluated and exported."""
    group_means: dict[str, Tensor] = field(default_factory=dict)
    """w_avg,i as "<i>/<parameter>"; empty before an aggregation and where all go on from `w`."""
    groups_round: int = 0
    """The round of that aggregation; 0 before any."""
    global_buf: dict[str, Tensor] | None = None
    """Server momentum; None without it, and until a round accepts an update."""
    opt_buf: dict[str, Tensor] | None = None
    """SGD momentum of the coordinator's training, which goes on over the rounds; None without momentum."""
    batch_norm: dict[str, Tensor] = field(default_factory=dict)
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor] = field(default_factory=dict)
    """What the labelled images alone gave, with counts."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Numbers about the round."""


@dataclass(frozen=True, kw_only=True)
class FedRGDSilo:
    """What is kept of a silo."""

    round: int
    """Its last accepted update's."""
    group: int
    """The group that it was in then."""


@dataclass(frozen=True, kw_only=True)
class FedRGDTally:
    """The training phase being folded."""

    groups: dict[str, int] = field(default_factory=dict)
    """Group of every accepted silo."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Sum of w_k - w_avg over every group so far, as "<i>/<parameter>"."""
    round: int
    factors: dict[str, float] = field(default_factory=dict)
    """What every silo's difference is multiplied by to be within the bound of [robust]; empty where it cuts nothing."""


class FedRGDStrategy(TrainAndMeasure[FedRGDState, FedRGDTally, FedRGDSilo]):
    """The coordinator half of FedRGD."""

    State = FedRGDState
    Tally = FedRGDTally
    SiloState = FedRGDSilo

    def __init__(self, settings: FedRGDSettings, environment: Environment) -> None:
        """Raises: BadData when there is nothing at the coordinator to learn from."""
        self._labelled = labelled_images(environment, "FedRGD")
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> FedRGDState:
        """Measures the statistics of the initial model."""
        model = model_at_coordinator(self._environment, initial, round=0)
        own = self._statistics.own(model, round=0, report_from=_TRAINING)
        return FedRGDState(round=0, w=dict(initial), batch_norm=self._statistics.used(own), own_statistics=own)

    def sent_model(self, state: FedRGDState) -> TensorGroup:
        """w_avg."""
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: FedRGDState, silo: str, kept: FedRGDSilo | None, *, round: int) -> Task:
        """The model of the silo's group, or of all; statistics of the latter, and lr_t."""
        return Task(groups={"model": self._sent_to(state, kept), **state.served.batch_norm(state.batch_norm)},
                    settings={"round_lr": self._lr(round)})

    def train_expects(self, state: FedRGDState) -> dict[str, GroupLayout]:
        """A difference to the model that this silo was sent."""
        return {"model": GroupLayout(Meaning.DIFFERENCE, FROM_TASK, tensors.specs(state.w))}

    def train_begin(self, state: FedRGDState, headers: tuple[UpdateHeader, ...], *, round: int) -> FedRGDTally:
        """Splits the accepted silos into groups at random."""
        groups = split_into_groups([header.silo for header in headers], self._settings.groups,
                                   torch_generator(self._environment.seed, "fedrgd_groups", round=round))
        return FedRGDTally(groups=groups, round=round)

    def train_appraise(self, state: FedRGDState, tally: FedRGDTally, updates: Updates, *,
                       round: int) -> tuple[FedRGDTally, Mapping[str, float]]:
        """The bound alone, on the difference to what each silo was sent."""
        found = bounded(self._environment.robust, updates, "model", round=round)
        if not found.cuts:
            return tally, {}
        factors = {header.silo: factor for header, factor in zip(updates.headers, found.factors, strict=True)}
        return replace(tally, factors=factors), found.metrics()

    def train_fold(self, state: FedRGDState, tally: FedRGDTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: FedRGDSilo | None) -> tuple[FedRGDTally, FedRGDSilo | None]:
        """Adds w_k - w_avg to the sum of the silo's group."""
        difference: Mapping[str, Tensor] = groups["model"].tensors
        if (factor := tally.factors.get(header.silo, 1.0)) != 1.0:
            difference = tensors.scale(difference, factor)
        if (previous_group := _group_of(state, kept)) is not None:
            difference = tensors.add(tensors.subtract(_taken(state.group_means, previous_group), state.w), difference)
        group = tally.groups[header.silo]
        so_far = _taken(tally.sums, group)
        total = tensors.add(so_far, difference) if so_far else difference
        return (replace(tally, sums={**tally.sums, **_put(total, group)}),
                FedRGDSilo(round=tally.round, group=group) if self._settings.mode == "paper" else None)

    def train_finish(self, state: FedRGDState, tally: FedRGDTally, *, round: int) -> FedRGDState:
        """w_s from w_avg, means of the groups, their mean and its statistics.

        Without an accepted update all stays as it was: a mean of the coordinator's model alone would turn a round in
        which nobody answers into one of central training.
        """
        if not tally.groups:
            return replace(state, round=round, diagnostics={})
        settings = self._settings
        model = model_at_coordinator(self._environment, state.w, round=round)
        found = self._trained(model, state.opt_buf, round=round)
        own_step = tensors.subtract(tensors.parameters_of(model), state.w)
        sizes = Counter(tally.groups.values())
        steps = [group_mean(own_step, _taken(tally.sums, group), size) for group, size in sorted(sizes.items())]
        mean_step = mean_of_groups(steps)
        w, buffer, group_means = tensors.add(state.w, mean_step), state.global_buf, {}
        if settings.mode == "paper":
            group_means = {name: tensor for group, step in enumerate(steps)
                           for name, tensor in _put(tensors.add(state.w, step), group).items()}
        elif settings.server_momentum:
            w, buffer = apply_global_momentum(state.w, buffer, mean_step, momentum=settings.server_momentum)
        tensors.load_into(model, w)
        own = self._statistics.own(model, round=round, report_from=_TRAINING)
        self._environment.report(1.0, "")
        spread = max(tensors.norm(tensors.subtract(step, mean_step)) for step in steps)
        return FedRGDState(
            round=round, w=w, group_means=group_means, groups_round=round, global_buf=buffer,
            opt_buf=found.momentum if settings.momentum else None, batch_norm=self._statistics.used(own),
            own_statistics=own,
            diagnostics={"coordinator_loss": found.loss, "coordinator_step": tensors.norm(own_step),
                         "group_spread": spread, "model_step": tensors.norm(tensors.subtract(w, state.w)),
                         "lr": self._lr(round), "smallest_group": float(min(sizes.values()))})

    def model(self, state: FedRGDState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """w_avg and its statistics."""
        return state.w, state.batch_norm

    def diagnostics(self, state: FedRGDState) -> Mapping[str, float]:
        """Of the round: "coordinator_loss" of its last epoch; "coordinator_step" and "model_step", Euclidean distances
        of w_s and of the new w_avg from the old; "group_spread", the largest distance of a group's mean from w_avg;
        "smallest_group" in silos; "lr"."""
        return state.diagnostics

    def local_model(self, state: FedRGDState, groups: Mapping[str, TensorGroup],
                    kept: FedRGDSilo | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """w_k of one silo, from the state and what was kept of it when its task was made."""
        return own_model(self._sent_to(state, kept), groups), state.batch_norm

    def _trained(self, model: nn.Module, opt_buf: Mapping[str, Tensor] | None, *, round: int) -> CoordinatorTraining:
        """Makes w_s of `model`, in place."""
        settings, environment = self._settings, self._environment
        return train_on_labels(
            model, self._labelled, environment, epochs=settings.coordinator_epochs, momentum=opt_buf,
            sgd=sgd_settings(settings, self._lr(round), nesterov=settings.nesterov), purpose="coordinator", round=round,
            batch_size=settings.labelled_batch, augmentation=weak_views(environment, settings.weak_view),
            loss_weight=settings.lambda_s, report_until=_TRAINING, imbalance=settings)

    def _sent_to(self, state: FedRGDState, kept: FedRGDSilo | None) -> TensorGroup:
        """What a silo is sent: the mean of its group, or w_avg."""
        group = _group_of(state, kept)
        if group is None:
            return self.sent_model(state)
        return state.served.group(f"model/{group}", lambda: _taken(state.group_means, group))

    def _lr(self, round: int) -> float:
        settings, rounds = self._settings, self._environment.rounds
        if settings.decay == "fedrgd":
            return fedrgd_lr(settings.lr, round=round, rounds=rounds, warmup_rounds=settings.warmup_rounds,
                             decay_c=settings.decay_c)
        return lr_of_round(settings.lr, settings.schedule, round=round, rounds=rounds)


def fedrgd_lr(lr: float, *, round: int, rounds: int, warmup_rounds: int, decay_c: float) -> float:
    """The learning rate of round t = 1..T, w of them for warming up.

        t <= w:  lr * t / w
        t > w:   lr * max(cos(pi * c * (t - w) / (T - w)), 0.0001)

    Source: FedRGD, with rounds for epochs.
    """
    if round <= warmup_rounds:
        return lr * round / warmup_rounds
    return lr * max(math.cos(math.pi * decay_c * (round - warmup_rounds) / (rounds - warmup_rounds)), _FLOOR)


def _group_of(state: FedRGDState, kept: FedRGDSilo | None) -> int | None:
    """The group whose mean a silo goes on from; None for w_avg: it was in no group of the last aggregation."""
    current = kept is not None and bool(state.group_means) and kept.round == state.groups_round
    return kept.group if current and kept is not None else None


def _put(model: Mapping[str, Tensor], group: int) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in model.items()}


def _taken(models: Mapping[str, Tensor], group: int) -> dict[str, Tensor]:
    """One group's tensors by their own names; empty when it has none yet."""
    start = f"{group}/"
    return {name.removeprefix(start): tensor for name, tensor in models.items() if name.startswith(start)}
