"""SemiFL at the coordinator: uniform averaging, server momentum, fine-tuning on labels, static batch-norm statistics.

Source: Diao, Ding and Tarokh, "SemiFL", NeurIPS 2022, section 3 and algorithm 1.

| when       | phases                                   | what a phase's end does                                    |
|------------|------------------------------------------|------------------------------------------------------------|
| round 0    | none                                     | fine-tune with lr_1, measure statistics on the labels      |
| each round | train                                    | average, momentum, fine-tune with lr_t, measure statistics |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave        |

With `sbn_source = "coordinator+silos"` the statistics phase stands behind the fine-tuning whose weights it measures, so
that the round's evaluation and the next round's labelling both use it; round 1 has one more in front, since silos have
not yet measured the weights of round 0.

With `aggregation = "parallel"` (Table 2 of the paper) nothing is fine-tuned: the coordinator trains from the model that
the silos were sent, and the average is half its own model, half the mean of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import tensors
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import lr_of_round
from semisilo.common.methods.contract import Environment, Task, TensorGroup, UpdateHeader
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.methods.spec import ACCEPTED_STEP
from semisilo.coordinator.strategies.parts.averaging import AverageTally, apply_global_momentum, own_model, weighed
from semisilo.coordinator.strategies.parts.gate import Gate, through_gate
from semisilo.coordinator.strategies.parts.labelled_training import (
    labelled_images,
    model_at_coordinator,
    train_on_labels,
)
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["SemiFLState", "SemiFLStrategy", "halfway"]

_TRAINING = 0.95
"""Of the reported progress; what remains is one pass forward over the labelled images, for their statistics."""


@dataclass(frozen=True, kw_only=True)
class SemiFLState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The fine-tuned global model."""
    global_buf: dict[str, Tensor] | None
    """Server momentum; None until a round accepts an update."""
    opt_buf: dict[str, Tensor] | None
    """SGD momentum of fine-tuning, which goes on over the rounds."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor]
    """What the labelled images alone gave, with counts: the coordinator's part of the statistics phase."""
    fine_tune_loss: float
    """Mean cross-entropy of the last epoch at the coordinator; 0 where there was none."""
    accepted_step: float = 1.0
    """Share of what the silos returned that the gate let through; 1 without it."""
    participation: dict[str, int] = field(default_factory=dict)
    """Accepted updates of every silo so far, for FedFreq."""


class SemiFLStrategy(TrainAndMeasure[SemiFLState, AverageTally, None]):
    """The coordinator half of SemiFL."""

    State = SemiFLState
    Tally = AverageTally

    def __init__(self, settings: SemiFLSettings, environment: Environment) -> None:
        """Raises: BadConfiguration or BadData when there is nothing at the coordinator to learn from."""
        if settings.scenario != "labels-at-coordinator":
            raise BadConfiguration(f"SemiFL is not defined for the scenario '{settings.scenario}'.",
                                   remedy='Set [method] scenario = "labels-at-coordinator".')
        self._labelled = labelled_images(environment, "SemiFL")
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)
        self._gate = Gate(environment)

    def start(self, initial: Mapping[str, Tensor]) -> SemiFLState:
        """Fine-tunes the initial model with lr_1 (not where it trains in parallel); measures its statistics."""
        model = model_at_coordinator(self._environment, initial, round=0)
        return self._fine_tuned(model, global_buf=None, opt_buf=None, participation={}, round=0)

    def sent_model(self, state: SemiFLState) -> TensorGroup:
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: SemiFLState, silo: str, kept: None, *, round: int) -> Task:
        """The model, its batch-norm statistics and lr_t."""
        return Task(groups={"model": self.sent_model(state), **state.served.batch_norm(state.batch_norm)},
                    settings={"round_lr": self._lr(round)})

    def train_begin(self, state: SemiFLState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """Weights 1/m', or by another rule."""
        return weighed(self._settings.weighting, headers, state.participation, environment=self._environment)

    def train_fold(self, state: SemiFLState, tally: AverageTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[AverageTally, None]:
        """Adds p_k (w_k - w)."""
        return tally.plus(header.silo, groups["model"].tensors, like=state.w), None

    def train_finish(self, state: SemiFLState, tally: AverageTally, *, round: int) -> SemiFLState:
        """Average, server momentum, fine-tuning, statistics of the labels."""
        if self._settings.aggregation == "parallel":
            return self._halfway(state, tally, round=round)
        w, global_buf, step = through_gate(
            self._gate if self._settings.gate else None, state.w, state.global_buf, tally.delta,
            momentum=self._settings.global_momentum, round=round)
        model, opt_buf = model_at_coordinator(self._environment, w, round=round), state.opt_buf
        participation = tally.participation
        del state, tally, w  # several models, not needed while this one trains
        return self._fine_tuned(model, global_buf=global_buf, opt_buf=opt_buf, participation=participation, round=round,
                                step=step)

    def model(self, state: SemiFLState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The fine-tuned model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: SemiFLState, groups: Mapping[str, TensorGroup],
                    kept: None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        return own_model(self.sent_model(state), groups), state.batch_norm

    def accepted(self, state: SemiFLState) -> float:
        """What the gate has accepted in the round of this state; 1 without a gate."""
        return state.accepted_step

    def diagnostics(self, state: SemiFLState) -> dict[str, float]:
        """"fine_tune_loss", of the last epoch at the coordinator; with the gate "accepted_step"."""
        gate = {ACCEPTED_STEP: state.accepted_step} if self._settings.gate else {}
        return {"fine_tune_loss": state.fine_tune_loss, **gate}

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        return lr_of_round(self._settings.lr, self._settings.schedule, round=round, rounds=self._environment.rounds)

    def _halfway(self, state: SemiFLState, tally: AverageTally, *, round: int) -> SemiFLState:
        """Table 2's "parallel average": half the coordinator's own training, half the silos', then server momentum."""
        model = model_at_coordinator(self._environment, state.w, round=round)
        opt_buf, loss = self._trained(model, state.opt_buf, round=round)
        own = tensors.subtract(tensors.parameters_of(model), state.w)
        w, global_buf = apply_global_momentum(state.w, state.global_buf, halfway(own, tally.delta),
                                              momentum=self._settings.global_momentum)
        tensors.load_into(model, w)
        return self._closed(model, global_buf=global_buf, opt_buf=opt_buf, loss=loss, participation=tally.participation,
                            round=round)

    def _fine_tuned(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None, opt_buf: dict[str, Tensor] | None,
                    participation: dict[str, int], round: int, step: float = 1.0) -> SemiFLState:
        """Steps 4 and 5 of a round. After the last round come `final_epochs` more, on a fresh cosine from `lr` with
        fresh momentum: lr_t is nearly 0 by then and would change nothing."""
        settings, loss = self._settings, 0.0
        if settings.aggregation == "alternate":
            opt_buf, loss = self._trained(model, opt_buf, round=round)
        if settings.final_epochs and round == self._environment.rounds:
            found = train_on_labels(
                model, self._labelled, self._environment, epochs=settings.final_epochs, momentum=None, purpose="final",
                sgd=sgd_settings(settings, settings.lr, nesterov=settings.nesterov), round=round,
                batch_size=settings.labelled_batch, text="last training", report_until=_TRAINING,
                lr_of_epoch=lambda epoch: lr_of_round(settings.lr, settings.schedule, round=epoch,
                                                      rounds=settings.final_epochs), imbalance=settings)
            opt_buf, loss = found.momentum, found.loss
        return self._closed(model, global_buf=global_buf, opt_buf=opt_buf, loss=loss, participation=participation,
                            round=round, step=step)

    def _trained(self, model: nn.Module, opt_buf: dict[str, Tensor] | None, *,
                 round: int) -> tuple[dict[str, Tensor] | None, float]:
        """`coordinator_epochs` on the labels with lr_t, in place. Returns: (momentum, mean loss of the last epoch)."""
        settings = self._settings
        if not settings.coordinator_epochs:
            return opt_buf, 0.0
        found = train_on_labels(
            model, self._labelled, self._environment, epochs=settings.coordinator_epochs, momentum=opt_buf,
            sgd=sgd_settings(settings, self._lr(round), nesterov=settings.nesterov), purpose="fine_tune", round=round,
            batch_size=settings.labelled_batch, report_until=_TRAINING, imbalance=settings)
        return found.momentum, found.loss

    def _closed(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None, opt_buf: dict[str, Tensor] | None,
                loss: float, participation: dict[str, int], round: int, step: float = 1.0) -> SemiFLState:
        """The state with this model and its statistics on the labelled images."""
        own = self._statistics.own(model, round=round, report_from=_TRAINING)
        self._environment.report(1.0, "")
        return SemiFLState(round=round, w=tensors.parameters_of(model), global_buf=global_buf, opt_buf=opt_buf,
                           batch_norm=self._statistics.used(own), own_statistics=own, fine_tune_loss=loss,
                           accepted_step=step, participation=participation)


def halfway(own: Mapping[str, Tensor], silos: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """1/2 (w_s - w) + 1/2 sum p_k (w_k - w): the parallel average, as a difference.

    When no update was accepted it is w_s - w: without fine-tuning no silo would ever become confident, and every round
    would be an empty one.

    Args:
        own: w_s - w, what the coordinator's training has changed.
        silos: sum p_k (w_k - w).
    Source: SemiFL Table 2 and its official code.
    """
    return dict(own) if silos is None else tensors.scale(tensors.add(own, silos), 0.5)
