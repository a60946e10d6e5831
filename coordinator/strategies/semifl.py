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
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from common import tensors
from common.data.image_set import ImageSet
from common.errors import BadConfiguration, BadData
from common.exchange import Environment, GroupLayout, Meaning, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.methods import SemiFLSettings
from common.training import SGDSettings, check_finite, cosine_lr, named_randomness, train_labelled
from coordinator.static_statistics import STATISTICS, StaticStatistics, StatisticsTally
from coordinator.weights import counted, weights_of

__all__ = ["STATISTICS", "TRAIN", "SemiFLState", "SemiFLStrategy", "SemiFLTally", "apply_global_momentum", "halfway"]

TRAIN = Phase("train")


@dataclass(frozen=True, kw_only=True)
class SemiFLState:
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
    participation: dict[str, int] = field(default_factory=dict)
    """Accepted updates of every silo so far, for FedFreq."""


@dataclass(frozen=True, kw_only=True)
class SemiFLTally:
    """The training phase being folded."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1; empty when no update was accepted."""
    delta: dict[str, Tensor] | None = None
    """sum p_k (w_k - w) so far."""
    participation: dict[str, int] = field(default_factory=dict)
    """The state's, with this round."""


class SemiFLStrategy:
    """The coordinator half of SemiFL."""

    State = SemiFLState
    Tally = SemiFLTally

    def __init__(self, settings: SemiFLSettings, environment: Environment) -> None:
        """Raises: BadConfiguration or BadData when there is nothing at the coordinator to learn from."""
        if settings.scenario != "labels-at-coordinator":
            raise BadConfiguration(f"SemiFL is not defined for the scenario '{settings.scenario}'.",
                                   remedy='Set [method] scenario = "labels-at-coordinator".')
        labelled = environment.data.labelled
        if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
            raise BadData("SemiFL needs labelled images at the coordinator; there are none.",
                          remedy="Name them in [data] labelled of the study.")
        self._settings = settings
        self._environment = environment
        self._labelled: ImageSet = labelled
        self._statistics = StaticStatistics(environment, settings.sbn_source)
        self._served: tuple[SemiFLState, TensorGroup, TensorGroup | None] | None = None

    # Round 0 ----------------------------------------------------------------------------------------------------------

    def start(self, initial: Mapping[str, Tensor]) -> SemiFLState:
        """Fine-tunes the initial model with lr_1 (not where it trains in parallel); measures the statistics."""
        return self._fine_tune(self._loaded(initial, round=0), global_buf=None, opt_buf=None, participation={}, round=0)

    # A round ----------------------------------------------------------------------------------------------------------

    def phases(self, state: SemiFLState, round: int) -> tuple[Phase, ...]:
        """See the table at the top of the module."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: SemiFLState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The model; for training also its batch-norm statistics and lr_t."""
        model, statistics = self._groups(state)
        if phase.name == STATISTICS.name:
            return self._statistics.task(model)
        groups = {"model": model} if statistics is None else {"model": model, "batch_norm": statistics}
        return Task(groups=groups, settings={"round_lr": self._lr(round)})

    def expects(self, state: SemiFLState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that was sent, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return self._statistics.expects()
        model, _ = self._groups(state)
        return {"model": GroupLayout(Meaning.DIFFERENCE, model.digest, tensors.specs(state.w))}

    def begin(self, state: SemiFLState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> SemiFLTally | StatisticsTally:
        """Weights 1/m', or by another rule. Statistics start with the coordinator's own."""
        if phase.name == STATISTICS.name:
            return self._statistics.begin(state.own_statistics)
        silos = [header.silo for header in headers]
        participation = counted(state.participation, silos)
        weights = weights_of(self._settings.weighting, silos, [header.num_examples for header in headers],
                             participation)
        return SemiFLTally(weights=weights, participation=participation)

    def fold(self, state: SemiFLState, tally: SemiFLTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[SemiFLTally | StatisticsTally, SiloState]:
        """Adds p_k (w_k - w), or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        delta, weight = groups["model"].tensors, tally.weights[header.silo]
        so_far = tensors.zeros_like(state.w) if tally.delta is None else tally.delta
        return replace(tally, delta=tensors.add(so_far, delta, factor=weight)), kept

    def finish(self, state: SemiFLState, phase: Phase, tally: SemiFLTally | StatisticsTally, *,
               round: int) -> SemiFLState:
        """Train: average, server momentum, fine-tuning, statistics of the labels. Statistics: the merged ones."""
        if isinstance(tally, StatisticsTally):
            return replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm))
        if self._settings.aggregation == "parallel":
            return self._halfway(state, tally, round=round)
        w, global_buf = apply_global_momentum(state.w, state.global_buf, tally.delta,
                                              momentum=self._settings.global_momentum)
        model, opt_buf, participation = self._loaded(w, round=round), state.opt_buf, tally.participation
        self._served = None
        del state, tally, w  # several models, not needed while this one trains
        return self._fine_tune(model, global_buf=global_buf, opt_buf=opt_buf, participation=participation, round=round)

    def model(self, state: SemiFLState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The fine-tuned model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: SemiFLState, groups: Mapping[str, TensorGroup],
                    kept: SiloState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        return tensors.add(state.w, groups["model"].tensors), state.batch_norm

    def diagnostics(self, state: SemiFLState) -> dict[str, float]:
        """"fine_tune_loss", of the last epoch at the coordinator."""
        return {"fine_tune_loss": state.fine_tune_loss}

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        if self._settings.schedule == "constant":
            return self._settings.lr
        return cosine_lr(self._settings.lr, round=round, rounds=self._environment.rounds)

    def _sgd(self, lr: float) -> SGDSettings:
        settings = self._settings
        return SGDSettings(lr=lr, momentum=settings.momentum, nesterov=settings.nesterov,
                           weight_decay=settings.weight_decay, clip_norm=settings.clip_norm)

    def _halfway(self, state: SemiFLState, tally: SemiFLTally, *, round: int) -> SemiFLState:
        """Table 2's "parallel average": half the coordinator's own training, half the silos', then server momentum."""
        model = self._loaded(state.w, round=round)
        opt_buf, loss = self._train(model, state.opt_buf, round=round)
        own = tensors.subtract(tensors.parameters_of(model), state.w)
        w, global_buf = apply_global_momentum(state.w, state.global_buf, halfway(own, tally.delta),
                                              momentum=self._settings.global_momentum)
        return self._measured(self._loaded(w, round=round), global_buf=global_buf, opt_buf=opt_buf, loss=loss,
                              participation=tally.participation, round=round)

    def _train(self, model: nn.Module, opt_buf: dict[str, Tensor] | None, *,
               round: int) -> tuple[dict[str, Tensor] | None, float]:
        """`coordinator_epochs` on the labels with lr_t, in place. Returns: (momentum, mean loss of the last epoch)."""
        settings, environment = self._settings, self._environment
        if not settings.coordinator_epochs:
            return opt_buf, 0.0
        report = f"training on {len(self._labelled)} labelled images"
        result = train_labelled(
            model, self._labelled, form=environment.image, augmentation=environment.augmentation,
            sgd=self._sgd(self._lr(max(round, 1))), epochs=settings.coordinator_epochs,
            batch_size=settings.labelled_batch, seed=environment.seed, purpose="fine_tune", round=round,
            momentum=opt_buf, progress=lambda share: environment.report(0.95 * share, report))
        check_finite(dict(model.named_parameters()), where=f"at the coordinator in round {round}")
        return result.momentum, result.loss

    def _fine_tune(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None, opt_buf: dict[str, Tensor] | None,
                   participation: dict[str, int], round: int) -> SemiFLState:
        """Steps 4 and 5 of a round. After the last round come `final_epochs` more, on a fresh cosine from `lr` with
        fresh momentum: lr_t is nearly 0 by then and would change nothing."""
        settings, environment, loss = self._settings, self._environment, 0.0
        if settings.aggregation == "alternate":
            opt_buf, loss = self._train(model, opt_buf, round=round)
        if settings.final_epochs and round == environment.rounds:
            falls = settings.schedule == "cosine"
            report = f"last training on {len(self._labelled)} labelled images"
            result = train_labelled(
                model, self._labelled, form=environment.image, augmentation=environment.augmentation,
                sgd=self._sgd(settings.lr), epochs=settings.final_epochs, batch_size=settings.labelled_batch,
                seed=environment.seed, purpose="final", round=round,
                lr_of_epoch=(lambda epoch: cosine_lr(settings.lr, round=epoch, rounds=settings.final_epochs))
                if falls else None, progress=lambda share: environment.report(0.95 * share, report))
            check_finite(dict(model.named_parameters()), where=f"at the coordinator in round {round}")
            opt_buf, loss = result.momentum, result.loss
        return self._measured(model, global_buf=global_buf, opt_buf=opt_buf, loss=loss, participation=participation,
                              round=round)

    def _measured(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None, opt_buf: dict[str, Tensor] | None,
                  loss: float, participation: dict[str, int], round: int) -> SemiFLState:
        """The state with this model and its statistics on the labelled images."""
        own = self._statistics.own(model, round=round, progress=lambda share: self._environment.report(
            0.95 + 0.05 * share, "measuring batch-norm statistics"))
        self._environment.report(1.0, "")
        return SemiFLState(round=round, w=tensors.parameters_of(model), global_buf=global_buf, opt_buf=opt_buf,
                           batch_norm=self._statistics.used(own), own_statistics=own,
                           fine_tune_loss=loss if loss == loss else 0.0, participation=participation)

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)

    def _groups(self, state: SemiFLState) -> tuple[TensorGroup, TensorGroup | None]:
        """The same objects for every silo of a phase, so that they are encoded once; the last state's are kept."""
        if self._served is None or self._served[0] is not state:
            statistics = TensorGroup(state.batch_norm) if state.batch_norm else None
            self._served = state, TensorGroup(state.w, digest=tensors.digest(state.w)), statistics
        return self._served[1], self._served[2]


def apply_global_momentum(w: Mapping[str, Tensor], buffer: Mapping[str, Tensor] | None,
                          delta: Mapping[str, Tensor] | None, *, momentum: float
                          ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Server momentum on the pseudo-gradient g = w - average = -delta; oracles S5 and S8.

        buffer = g (the first time) or momentum * buffer + g;   w = w - buffer

    Args:
        w: the model that the silos started from.
        buffer: None until a round accepts an update.
        delta: sum p_k (w_k - w), or None when no update was accepted: then both come back untouched.
        momentum: beta_g, 0..1.
    Returns: the new model and buffer.
    Source: SemiFL section 3.5.
    """
    if delta is None:
        return dict(w), None if buffer is None else dict(buffer)
    gradient = tensors.scale(delta, -1.0)
    new = gradient if buffer is None else tensors.add(gradient, buffer, factor=momentum)
    return tensors.subtract(w, new), new


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
