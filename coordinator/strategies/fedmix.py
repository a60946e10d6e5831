"""FedMix at the coordinator: sigma from labels, psi from the silos, both mixed with the model they started from.

Source: Zhang et al., FedMix (arXiv 2110.13388).

| when       | phases                                   | what a phase's end does                                 |
|------------|------------------------------------------|---------------------------------------------------------|
| round 0    | none                                     | sigma = w; measure statistics on the labels             |
| each round | train                                    | train sigma from the w that was sent, average psi, mix, |
|            |                                          | measure statistics, learning rate                       |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave     |

In the paper's time the coordinator and the silos train side by side; so sigma starts from the model that was sent,
and what silos are pulled to is the sigma of the round before.

Labels are learnt from weak views, as in the other methods with labels at the coordinator; the paper names augmentation
for silos only. `[augmentation] policy = "none"` would take it from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from common import batch_norm, tensors
from common.data.image_set import ImageSet
from common.errors import BadData
from common.evaluation import evaluate
from common.exchange import Environment, GroupLayout, Meaning, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.methods.fedmix import FedMixSettings
from common.mixing import fedmix_mix
from common.training import SGDSettings, check_finite, named_randomness, train_labelled
from coordinator.plateau import Plateau, plateau_lr
from coordinator.static_statistics import STATISTICS, StaticStatistics, StatisticsTally
from coordinator.weights import counted, weights_of

__all__ = ["TRAIN", "FedMixState", "FedMixStrategy", "FedMixTally"]

TRAIN = Phase("train")
_MEASURING = 0.1
"""Of the reported progress: one pass forward over the labelled images, after training on them."""


@dataclass(frozen=True, kw_only=True)
class FedMixState:
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


@dataclass(frozen=True, kw_only=True)
class FedMixTally:
    """The training phase being folded."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1; empty when no update was accepted."""
    counts: dict[str, int] = field(default_factory=dict)
    """q_k of all silos, the current round's included."""
    delta: dict[str, Tensor] | None = None
    """sum p_k (psi_k - w) so far."""


class FedMixStrategy:
    """The coordinator half of FedMix."""

    State = FedMixState
    Tally = FedMixTally

    def __init__(self, settings: FedMixSettings, environment: Environment) -> None:
        """Raises: BadData when the coordinator has nothing to learn from, or nothing to measure a plateau on."""
        labelled = environment.data.labelled
        if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
            raise BadData("FedMix needs labelled images at the coordinator; there are none.",
                          remedy="Name them in [data] labelled of the study.")
        validation = environment.data.validation
        if settings.schedule == "plateau" and (validation is None or len(validation) == 0):
            raise BadData('schedule = "plateau" needs validation images at the coordinator; there are none.',
                          remedy="Name them in [data] validation of the study, or set schedule = \"constant\".")
        self._settings = settings
        self._environment = environment
        self._labelled: ImageSet = labelled
        self._statistics = StaticStatistics(environment, settings.sbn_source)
        self._served: tuple[FedMixState, dict[str, TensorGroup]] | None = None

    # Round 0 ----------------------------------------------------------------------------------------------------------

    def start(self, initial: Mapping[str, Tensor]) -> FedMixState:
        """The initial model is w and sigma alike; nobody has taken part."""
        own = self._measure(self._loaded(initial, round=0), round=0)
        return FedMixState(round=0, w=dict(initial), sigma=dict(initial), counts={}, opt_buf=None,
                           batch_norm=self._statistics.used(own), own_statistics=own, lr=self._settings.lr,
                           rounds_left=self._settings.plateau_patience)

    # A round ----------------------------------------------------------------------------------------------------------

    def phases(self, state: FedMixState, round: int) -> tuple[Phase, ...]:
        """See the table at the top of the module."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: FedMixState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """w_t and sigma_t as they are before training, the statistics of w_t, and the learning rate."""
        groups = self._groups(state)
        if phase.name == STATISTICS.name:
            return self._statistics.task(groups["model"])
        return Task(groups=groups, settings={"round_lr": state.lr})

    def expects(self, state: FedMixState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that was sent, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return self._statistics.expects()
        model = self._groups(state)["model"]
        return {"model": GroupLayout(Meaning.DIFFERENCE, model.digest, tensors.specs(state.w))}

    def begin(self, state: FedMixState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> FedMixTally | StatisticsTally:
        """Counts the accepted silos and weighs them."""
        if phase.name == STATISTICS.name:
            return self._statistics.begin(state.own_statistics)
        silos = [header.silo for header in headers]
        counts = counted(state.counts, silos)
        weights = weights_of(self._settings.weighting, silos, [header.num_examples for header in headers], counts,
                             self._settings.fedfreq_rule)
        return FedMixTally(weights=weights, counts=counts)

    def fold(self, state: FedMixState, tally: FedMixTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[FedMixTally | StatisticsTally, SiloState]:
        """Adds p_k (psi_k - w), or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        so_far = tensors.zeros_like(state.w) if tally.delta is None else tally.delta
        added = tensors.add(so_far, groups["model"].tensors, factor=tally.weights[header.silo])
        return replace(tally, delta=added), kept

    def finish(self, state: FedMixState, phase: Phase, tally: FedMixTally | StatisticsTally, *,
               round: int) -> FedMixState:
        """Train: sigma_{t+1} from w_t, psi, the mixture and its statistics. Statistics: the merged ones.

        When no update was accepted, psi is w_t: sigma learns all the same and is mixed in.
        """
        if isinstance(tally, StatisticsTally):
            return replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm))
        settings = self._settings
        model = self._loaded(state.w, round=round)
        opt_buf, sigma_loss = self._train_sigma(model, state, round=round)
        sigma = tensors.parameters_of(model)
        psi = dict(state.w) if tally.delta is None else tensors.add(state.w, tally.delta)
        w = fedmix_mix(psi, sigma, state.w, mix_alpha=settings.mix_alpha, mix_beta=settings.mix_beta,
                       mix_gamma=settings.mix_gamma)
        tensors.load_into(model, w)
        own = self._measure(model, round=round)
        statistics = self._statistics.used(own)
        plateau = self._plateau(model, statistics, state)
        self._environment.report(1.0, "")
        self._served = None
        return FedMixState(
            round=round, w=w, sigma=sigma, counts=tally.counts, opt_buf=opt_buf, batch_norm=statistics,
            own_statistics=own, lr=plateau.lr, lowest_loss=plateau.best, rounds_left=plateau.left,
            diagnostics={"sigma_loss": sigma_loss, "lr": state.lr, "psi_step": _distance(psi, state.w),
                         "sigma_step": _distance(sigma, state.w), "model_step": _distance(w, state.w),
                         **_participation(tally)})

    def model(self, state: FedMixState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The mixed model and its statistics."""
        return state.w, state.batch_norm

    def diagnostics(self, state: FedMixState) -> Mapping[str, float]:
        """Of the round: "sigma_loss", cross-entropy of sigma's last epoch; "lr"; "psi_step", "sigma_step" and
        "model_step", Euclidean distances from the model before; "weight_min" and "weight_max" of p_k;
        "participation_min" and "participation_max" of q_k over the silos that ever took part."""
        return state.diagnostics

    def local_model(self, state: FedMixState, groups: Mapping[str, TensorGroup],
                    kept: SiloState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """psi_k of one silo, from the state that its task was made of; with the statistics it labelled with."""
        return tensors.add(state.w, groups["model"].tensors), state.batch_norm

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _train_sigma(self, model: nn.Module, state: FedMixState, *, round: int
                     ) -> tuple[dict[str, Tensor] | None, float]:
        """Trains `model` in place; returns the momentum and the loss of the last epoch, 0 where there was none."""
        settings, environment = self._settings, self._environment
        text = f"training on {len(self._labelled)} labelled images"
        result = train_labelled(
            model, self._labelled, form=environment.image, augmentation=environment.augmentation,
            sgd=SGDSettings(lr=state.lr, momentum=settings.momentum, nesterov=False,
                            weight_decay=settings.weight_decay, clip_norm=settings.clip_norm),
            epochs=settings.coordinator_epochs, batch_size=settings.labelled_batch, seed=environment.seed,
            purpose="sigma", round=round, momentum=state.opt_buf, loss_weight=settings.lambda_s,
            progress=lambda share: environment.report((1 - _MEASURING) * share, text))
        check_finite(dict(model.named_parameters()), where=f"at the coordinator in round {round}")
        loss = result.loss if result.loss == result.loss else 0.0
        return (result.momentum if settings.momentum else None), loss

    def _plateau(self, model: nn.Module, statistics: Mapping[str, Tensor], state: FedMixState) -> Plateau:
        """The learning rate from now on, after the mixed model's loss on the validation images."""
        settings, before = self._settings, Plateau(lr=state.lr, best=state.lowest_loss, left=state.rounds_left)
        validation = self._environment.data.validation
        if settings.schedule != "plateau" or validation is None:
            return before
        batch_norm.load(model, statistics)
        loss = evaluate(model, validation, form=self._environment.image).loss
        return plateau_lr(before, loss, factor=settings.plateau_factor, patience=settings.plateau_patience)

    def _measure(self, model: nn.Module, *, round: int) -> dict[str, Tensor]:
        return self._statistics.own(model, round=round, progress=lambda share: self._environment.report(
            1 - _MEASURING + _MEASURING * share, "measuring batch-norm statistics"))

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)

    def _groups(self, state: FedMixState) -> dict[str, TensorGroup]:
        """The same objects for every silo of a phase, so that they are encoded once; the last state's are kept."""
        if self._served is None or self._served[0] is not state:
            groups = {name: TensorGroup(value, digest=tensors.digest(value))
                      for name, value in (("model", state.w), ("sigma", state.sigma))}
            if state.batch_norm:
                groups["batch_norm"] = TensorGroup(state.batch_norm)
            self._served = state, groups
        return self._served[1]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return tensors.norm(tensors.subtract(a, b))


def _participation(tally: FedMixTally) -> dict[str, float]:
    """How unevenly silos take part; nothing as long as none has."""
    found: dict[str, float] = {}
    for name, values in (("weight", tally.weights), ("participation", tally.counts)):
        if values:
            found |= {f"{name}_min": float(min(values.values())), f"{name}_max": float(max(values.values()))}
    return found
