"""Self-training at the coordinator: a warm-up on the labels, averaging, and training on the labels again.

The equations and sources: `semisilo.common.methods.self_training`. The warm-up is labels alone where the study has that
line and it stands for the same prior (docs/decisions/0090-round-0-is-labels-alone.md), else a training here.

| when       | phases                                   | what a phase's end does                                      |
|------------|------------------------------------------|--------------------------------------------------------------|
| round 0    | none                                     | statistics of labels alone, or of a warm-up of its own       |
| each round | train                                    | average, momentum, steps on the labels, statistics           |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave; offsets |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from semisilo.common.learning import tensors
from semisilo.common.learning.averaged_training import AveragedPosition, AveragedTraining, enough_steps, log_prior
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import check_finite, lr_of_round
from semisilo.common.methods.contract import Environment, Task, TensorGroup, UpdateHeader
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.spec import ACCEPTED_STEP
from semisilo.common.storage.checkpoint import YOUNGER
from semisilo.coordinator.strategies.batch_norm.class_offsets import class_offsets, with_offsets
from semisilo.coordinator.strategies.batch_norm.statistics import has_images
from semisilo.coordinator.strategies.parts.averaging import AverageTally, own_model, weighed
from semisilo.coordinator.strategies.parts.gate import Gate, through_gate
from semisilo.coordinator.strategies.parts.labelled_hints import model_prior
from semisilo.coordinator.strategies.parts.labelled_training import labelled_images, model_at_coordinator
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["SelfTrainingState", "SelfTrainingStrategy", "warm_up_steps"]

_TRAINING = 0.95
"""Of the reported progress; what remains is one pass forward over the labelled images, for their statistics."""


def warm_up_steps(settings: SelfTrainingSettings, num_labelled: int) -> int:
    """Steps of a warm-up of its own: as the settings say, or enough for so many labels."""
    if settings.warm_up_steps is None:
        return enough_steps(num_labelled, batch_size=settings.labelled_batch)
    return settings.warm_up_steps


@dataclass(frozen=True, kw_only=True)
class SelfTrainingState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The global model, trained on the labels last."""
    global_buf: dict[str, Tensor] | None
    """Server momentum; None until a round accepts an update."""
    opt_buf: dict[str, Tensor] | None
    """SGD momentum of the steps on the labels, which goes on over the rounds; None after the warm-up."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor]
    """What the labelled images alone gave, with counts: the coordinator's part of the statistics phase."""
    labelled_loss: float
    """Mixed cross-entropy of the last step on the labels."""
    accepted_step: float = 1.0
    """Share of what the silos returned that the gate let through."""
    participation: dict[str, int] = field(default_factory=dict)
    """Accepted updates of every silo so far, for FedFreq."""
    offsets: dict[str, Tensor] | None = field(default=None, metadata=YOUNGER)
    """What silos' statistics have raised the logits by, by the bias in `w` that it is subtracted from, float32 (K,); {}
    before the round's statistics. None where there are none, as in a study that began with an earlier version."""


class SelfTrainingStrategy(TrainAndMeasure[SelfTrainingState, AverageTally, None]):
    """The coordinator half of self-training."""

    State = SelfTrainingState
    Tally = AverageTally

    def __init__(self, settings: SelfTrainingSettings, environment: Environment) -> None:
        """Raises: BadData where labels are needed here and missing; BadConfiguration as `StaticStatistics`."""
        self._labelled = labelled_images(environment, "Self-training") if settings.labels_at_coordinator else None
        self._settings = settings
        # What labels at silos are adjusted for: equal classes, or findings that half of all images show.
        share = 0.5 if settings.multi_label else 1.0 / environment.num_classes
        self._prior = (share,) * environment.num_classes
        if self._labelled is not None:
            assert self._labelled.labels_N is not None
            self._prior = model_prior(self._labelled.labels_N, environment.num_classes,
                                      logit_adjustment=settings.logit_adjustment)
        source = settings.sbn_source
        if source == "coordinator+silos" and not has_images(environment):
            source = "silos"
        super().__init__(environment, source, settings=settings)
        self._gate = Gate(environment)
        # Of imbalanced labels alone: what their batches are normalised by is the frequent classes'.
        self._takes_offsets = settings.sbn_offsets and not settings.multi_label and self._imbalanced()

    def start(self, initial: Mapping[str, Tensor]) -> SelfTrainingState:
        """The warm-up from the initial model; measures the statistics of the average of its weights."""
        model = model_at_coordinator(self._environment, initial, round=0)
        loss = 0.0
        if self._labelled is not None and (steps := warm_up_steps(self._settings, len(self._labelled))):
            warm_up = self._trained(model, initial, None, steps=steps, round=0)
            tensors.load_into(model, warm_up.average())
            loss = warm_up.loss
        return self._closed(model, global_buf=None, opt_buf=None, loss=loss, participation={}, round=0,
                            offsets={} if self._takes_offsets else None)

    def starts_from_labels_alone(self) -> bool:
        """Whether the model of labels alone may be the warm-up's: the settings ask for no other number of steps, and it
        stands for the prior that silos are told."""
        if self._labelled is None or self._settings.warm_up_steps is not None:
            return False
        assert self._labelled.labels_N is not None
        # As `semisilo.coordinator.compute.strong_baseline` trains them.
        adjusted = self._environment.measure.weighs_classes_alike
        return self._prior == model_prior(self._labelled.labels_N, self._environment.num_classes,
                                          logit_adjustment=1.0 if adjusted else 0.0)

    def start_from(self, parameters: Mapping[str, Tensor], *, loss: float) -> SelfTrainingState:
        """Labels alone in the place of a warm-up of its own; measures their statistics as after every round."""
        model = model_at_coordinator(self._environment, parameters, round=0)
        return self._closed(model, global_buf=None, opt_buf=None, loss=loss, participation={}, round=0,
                            offsets={} if self._takes_offsets else None)

    def sent_model(self, state: SelfTrainingState) -> TensorGroup:
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: SelfTrainingState, silo: str, kept: None, *, round: int) -> Task:
        """The model, its batch-norm statistics, lr_t and the prior that the model stands for."""
        return Task(groups={"model": self.sent_model(state), **state.served.batch_norm(state.batch_norm)},
                    settings={"round_lr": self._lr(round), "model_prior": self._prior})

    def train_begin(self, state: SelfTrainingState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """Weights 1/m', or by another rule."""
        return weighed(self._settings.weighting, headers, state.participation, environment=self._environment)

    def train_fold(self, state: SelfTrainingState, tally: AverageTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[AverageTally, None]:
        """Adds p_k (w_k - w)."""
        return tally.plus(header.silo, groups["model"].tensors, like=state.w), None

    def train_finish(self, state: SelfTrainingState, tally: AverageTally, *, round: int) -> SelfTrainingState:
        """Average, server momentum, gate, steps on the labels with lr_t, statistics."""
        # The gate tries models, and labels are learnt, with the statistics of the coordinator's own images.
        fitting = with_offsets(state.w, state.offsets or {}, sign=1.0)
        w, global_buf, step = through_gate(
            self._gate if self._settings.gate else None, fitting, state.global_buf, tally.delta,
            momentum=self._settings.global_momentum, round=round)
        model, opt_buf, loss = model_at_coordinator(self._environment, w, round=round), state.opt_buf, 0.0
        used = state.batch_norm
        offsets: dict[str, Tensor] | None = None if state.offsets is None else {}
        participation = tally.participation
        del state, tally, fitting  # several models, not needed while this one trains
        if self._labelled is not None and self._settings.coordinator_steps:
            training = self._trained(model, w, opt_buf, steps=self._settings.coordinator_steps, round=round)
            opt_buf, loss = training.momentum(), training.loss
        return self._closed(model, global_buf=global_buf, opt_buf=opt_buf, loss=loss, participation=participation,
                            round=round, step=step, used=used, offsets=offsets)

    def measured(self, state: SelfTrainingState) -> SelfTrainingState:
        """Takes out of the classifier's bias what the statistics of all add to the logits of the labelled images."""
        if state.offsets is None or not (state.own_statistics and state.batch_norm) or self._labelled is None:
            return state
        offsets = class_offsets(
            model_at_coordinator(self._environment, state.w, round=state.round), self._labelled,
            self._environment.image, before=self._statistics.used(state.own_statistics), after=state.batch_norm,
            num_classes=self._environment.num_classes)
        return replace(state, w=with_offsets(state.w, offsets, sign=-1.0), offsets=offsets)

    def model(self, state: SelfTrainingState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: SelfTrainingState, groups: Mapping[str, TensorGroup],
                    kept: None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        return own_model(self.sent_model(state), groups), state.batch_norm

    def accepted(self, state: SelfTrainingState) -> float:
        """What the gate has accepted in the round of this state; 1 without a gate."""
        return state.accepted_step

    def diagnostics(self, state: SelfTrainingState) -> dict[str, float]:
        """"labelled_loss", of the last step at the coordinator; with the gate "accepted_step"."""
        gate = {ACCEPTED_STEP: state.accepted_step} if self._settings.gate else {}
        return gate if self._labelled is None else {"labelled_loss": state.labelled_loss, **gate}

    def _imbalanced(self) -> bool:
        """Whether the coordinator's labels are."""
        if self._labelled is None or self._labelled.labels_N is None:
            return False
        return log_prior(self._labelled.labels_N, self._environment.num_classes) is not None

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        return lr_of_round(self._settings.lr, self._settings.schedule, round=round, rounds=self._environment.rounds)

    def _trained(self, model: nn.Module, initial: Mapping[str, Tensor], momentum: Mapping[str, Tensor] | None, *,
                 steps: int, round: int) -> AveragedTraining:
        """Training of `model` on the labels, done: with lr_t, before round 1 on a cosine over its own steps.

        Raises: ComputeFailed when it diverges.
        """
        kept = None if round else self._environment.start_work
        settings, when = self._settings, f"in round {round}" if round else "before round 1"
        assert self._labelled is not None
        assert self._labelled.labels_N is not None
        log_prior_K = log_prior(self._labelled.labels_N, self._environment.num_classes)
        if log_prior_K is not None:
            log_prior_K = settings.logit_adjustment * log_prior_K
        training = AveragedTraining(
            self._environment, model, self._labelled, initial=initial, steps=steps, momentum=momentum, cosine=not round,
            sgd=sgd_settings(settings, self._lr(round), nesterov=settings.nesterov),
            batch_size=settings.labelled_batch, log_prior_K=log_prior_K, purpose=f"labelled_round_{round}",
            plain_steps=steps if round and settings.labelled_views == "weak" else 0,
            position=None if kept is None else kept.left(AveragedPosition))
        text = f"{'training' if round else 'warm-up'} on {len(self._labelled)} labelled images"
        for _ in training.run():
            self._environment.report(_TRAINING * training.done / steps, text)
            if kept is not None:
                kept.keep(training.position)
        check_finite(tensors.parameters_of(model), where=f"at the coordinator {when}")
        return training

    def _closed(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None, opt_buf: dict[str, Tensor] | None,
                loss: float, participation: dict[str, int], round: int, step: float = 1.0,
                used: dict[str, Tensor] | None = None,
                offsets: dict[str, Tensor] | None = None) -> SelfTrainingState:
        """The state with this model and its statistics; where silos measure, those in use stay until they have."""
        own = self._statistics.own(model, round=round, report_from=_TRAINING)
        self._environment.report(1.0, "")
        return SelfTrainingState(round=round, w=tensors.parameters_of(model), global_buf=global_buf, opt_buf=opt_buf,
                                 batch_norm=self._statistics.used(own) or dict(used or {}), own_statistics=own,
                                 labelled_loss=loss, accepted_step=step, participation=participation, offsets=offsets)
