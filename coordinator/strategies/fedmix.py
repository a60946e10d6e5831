"""FedMix at the coordinator: sigma from labels, psi from the silos, both mixed with the model they started from.

Source: Zhang et al., FedMix (arXiv 2110.13388).

| when       | phases                                   | what a phase's end does                                 |
|------------|------------------------------------------|---------------------------------------------------------|
| round 0    | none                                     | sigma = w; measure statistics on the labels             |
| each round | train                                    | train sigma from the w that was sent, average psi, mix, |
|            |                                          | measure statistics                                      |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave     |
| round ends |                                          | plateau rule of the learning rate, if asked for         |

In the paper's time the coordinator and the silos train side by side; so sigma starts from the model that was sent,
and what silos are pulled to is the sigma of the round before.

Labels are learnt from weak views, as in the other methods with labels at the coordinator; the paper names augmentation
for silos only. `[augmentation] policy = "none"` would take it from both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from semisilo.common.errors import BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.learning.mixing import fedmix_mix
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.methods.contract import Environment, Task, TensorGroup, UpdateHeader
from semisilo.common.methods.fedmix import FedMixSettings
from semisilo.coordinator.strategies.parts.averaging import AverageTally, own_model, weighed
from semisilo.coordinator.strategies.parts.labelled_training import (
    CoordinatorTraining,
    labelled_images,
    model_at_coordinator,
    train_on_labels,
)
from semisilo.coordinator.strategies.parts.phases import TRAIN, TrainAndMeasure
from semisilo.coordinator.strategies.parts.plateau import Plateau, plateau_lr
from semisilo.coordinator.strategies.parts.served import ServedState

__all__ = ["FedMixState", "FedMixStrategy"]

_TRAINING = 0.9
"""Of the reported progress; what remains is one pass forward over the labelled images, for their statistics."""


@dataclass(frozen=True, kw_only=True)
class FedMixState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The mixed global model."""
    sigma: dict[str, Tensor]
    """The model trained on labels that was mixed into `w`; `w` itself before round 1."""
    counts: dict[str, int]
    """q_k by silo: its accepted updates so far, in byte order of names."""
    opt_buf: dict[str, Tensor] | None
    """SGD momentum of sigma, which goes on over the rounds; None without momentum."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor]
    """What the labelled images alone gave, with counts: the coordinator's part of the statistics phase."""
    lr: float
    """Learning rate of the next round."""
    lowest_loss: float | None = None
    """Of the validation images so far; None without the plateau rule."""
    rounds_left: int = 0
    """Rounds that may bring no lower loss before the learning rate falls."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Numbers about the round."""


class FedMixStrategy(TrainAndMeasure[FedMixState, AverageTally, None]):
    """The coordinator half of FedMix."""

    State = FedMixState
    Tally = AverageTally

    def __init__(self, settings: FedMixSettings, environment: Environment) -> None:
        """Raises: BadData when the coordinator has nothing to learn from, or nothing to measure a plateau on."""
        self._labelled = labelled_images(environment, "FedMix")
        validation = environment.data.validation
        if settings.schedule == "plateau" and (validation is None or len(validation) == 0):
            raise BadData('schedule = "plateau" needs validation images at the coordinator; there are none.',
                          remedy="Name them in [data] validation of the study, or set schedule = \"constant\".")
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> FedMixState:
        """The initial model is w and sigma alike; nobody has taken part."""
        model = model_at_coordinator(self._environment, initial, round=0)
        own = self._statistics.own(model, round=0, report_from=_TRAINING)
        return FedMixState(round=0, w=dict(initial), sigma=dict(initial), counts={}, opt_buf=None,
                           batch_norm=self._statistics.used(own), own_statistics=own, lr=self._settings.lr,
                           rounds_left=self._settings.plateau_patience)

    def sent_model(self, state: FedMixState) -> TensorGroup:
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: FedMixState, silo: str, kept: None, *, round: int) -> Task:
        """w_t and sigma_t as they are before training, the statistics of w_t, and the learning rate."""
        groups = {"model": self.sent_model(state), "sigma": state.served.group("sigma", lambda: state.sigma)}
        return Task(groups={**groups, **state.served.batch_norm(state.batch_norm)}, settings={"round_lr": state.lr})

    def train_begin(self, state: FedMixState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """Counts the accepted silos and weighs them."""
        return weighed(self._settings.weighting, headers, state.counts, self._settings.fedfreq_rule,
                       environment=self._environment)

    def train_fold(self, state: FedMixState, tally: AverageTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[AverageTally, None]:
        """Adds p_k (psi_k - w)."""
        return tally.plus(header.silo, groups["model"].tensors, like=state.w), None

    def train_finish(self, state: FedMixState, tally: AverageTally, *, round: int) -> FedMixState:
        """sigma_{t+1} from w_t, psi, the mixture and its statistics; where no silo measures, the learning rate too.

        When no update was accepted, psi is w_t: sigma learns all the same and is mixed in.
        """
        settings = self._settings
        model = model_at_coordinator(self._environment, state.w, round=round)
        found = self._trained(model, state, round=round)
        sigma = tensors.parameters_of(model)
        psi = dict(state.w) if tally.delta is None else tensors.add(state.w, tally.delta)
        w = fedmix_mix(psi, sigma, state.w, mix_alpha=settings.mix_alpha, mix_beta=settings.mix_beta,
                       mix_gamma=settings.mix_gamma)
        tensors.load_into(model, w)
        own = self._statistics.own(model, round=round, report_from=_TRAINING)
        self._environment.report(1.0, "")
        after = FedMixState(
            round=round, w=w, sigma=sigma, counts=tally.participation, batch_norm=self._statistics.used(own),
            own_statistics=own, opt_buf=found.momentum if settings.momentum else None, lr=state.lr,
            lowest_loss=state.lowest_loss, rounds_left=state.rounds_left,
            diagnostics={"sigma_loss": found.loss, "lr": state.lr, "psi_step": _distance(psi, state.w),
                         "sigma_step": _distance(sigma, state.w), "model_step": _distance(w, state.w),
                         **_participation(tally)})
        silos_measure = self._statistics.phases(TRAIN, round=round)[-1] != TRAIN
        return after if silos_measure else self._judged(after, model)

    def measured(self, state: FedMixState) -> FedMixState:
        """With validation loss and learning rate; the model of round 0 is not judged."""
        if self._settings.schedule != "plateau" or state.round == 0:
            return state
        return self._judged(state, model_at_coordinator(self._environment, state.w, round=state.round))

    def model(self, state: FedMixState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The mixed model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: FedMixState, groups: Mapping[str, TensorGroup],
                    kept: None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """psi_k of one silo, with the statistics it labelled with."""
        return own_model(self.sent_model(state), groups), state.batch_norm

    def diagnostics(self, state: FedMixState) -> Mapping[str, float]:
        """Of the round: "sigma_loss", cross-entropy of sigma's last epoch; "lr"; "psi_step", "sigma_step" and
        "model_step", Euclidean distances from the model before; "weight_min" and "weight_max" of p_k;
        "participation_min" and "participation_max" of q_k over the silos that ever took part; "plateau_loss", where the
        learning rate follows it and it is finite."""
        return state.diagnostics

    def _trained(self, model: nn.Module, state: FedMixState, *, round: int) -> CoordinatorTraining:
        """Makes sigma_{t+1} of `model`, in place."""
        settings = self._settings
        return train_on_labels(
            model, self._labelled, self._environment, epochs=settings.coordinator_epochs, momentum=state.opt_buf,
            sgd=sgd_settings(settings, state.lr), purpose="sigma", round=round, batch_size=settings.labelled_batch,
            loss_weight=settings.lambda_s, report_until=_TRAINING, imbalance=settings)

    def _judged(self, state: FedMixState, model: nn.Module) -> FedMixState:
        """With the learning rate from now on, after the loss of the mixed model, `model`, on the validation images with
        the statistics that go with it."""
        settings, validation = self._settings, self._environment.data.validation
        if settings.schedule != "plateau" or validation is None:
            return state
        batch_norm.load(model, state.batch_norm)
        loss = evaluate(model, validation, form=self._environment.image).loss
        plateau = plateau_lr(Plateau(lr=state.lr, best=state.lowest_loss, left=state.rounds_left), loss,
                             factor=settings.plateau_factor, patience=settings.plateau_patience)
        told = {"plateau_loss": loss} if math.isfinite(loss) else {}
        return replace(state, lr=plateau.lr, lowest_loss=plateau.best, rounds_left=plateau.left,
                       diagnostics={**state.diagnostics, **told})


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return tensors.norm(tensors.subtract(a, b))


def _participation(tally: AverageTally) -> dict[str, float]:
    """How unevenly silos take part; nothing as long as none has."""
    found: dict[str, float] = {}
    for name, values in (("weight", tally.weights), ("participation", tally.participation)):
        if values:
            found |= {f"{name}_min": float(min(values.values())), f"{name}_max": float(max(values.values()))}
    return found
