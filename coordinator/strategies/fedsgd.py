"""FedSGD at the coordinator: one step of descent in every round, with the average of the silos' gradients.

    g = sum_k p_k g_k  (+ the gradient of the labelled term on one batch, where the coordinator has the labels)

Source: McMahan et al., AISTATS 2017; with FixMatch as SemiFL (Diao et al., NeurIPS 2022) compares it.

Shapes: B images of the coordinator's batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from common import tensors
from common.batch_norm import OneValuePerChannel
from common.consistency import tsa_loss, tsa_threshold
from common.data import augment
from common.errors import BadData
from common.exchange import Environment, GroupLayout, Meaning, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.losses import cross_entropy
from common.methods.fedsgd import FedSGDSettings
from common.seeds import torch_generator
from common.sgd import SGDSettings, descend, make_optimiser, momentum_of
from common.training import check_finite, cosine_lr, named_randomness
from coordinator.static_statistics import STATISTICS, StaticStatistics, StatisticsTally
from coordinator.weights import weights_of

__all__ = ["TRAIN", "FedSGDState", "FedSGDStrategy", "FedSGDTally"]

_LOG = logging.getLogger("semisilo.coordinator")

TRAIN = Phase("train")


@dataclass(frozen=True, kw_only=True)
class FedSGDState:
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The model."""
    opt_buf: dict[str, Tensor] | None = None
    """Momentum of the descent; None without momentum, and until a round accepts a gradient."""
    batch_norm: dict[str, Tensor] = field(default_factory=dict)
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor] = field(default_factory=dict)
    """The coordinator's part of them, with counts."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Numbers about the round."""


@dataclass(frozen=True, kw_only=True)
class FedSGDTally:
    """The training phase being folded."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1; empty when no gradient was accepted."""
    gradient: dict[str, Tensor] | None = None
    """sum p_k g_k so far."""


class FedSGDStrategy:
    """The coordinator half of FedSGD."""

    State = FedSGDState
    Tally = FedSGDTally

    def __init__(self, settings: FedSGDSettings, environment: Environment) -> None:
        """Raises: BadData where labels are needed here and missing; BadConfiguration as `StaticStatistics`."""
        labelled = environment.data.labelled if settings.scenario == "labels-at-coordinator" else None
        if settings.scenario == "labels-at-coordinator" and (labelled is None or len(labelled) == 0
                                                             or labelled.labels_N is None):
            raise BadData("labels-at-coordinator needs labelled images at the coordinator; there are none.",
                          remedy="Name them in [data] labelled of the study.")
        self._settings = settings
        self._environment = environment
        self._labelled = labelled
        self._statistics = StaticStatistics(environment, settings.sbn_source)
        self._served: tuple[FedSGDState, TensorGroup] | None = None

    def start(self, initial: Mapping[str, Tensor]) -> FedSGDState:
        """Measures the statistics of the initial model."""
        own = self._statistics.own(self._loaded(initial, round=0), round=0)
        return FedSGDState(round=0, w=dict(initial), batch_norm=self._statistics.used(own), own_statistics=own)

    def phases(self, state: FedSGDState, round: int) -> tuple[Phase, ...]:
        """"train", and "statistics" where silos measure."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: FedSGDState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The model. No batch-norm statistics: a batch is labelled with its own."""
        if self._served is None or self._served[0] is not state:
            self._served = state, TensorGroup(state.w, digest=tensors.digest(state.w))
        model = self._served[1]
        if phase.name == STATISTICS.name:
            return self._statistics.task(model)
        return Task(groups={"model": model}, settings={"round_lr": self._lr(round)})

    def expects(self, state: FedSGDState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A gradient of the model's layout, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return self._statistics.expects()
        return {"gradient": GroupLayout(Meaning.VALUES, "", tensors.specs(state.w))}

    def begin(self, state: FedSGDState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> FedSGDTally | StatisticsTally:
        """Weights by the settings' rule. Statistics start with the coordinator's own."""
        if phase.name == STATISTICS.name:
            return self._statistics.begin(state.own_statistics)
        silos, sizes = [header.silo for header in headers], [header.num_examples for header in headers]
        return FedSGDTally(weights=weights_of(self._settings.weighting, silos, sizes, {}))

    def fold(self, state: FedSGDState, tally: FedSGDTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[FedSGDTally | StatisticsTally, SiloState]:
        """Adds p_k g_k, or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        so_far = tensors.zeros_like(state.w) if tally.gradient is None else tally.gradient
        added = tensors.add(so_far, groups["gradient"].tensors, factor=tally.weights[header.silo])
        return replace(tally, gradient=added), kept

    def finish(self, state: FedSGDState, phase: Phase, tally: FedSGDTally | StatisticsTally, *,
               round: int) -> FedSGDState:
        """Train: one step, then its statistics. Statistics: the merged ones.

        Without a gradient from a silo there is no step, with labels at the coordinator either: a round in which nobody
        answers must not turn the study into one of the coordinator alone.
        """
        if isinstance(tally, StatisticsTally):
            return replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm))
        if tally.gradient is None:
            return replace(state, round=round, diagnostics={})
        settings = self._settings
        model = self._loaded(state.w, round=round)
        gradient, diagnostics = tally.gradient, {"silo_gradient_norm": tensors.norm(tally.gradient)}
        if (own := self._labelled_gradient(model, round=round)) is not None:
            diagnostics |= {"coordinator_loss": own[1], "coordinator_gradient_norm": tensors.norm(own[0])}
            gradient = tensors.add(gradient, own[0])
        optimiser = make_optimiser(
            model, SGDSettings(lr=self._lr(round), momentum=settings.momentum, nesterov=settings.nesterov,
                               weight_decay=settings.weight_decay, clip_norm=settings.clip_norm), state.opt_buf)
        for name, parameter in optimiser.parameters.items():
            parameter.grad = gradient[name].to(parameter.device, copy=True)
        descend(optimiser)
        w = tensors.parameters_of(model)
        check_finite(w, where=f"at the coordinator in round {round}")
        own_statistics = self._statistics.own(model, round=round)
        self._served = None
        return FedSGDState(round=round, w=w, opt_buf=momentum_of(optimiser) if settings.momentum else None,
                           # Where silos measure, what they last measured stays until the round's own phase.
                           batch_norm=self._statistics.used(own_statistics) or state.batch_norm,
                           own_statistics=own_statistics, diagnostics={**diagnostics, "lr": self._lr(round)})

    def model(self, state: FedSGDState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The model and its statistics."""
        return state.w, state.batch_norm

    def diagnostics(self, state: FedSGDState) -> Mapping[str, float]:
        """Of the round: "silo_gradient_norm" of the average before clipping; with labels-at-coordinator
        "coordinator_gradient_norm" and "coordinator_loss" of its batch; "lr"."""
        return state.diagnostics

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        if self._settings.schedule == "constant":
            return self._settings.lr
        return cosine_lr(self._settings.lr, round=round, rounds=self._environment.rounds)

    def _labelled_gradient(self, model: nn.Module, *, round: int) -> tuple[dict[str, Tensor], float] | None:
        """Gradient of the labelled term on one batch, and its loss without the weight; None with labels-at-silo, and
        where batch-norm cannot use the batch."""
        settings, environment, labelled = self._settings, self._environment, self._labelled
        if labelled is None or labelled.labels_N is None:
            return None
        order, views = (torch_generator(environment.seed, f"coordinator_{what}", round=round)
                        for what in ("order", "views"))
        index_B = torch.randperm(len(labelled), generator=order)[:settings.labelled_batch]
        images_BCHW = labelled.images_NCHW[index_B].to(environment.device)
        if settings.weak_view == "weak":
            images_BCHW = augment.weak(images_BCHW, environment.augmentation, views)
        labels_B = labelled.labels_N[index_B].to(environment.device)
        model.train()
        try:
            with named_randomness(environment.seed, "coordinator_model", round=round, device=environment.device):
                logits_BK = model(augment.to_input(images_BCHW, environment.image))
        except OneValuePerChannel:
            _LOG.warning("the coordinator's batch of %d is skipped: one value per channel at a batch-norm layer",
                         len(index_B))
            return None
        if settings.objective == "uda" and settings.tsa != "none":
            threshold = tsa_threshold(settings.tsa, t=round, total=environment.rounds, num_classes=logits_BK.shape[1])
            loss = tsa_loss(logits_BK, labels_B, threshold).loss
        else:
            loss = cross_entropy(logits_BK, labels_B)
        (settings.lambda_s * loss).backward()  # type: ignore[no-untyped-call]
        return {name: torch.zeros_like(parameter, device="cpu") if parameter.grad is None else parameter.grad.cpu()
                for name, parameter in model.named_parameters() if parameter.requires_grad}, float(loss.detach())

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)
