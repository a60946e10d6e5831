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

from common import tensors
from common.data.form import AugmentationSettings
from common.data.image_set import ImageSet
from common.errors import BadData
from common.exchange import FROM_TASK, Environment, GroupLayout, Meaning, Phase, Task, TensorGroup, UpdateHeader
from common.grouped_averaging import group_mean, mean_of_groups, split_into_groups
from common.methods.fedrgd import FedRGDSettings
from common.seeds import torch_generator
from common.training import SGDSettings, check_finite, cosine_lr, named_randomness, train_labelled
from coordinator.static_statistics import STATISTICS, StaticStatistics, StatisticsTally
from coordinator.strategies.semifl import apply_global_momentum

__all__ = ["TRAIN", "FedRGDSilo", "FedRGDState", "FedRGDStrategy", "FedRGDTally", "fedrgd_lr"]

TRAIN = Phase("train")
_MEASURING = 0.1
"""Of the reported progress: one pass forward over the labelled images, after training on them."""
_FLOOR = 1e-4
"""Smallest share of the learning rate after warming up."""


@dataclass(frozen=True, kw_only=True)
class FedRGDState:
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


class FedRGDStrategy:
    """The coordinator half of FedRGD."""

    State = FedRGDState
    Tally = FedRGDTally
    SiloState = FedRGDSilo

    def __init__(self, settings: FedRGDSettings, environment: Environment) -> None:
        """Raises: BadData when there is nothing at the coordinator to learn from."""
        labelled = environment.data.labelled
        if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
            raise BadData("FedRGD needs labelled images at the coordinator; there are none.",
                          remedy="Name them in [data] labelled of the study.")
        self._settings = settings
        self._environment = environment
        self._labelled: ImageSet = labelled
        self._statistics = StaticStatistics(environment, settings.sbn_source)
        self._served: tuple[FedRGDState, dict[int | None, TensorGroup], TensorGroup] | None = None

    # A round ----------------------------------------------------------------------------------------------------------

    def start(self, initial: Mapping[str, Tensor]) -> FedRGDState:
        """Measures the statistics of the initial model."""
        own = self._measure(self._loaded(initial, round=0), round=0)
        return FedRGDState(round=0, w=dict(initial), batch_norm=self._statistics.used(own), own_statistics=own)

    def phases(self, state: FedRGDState, round: int) -> tuple[Phase, ...]:
        """See the table at the top of the module."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: FedRGDState, phase: Phase, silo: str, kept: FedRGDSilo | None, *, round: int) -> Task:
        """The model of the silo's group, or of all; statistics of the latter, and lr_t."""
        if phase.name == STATISTICS.name:
            return self._statistics.task(self._group(state, None))
        groups = {"model": self._group(state, self._place(state, kept))}
        if state.batch_norm:
            groups["batch_norm"] = self._kept_for(state)[1]
        return Task(groups=groups, settings={"round_lr": self._lr(round)})

    def expects(self, state: FedRGDState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that this silo was sent, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return self._statistics.expects()
        return {"model": GroupLayout(Meaning.DIFFERENCE, FROM_TASK, tensors.specs(state.w))}

    def begin(self, state: FedRGDState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> FedRGDTally | StatisticsTally:
        """Splits the accepted silos into groups at random."""
        if phase.name == STATISTICS.name:
            return self._statistics.begin(state.own_statistics)
        groups = split_into_groups([header.silo for header in headers], self._settings.groups,
                                   torch_generator(self._environment.seed, "fedrgd_groups", round=round))
        return FedRGDTally(groups=groups, round=round)

    def fold(self, state: FedRGDState, tally: FedRGDTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup],
             kept: FedRGDSilo | None) -> tuple[FedRGDTally | StatisticsTally, FedRGDSilo | None]:
        """Adds w_k - w_avg to the sum of the silo's group, or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        difference: Mapping[str, Tensor] = groups["model"].tensors
        if (place := self._place(state, kept)) is not None:
            difference = tensors.add(tensors.subtract(_taken(state.group_means, place), state.w), difference)
        group = tally.groups[header.silo]
        so_far = _taken(tally.sums, group)
        total = tensors.add(so_far, difference) if so_far else difference
        return (replace(tally, sums={**tally.sums, **_put(total, group)}),
                FedRGDSilo(round=tally.round, group=group) if self._settings.mode == "paper" else None)

    def finish(self, state: FedRGDState, phase: Phase, tally: FedRGDTally | StatisticsTally, *,
               round: int) -> FedRGDState:
        """Train: w_s from w_avg, means of the groups, their mean, its statistics. Statistics: the merged ones.

        Without an accepted update all stays as it was: a mean of the coordinator's model alone would turn a round in
        which nobody answers into one of central training.
        """
        if isinstance(tally, StatisticsTally):
            return replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm))
        if not tally.groups:
            return replace(state, round=round, diagnostics={})
        model = self._loaded(state.w, round=round)
        opt_buf, loss = self._train(model, state.opt_buf, round=round)
        own_step = tensors.subtract(tensors.parameters_of(model), state.w)
        sizes = Counter(tally.groups.values())
        steps = [group_mean(own_step, _taken(tally.sums, group), size) for group, size in sorted(sizes.items())]
        mean_step = mean_of_groups(steps)
        w, buffer, group_means = tensors.add(state.w, mean_step), state.global_buf, {}
        if self._settings.mode == "paper":
            group_means = {name: tensor for group, step in enumerate(steps)
                           for name, tensor in _put(tensors.add(state.w, step), group).items()}
        elif self._settings.server_momentum:
            w, buffer = apply_global_momentum(state.w, buffer, mean_step, momentum=self._settings.server_momentum)
        tensors.load_into(model, w)
        own = self._measure(model, round=round)
        self._environment.report(1.0, "")
        self._served = None
        spread = max(tensors.norm(tensors.subtract(step, mean_step)) for step in steps)
        return FedRGDState(
            round=round, w=w, group_means=group_means, groups_round=round, global_buf=buffer, opt_buf=opt_buf,
            batch_norm=self._statistics.used(own), own_statistics=own,
            diagnostics={"coordinator_loss": loss, "coordinator_step": tensors.norm(own_step), "group_spread": spread,
                         "model_step": tensors.norm(tensors.subtract(w, state.w)), "lr": self._lr(round),
                         "smallest_group": float(min(sizes.values()))})

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
        sent = self._group(state, self._place(state, kept)).tensors
        return tensors.add(sent, groups["model"].tensors), state.batch_norm

    # Who is sent what -------------------------------------------------------------------------------------------------

    def _place(self, state: FedRGDState, kept: FedRGDSilo | None) -> int | None:
        """The group whose mean a silo goes on from; None for w_avg."""
        current = kept is not None and bool(state.group_means) and kept.round == state.groups_round
        return kept.group if current and kept is not None else None

    def _group(self, state: FedRGDState, place: int | None) -> TensorGroup:
        """What silos of a place are sent."""
        served, _ = self._kept_for(state)
        if place not in served:
            values = state.w if place is None else _taken(state.group_means, place)
            served[place] = TensorGroup(values, digest=tensors.digest(values))
        return served[place]

    def _kept_for(self, state: FedRGDState) -> tuple[dict[int | None, TensorGroup], TensorGroup]:
        """The same objects for every silo of a place, so that they are encoded once; the last state's are kept."""
        if self._served is None or self._served[0] is not state:
            self._served = state, {}, TensorGroup(state.batch_norm)
        return self._served[1:]

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        settings, rounds = self._settings, self._environment.rounds
        if settings.decay == "fedrgd":
            return fedrgd_lr(settings.lr, round=round, rounds=rounds, warmup_rounds=settings.warmup_rounds,
                             decay_c=settings.decay_c)
        return settings.lr if settings.schedule == "constant" else cosine_lr(settings.lr, round=round, rounds=rounds)

    def _train(self, model: nn.Module, opt_buf: Mapping[str, Tensor] | None, *,
               round: int) -> tuple[dict[str, Tensor] | None, float]:
        """Trains `model` in place; returns the momentum and the loss of the last epoch, 0 where there was none."""
        settings, environment = self._settings, self._environment
        weak = environment.augmentation if settings.weak_view == "weak" else AugmentationSettings(policy="none")
        text = f"training on {len(self._labelled)} labelled images"
        result = train_labelled(
            model, self._labelled, form=environment.image, augmentation=weak,
            sgd=SGDSettings(lr=self._lr(round), momentum=settings.momentum, nesterov=settings.nesterov,
                            weight_decay=settings.weight_decay, clip_norm=settings.clip_norm),
            epochs=settings.coordinator_epochs, batch_size=settings.labelled_batch, seed=environment.seed,
            purpose="coordinator", round=round, momentum=opt_buf, loss_weight=settings.lambda_s,
            progress=lambda share: environment.report((1 - _MEASURING) * share, text))
        check_finite(dict(model.named_parameters()), where=f"at the coordinator in round {round}")
        return result.momentum if settings.momentum else None, result.loss if result.loss == result.loss else 0.0

    def _measure(self, model: nn.Module, *, round: int) -> dict[str, Tensor]:
        return self._statistics.own(model, round=round, progress=lambda share: self._environment.report(
            1 - _MEASURING + _MEASURING * share, "measuring batch-norm statistics"))

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)


def fedrgd_lr(lr: float, *, round: int, rounds: int, warmup_rounds: int, decay_c: float) -> float:
    """The learning rate of round t = 1..T, w of them for warming up.

        t <= w:  lr * t / w
        t > w:   lr * max(cos(pi * c * (t - w) / (T - w)), 0.0001)

    Source: FedRGD, with rounds for epochs.
    """
    if round <= warmup_rounds:
        return lr * round / warmup_rounds
    return lr * max(math.cos(math.pi * decay_c * (round - warmup_rounds) / (rounds - warmup_rounds)), _FLOOR)


def _put(model: Mapping[str, Tensor], group: int) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in model.items()}


def _taken(models: Mapping[str, Tensor], group: int) -> dict[str, Tensor]:
    """One group's tensors by their own names; empty when it has none yet."""
    start = f"{group}/"
    return {name.removeprefix(start): tensor for name, tensor in models.items() if name.startswith(start)}
