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

from semisilo.common.data.augmentation import augment
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.consistency import tsa_loss, tsa_threshold
from semisilo.common.learning.imbalance.labels import adjust_logits, class_shares, epoch_order
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import descend, make_optimiser, momentum_of, sgd_settings
from semisilo.common.learning.training import check_finite, lr_of_round, named_randomness
from semisilo.common.methods.contract import Environment, GroupLayout, Meaning, Task, TensorGroup, UpdateHeader, Updates
from semisilo.common.methods.fedsgd import FedSGDSettings
from semisilo.coordinator.strategies.parts.averaging import AverageTally, weighed
from semisilo.coordinator.strategies.parts.labelled_training import labelled_images, model_at_coordinator
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["FedSGDState", "FedSGDStrategy"]

_LOG = logging.getLogger("semisilo.coordinator")


@dataclass(frozen=True, kw_only=True)
class FedSGDState(ServedState):
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


class FedSGDStrategy(TrainAndMeasure[FedSGDState, AverageTally, None]):
    """The coordinator half of FedSGD. What the tally calls a difference is a gradient."""

    State = FedSGDState
    Tally = AverageTally

    def __init__(self, settings: FedSGDSettings, environment: Environment) -> None:
        """Raises: BadData where labels are needed here and missing; BadConfiguration as `StaticStatistics`."""
        at_coordinator = settings.scenario == "labels-at-coordinator"
        self._labelled = labelled_images(environment, "labels-at-coordinator") if at_coordinator else None
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> FedSGDState:
        """Measures the statistics of the initial model."""
        own = self._statistics.own(model_at_coordinator(self._environment, initial, round=0), round=0)
        return FedSGDState(round=0, w=dict(initial), batch_norm=self._statistics.used(own), own_statistics=own)

    def sent_model(self, state: FedSGDState) -> TensorGroup:
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: FedSGDState, silo: str, kept: None, *, round: int) -> Task:
        """The model and lr_t. No batch-norm statistics: a batch is labelled with its own."""
        return Task(groups={"model": self.sent_model(state)}, settings={"round_lr": self._lr(round)})

    def train_expects(self, state: FedSGDState) -> dict[str, GroupLayout]:
        """A gradient of the model's layout."""
        return {"gradient": GroupLayout(Meaning.VALUES, "", tensors.specs(state.w))}

    def train_begin(self, state: FedSGDState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """Weights by the settings' rule."""
        return weighed(self._settings.weighting, headers, {}, environment=self._environment)

    def train_fold(self, state: FedSGDState, tally: AverageTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[AverageTally, None]:
        """Adds p_k g_k."""
        return tally.plus(header.silo, groups["gradient"].tensors, like=state.w), None

    def train_appraise(self, state: FedSGDState, tally: AverageTally, updates: Updates, *,
                       round: int) -> tuple[AverageTally, Mapping[str, float]]:
        """As others' differences: what is averaged are gradients."""
        return self._robust.appraised(tally, updates, group="gradient", w=state.w, lr=lambda: self._lr(round),
                                      round=round)

    def train_finish(self, state: FedSGDState, tally: AverageTally, *, round: int) -> FedSGDState:
        """One step, then its statistics.

        Without a gradient from a silo there is no step, with labels at the coordinator either: a round in which nobody
        answers must not turn the study into one of the coordinator alone.
        """
        if tally.delta is None:
            return replace(state, round=round, diagnostics={})
        settings, lr = self._settings, self._lr(round)
        model = model_at_coordinator(self._environment, state.w, round=round)
        gradient, diagnostics = tally.delta, {"silo_gradient_norm": tensors.norm(tally.delta)}
        if (own := self._labelled_gradient(model, round=round)) is not None:
            diagnostics |= {"coordinator_loss": own[1], "coordinator_gradient_norm": tensors.norm(own[0])}
            gradient = tensors.add(gradient, own[0])
        optimiser = make_optimiser(model, sgd_settings(settings, lr, nesterov=settings.nesterov), state.opt_buf)
        descend(optimiser, tensors.all_like(optimiser.parameters, gradient))
        w = tensors.parameters_of(model)
        check_finite(w, where=f"at the coordinator in round {round}")
        own_statistics = self._statistics.own(model, round=round)
        return FedSGDState(round=round, w=w, opt_buf=momentum_of(optimiser) if settings.momentum else None,
                           # Where silos measure, what they last measured stays until the round's own phase.
                           batch_norm=self._statistics.used(own_statistics) or state.batch_norm,
                           own_statistics=own_statistics, diagnostics={**diagnostics, "lr": lr})

    def model(self, state: FedSGDState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The model and its statistics."""
        return state.w, state.batch_norm

    def diagnostics(self, state: FedSGDState) -> Mapping[str, float]:
        """Of the round: "silo_gradient_norm" of the average before clipping; with labels-at-coordinator
        "coordinator_gradient_norm" and "coordinator_loss" of its batch; "lr"."""
        return state.diagnostics

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        return lr_of_round(self._settings.lr, self._settings.schedule, round=round, rounds=self._environment.rounds)

    def _labelled_gradient(self, model: nn.Module, *, round: int) -> tuple[dict[str, Tensor], float] | None:
        """Gradient of the labelled term on one batch, and its loss without the weight; None with labels-at-silo, and
        where batch-norm cannot use the batch."""
        settings, environment, labelled = self._settings, self._environment, self._labelled
        if labelled is None or labelled.labels_N is None:
            return None
        order, views = (torch_generator(environment.seed, f"coordinator_{what}", round=round)
                        for what in ("order", "views"))
        balance_N = labelled.labels_N if settings.labelled_sampling == "class_balanced" else None
        index_B = epoch_order(len(labelled), order, balance_N=balance_N)[:settings.labelled_batch]
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
        if settings.logit_adjustment:
            shares_K = class_shares(labelled.labels_N, logits_BK.shape[1])
            logits_BK = adjust_logits(logits_BK, shares_K, tau=settings.logit_adjustment)
        if settings.objective == "uda" and settings.tsa != "none":
            threshold = tsa_threshold(settings.tsa, t=round, total=environment.rounds, num_classes=logits_BK.shape[1])
            loss = tsa_loss(logits_BK, labels_B, threshold).loss
        else:
            loss = cross_entropy(logits_BK, labels_B)
        (settings.lambda_s * loss).backward()  # type: ignore[no-untyped-call]
        return {name: torch.zeros_like(parameter, device="cpu") if parameter.grad is None else parameter.grad.cpu()
                for name, parameter in model.named_parameters() if parameter.requires_grad}, float(loss.detach())
