"""FedAvg at the coordinator: weighted averaging, server momentum if wanted, labelled training where the labels are.

Source: McMahan et al., AISTATS 2017; labels at the coordinator as FedMatch (Jeong et al.) trains them.

| scenario              | when       | what happens                                                                   |
|-----------------------|------------|--------------------------------------------------------------------------------|
| labels-at-silo        | round 0    | measure statistics of the initial model                                        |
|                       | each round | send w; average; measure statistics                                            |
| labels-at-coordinator | round 0    | train the initial model on the labels with lr_1: what is sent in round 1       |
|                       | each round | send; average to w, the round's model; train a copy of w for the next sending  |

So with labels at the coordinator a round's model is what the silos have made of the trained one, as FedMatch evaluates
it: unlabelled training that forgets the labels shows. Where no silo made anything of it, it is the trained one itself,
and is trained once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import Tensor, nn

from semisilo.common.learning import tensors
from semisilo.common.learning.consistency import tsa_loss, tsa_threshold
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import lr_of_round
from semisilo.common.methods.contract import Environment, Task, TensorGroup, UpdateHeader
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.coordinator.strategies.parts.averaging import AverageTally, apply_global_momentum, own_model, weighed
from semisilo.coordinator.strategies.parts.labelled_training import (
    CoordinatorTraining,
    labelled_images,
    model_at_coordinator,
    train_on_labels,
    weak_views,
)
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.private_average import PrivateAverage
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["FedAvgState", "FedAvgStrategy"]


@dataclass(frozen=True, kw_only=True)
class FedAvgState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The averaged model: evaluated and exported."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor]
    """The coordinator's part of them, with counts."""
    trained: dict[str, Tensor] | None = None
    """With labels-at-coordinator: `w` after training on the labels, which silos are sent next; None behind the last
    round, and where silos are sent `w`."""
    trained_batch_norm: dict[str, Tensor] = field(default_factory=dict)
    """Statistics of `trained`."""
    global_buf: dict[str, Tensor] | None = None
    """Server momentum; None until a round accepts an update, and without server momentum."""
    opt_buf: dict[str, Tensor] | None = None
    """SGD momentum of the coordinator's training, which goes on over the rounds."""
    labelled_loss: float = 0.0
    """Mean loss of the last epoch at the coordinator; 0 where there was none."""
    participation: dict[str, int] = field(default_factory=dict)
    """Accepted updates of every silo so far, for FedFreq."""

    @property
    def sent(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What silos are sent: parameters and statistics."""
        return (self.w, self.batch_norm) if self.trained is None else (self.trained, self.trained_batch_norm)


S = TypeVar("S", bound=FedAvgState)


class FedAvgStrategy(TrainAndMeasure[FedAvgState, AverageTally, None]):
    """The coordinator half of FedAvg. Methods that average as FedAvg does call it with a state that has more fields."""

    State = FedAvgState
    Tally = AverageTally

    def __init__(self, settings: FedAvgSettings, environment: Environment) -> None:
        """Raises: BadData where labels are needed here and missing; BadConfiguration as `StaticStatistics`."""
        at_coordinator = settings.scenario == "labels-at-coordinator"
        self._labelled = labelled_images(environment, "labels-at-coordinator") if at_coordinator else None
        self._settings = settings
        noise = environment.silo_noise
        self._private = None if noise is None else PrivateAverage(noise)
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> FedAvgState:
        """Measures the initial model; with labels-at-coordinator also trains what round 1 sends."""
        return self.closed(FedAvgState(round=0, w=dict(initial), batch_norm={}, own_statistics={}), round=0)

    def sent_model(self, state: FedAvgState) -> TensorGroup:
        return state.served.group("model", lambda: state.sent[0])

    def sent_statistics(self, state: FedAvgState) -> dict[str, Tensor]:
        return state.sent[1]

    def train_task(self, state: FedAvgState, silo: str, kept: None, *, round: int) -> Task:
        """The model, its batch-norm statistics and lr_t."""
        return Task(groups={"model": self.sent_model(state), **state.served.batch_norm(state.sent[1])},
                    settings={"round_lr": self.lr(round)})

    def train_begin(self, state: FedAvgState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """Weights by the settings' rule."""
        return weighed(self._settings.weighting, headers, state.participation, environment=self._environment)

    def train_fold(self, state: FedAvgState, tally: AverageTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[AverageTally, None]:
        """Adds p_k (w_k - w); with differential privacy of silos clip(w_k - w), in whole numbers."""
        if self._private is not None:
            return replace(tally, delta=self._private.plus(tally.delta, groups["model"].tensors, like=state.w)), None
        return tally.plus(header.silo, groups["model"].tensors, like=state.w), None

    def train_finish(self, state: S, tally: AverageTally, *, round: int) -> S:
        """Average, server momentum, statistics, labelled training.

        Without an update all stays as it was, and the next round sends the same model again. With labels at the
        coordinator it goes on from what was sent, as if nobody had changed it: silos that abstain while they are not
        confident about any image, as FedNova's and SCAFFOLD's, would never become so if nothing was learnt meanwhile.
        """
        (sent, _), delta = state.sent, tally.delta
        if delta is None:
            if self._labelled is None:
                return replace(state, round=round)
            after = replace(state, round=round, w=sent, trained=None, trained_batch_norm={})
            del state, tally, sent  # several models, not needed while the next is trained
            return self.closed(after, round=round)
        if self._private is not None:
            delta = self._private.mean(delta, w=sent, silos=len(tally.weights), round=round)
        if self._settings.global_momentum:
            w, buffer = apply_global_momentum(sent, state.global_buf, delta, momentum=self._settings.global_momentum)
        else:
            w, buffer = tensors.add(sent, delta), None
        after = replace(state, round=round, w=w, trained=None, trained_batch_norm={}, global_buf=buffer,
                        participation=tally.participation)
        del state, tally, sent, w, delta  # several models, not needed while the next is trained
        return self.closed(after, round=round)

    def model(self, state: FedAvgState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The averaged model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: FedAvgState, groups: Mapping[str, TensorGroup],
                    kept: None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        return own_model(self.sent_model(state), groups), state.sent[1]

    def diagnostics(self, state: FedAvgState) -> dict[str, float]:
        """With labels-at-coordinator "coordinator_loss": of the last epoch there, before what is sent next."""
        return {} if self._labelled is None else {"coordinator_loss": state.labelled_loss}

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def lr(self, round: int) -> float:
        """lr_t."""
        return lr_of_round(self._settings.lr, self._settings.schedule, round=round, rounds=self._environment.rounds)

    def closed(self, state: S, *, round: int) -> S:
        """A round's state with its statistics and, with labels-at-coordinator, what the next round sends."""
        model = model_at_coordinator(self._environment, state.w, round=round)
        own = self._statistics.own(model, round=round)
        # Where silos measure, what they last measured stays until the round's own statistics phase.
        measured = self._statistics.used(own) or state.batch_norm
        state = replace(state, batch_norm=measured, own_statistics=own)
        if self._labelled is None or round >= self._environment.rounds:
            return state
        found = self._trained(model, state.opt_buf, round=round + 1)
        trained_own = self._statistics.own(model, round=round)
        return replace(state, trained=tensors.parameters_of(model), opt_buf=found.momentum, labelled_loss=found.loss,
                       trained_batch_norm=self._statistics.used(trained_own))

    def _trained(self, model: nn.Module, opt_buf: dict[str, Tensor] | None, *, round: int) -> CoordinatorTraining:
        """The labelled term of the objective, in place, with the learning rate of the round that it is sent in."""
        settings, environment = self._settings, self._environment
        assert self._labelled is not None

        def annealed(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
            assert settings.tsa != "none"
            threshold = tsa_threshold(settings.tsa, t=round, total=environment.rounds, num_classes=logits_BK.shape[1])
            return tsa_loss(logits_BK, labels_B, threshold).loss

        return train_on_labels(
            model, self._labelled, environment, epochs=settings.coordinator_epochs, batch_size=settings.labelled_batch,
            sgd=sgd_settings(settings, self.lr(round), nesterov=settings.nesterov), momentum=opt_buf,
            purpose="coordinator", round=round, augmentation=weak_views(environment, settings.weak_view),
            loss_weight=settings.lambda_s if settings.objective in ("uda", "fixmatch") else 1.0,
            loss_of=annealed if settings.objective == "uda" and settings.tsa != "none" else cross_entropy,
            when="before", imbalance=settings)
