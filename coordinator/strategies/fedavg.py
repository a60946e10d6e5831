"""FedAvg at the coordinator: weighted averaging, server momentum if wanted, labelled training where the labels are.

Source: McMahan et al., AISTATS 2017; labels at the coordinator as FedMatch (Jeong et al.) trains them.

| scenario              | when       | what happens                                                                   |
|-----------------------|------------|--------------------------------------------------------------------------------|
| labels-at-silo        | round 0    | measure statistics of the initial model                                        |
|                       | each round | send w; average; measure statistics                                            |
| labels-at-coordinator | round 0    | train the initial model on the labels with lr_1: what is sent in round 1       |
|                       | each round | send; average to w, the round's model; train a copy of w for the next sending  |

So with labels at the coordinator a round's model is what the silos have made of the trained one, as FedMatch evaluates
it: unlabelled training that forgets the labels shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from common import tensors
from common.consistency import tsa_loss, tsa_threshold
from common.data.form import AugmentationSettings
from common.errors import BadData
from common.exchange import Environment, GroupLayout, Meaning, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.losses import cross_entropy
from common.methods.fedavg import FedAvgSettings
from common.training import SGDSettings, check_finite, cosine_lr, named_randomness, train_labelled
from coordinator.static_statistics import STATISTICS, StaticStatistics, StatisticsTally
from coordinator.strategies.semifl import apply_global_momentum
from coordinator.weights import counted, weights_of

__all__ = ["TRAIN", "FedAvgState", "FedAvgStrategy", "FedAvgTally"]

TRAIN = Phase("train")


@dataclass(frozen=True, kw_only=True)
class FedAvgState:
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


@dataclass(frozen=True, kw_only=True)
class FedAvgTally:
    """The training phase being folded."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1 (FedNova: its factors); empty when no update was accepted."""
    delta: dict[str, Tensor] | None = None
    """sum p_k (w_k - w) so far, w what was sent."""
    participation: dict[str, int] = field(default_factory=dict)
    """The state's, with this round."""


class FedAvgStrategy:
    """The coordinator half of FedAvg."""

    State = FedAvgState
    Tally = FedAvgTally

    def __init__(self, settings: FedAvgSettings, environment: Environment) -> None:
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
        self._served: tuple[FedAvgState, TensorGroup, TensorGroup | None] | None = None

    def start(self, initial: Mapping[str, Tensor]) -> FedAvgState:
        """Measures the initial model; with labels-at-coordinator also trains what round 1 sends."""
        return self._closed(FedAvgState(round=0, w=dict(initial), batch_norm={}, own_statistics={}), round=0)

    def phases(self, state: FedAvgState, round: int) -> tuple[Phase, ...]:
        """"train", and "statistics" where silos measure."""
        return self._statistics.phases(TRAIN, round=round)

    def task(self, state: FedAvgState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The model; for training also its batch-norm statistics and lr_t."""
        model, statistics = self._groups(state)
        if phase.name == STATISTICS.name:
            return self._statistics.task(model)
        groups = {"model": model} if statistics is None else {"model": model, "batch_norm": statistics}
        return Task(groups=groups, settings={"round_lr": self._lr(round)})

    def expects(self, state: FedAvgState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that was sent, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return self._statistics.expects()
        model, _ = self._groups(state)
        return {"model": GroupLayout(Meaning.DIFFERENCE, model.digest, tensors.specs(state.w))}

    def begin(self, state: FedAvgState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> FedAvgTally | StatisticsTally:
        """Weights by the settings' rule. Statistics start with the coordinator's own."""
        if phase.name == STATISTICS.name:
            return self._statistics.begin(state.own_statistics)
        silos = [header.silo for header in headers]
        participation = counted(state.participation, silos)
        weights = weights_of(self._settings.weighting, silos, [header.num_examples for header in headers],
                             participation)
        return FedAvgTally(weights=weights, participation=participation)

    def fold(self, state: FedAvgState, tally: FedAvgTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[FedAvgTally | StatisticsTally, SiloState]:
        """Adds p_k (w_k - w), or merges one silo's statistics."""
        if isinstance(tally, StatisticsTally):
            return self._statistics.fold(tally, header, groups), kept
        delta, weight = groups["model"].tensors, tally.weights[header.silo]
        so_far = tensors.zeros_like(state.w) if tally.delta is None else tally.delta
        return replace(tally, delta=tensors.add(so_far, delta, factor=weight)), kept

    def finish(self, state: FedAvgState, phase: Phase, tally: FedAvgTally | StatisticsTally, *,
               round: int) -> FedAvgState:
        """Train: average, server momentum, statistics, labelled training. Statistics: the merged ones.

        Without an update all stays as it was; the next round sends the same model again.
        """
        if isinstance(tally, StatisticsTally):
            return replace(state, batch_norm=self._statistics.finish(tally, state.batch_norm))
        if tally.delta is None:
            return replace(state, round=round)
        sent, _ = _sent(state)
        if self._settings.global_momentum:
            w, buffer = apply_global_momentum(sent, state.global_buf, tally.delta,
                                              momentum=self._settings.global_momentum)
        else:
            w, buffer = tensors.add(sent, tally.delta), None
        self._served = None
        after = replace(state, round=round, w=w, trained=None, trained_batch_norm={}, global_buf=buffer,
                        participation=tally.participation)
        del state, tally, sent, w  # several models, not needed while the next is trained
        return self._closed(after, round=round)

    def model(self, state: FedAvgState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The averaged model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: FedAvgState, groups: Mapping[str, TensorGroup],
                    kept: SiloState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        sent, statistics = _sent(state)
        return tensors.add(sent, groups["model"].tensors), statistics

    def diagnostics(self, state: FedAvgState) -> dict[str, float]:
        """With labels-at-coordinator "coordinator_loss": of the last epoch there, before what is sent next."""
        return {} if self._labelled is None else {"coordinator_loss": state.labelled_loss}

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        if self._settings.schedule == "constant":
            return self._settings.lr
        return cosine_lr(self._settings.lr, round=round, rounds=self._environment.rounds)

    def _closed(self, state: FedAvgState, *, round: int) -> FedAvgState:
        """The state with its statistics and, with labels-at-coordinator, what the next round sends."""
        model = self._loaded(state.w, round=round)
        own = self._statistics.own(model, round=round)
        # Where silos measure, what they last measured stays until the round's own statistics phase.
        measured = self._statistics.used(own) or state.batch_norm
        state = replace(state, batch_norm=measured, own_statistics=own)
        if self._labelled is None or round >= self._environment.rounds:
            return state
        opt_buf, loss = self._train(model, state.opt_buf, round=round + 1)
        trained_own = self._statistics.own(model, round=round)
        return replace(state, trained=tensors.parameters_of(model), opt_buf=opt_buf, labelled_loss=loss,
                       trained_batch_norm=self._statistics.used(trained_own))

    def _train(self, model: nn.Module, opt_buf: dict[str, Tensor] | None, *,
               round: int) -> tuple[dict[str, Tensor], float]:
        """The labelled term of the objective, in place, with the learning rate of the round that it is sent in.

        Returns: (momentum, mean loss of the last epoch).
        """
        settings, environment = self._settings, self._environment
        assert self._labelled is not None
        weak = environment.augmentation if settings.weak_view == "weak" else AugmentationSettings(policy="none")
        text = f"training on {len(self._labelled)} labelled images"

        def annealed(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
            assert settings.tsa != "none"
            threshold = tsa_threshold(settings.tsa, t=round, total=environment.rounds, num_classes=logits_BK.shape[1])
            return tsa_loss(logits_BK, labels_B, threshold).loss

        result = train_labelled(
            model, self._labelled, form=environment.image, augmentation=weak,
            sgd=SGDSettings(lr=self._lr(round), momentum=settings.momentum, nesterov=settings.nesterov,
                            weight_decay=settings.weight_decay, clip_norm=settings.clip_norm),
            epochs=settings.coordinator_epochs, batch_size=settings.labelled_batch, seed=environment.seed,
            purpose="coordinator", round=round, momentum=opt_buf,
            loss_weight=settings.lambda_s if settings.objective in ("uda", "fixmatch") else 1.0,
            loss_of=annealed if settings.objective == "uda" and settings.tsa != "none" else cross_entropy,
            progress=lambda share: environment.report(share, text))
        check_finite(dict(model.named_parameters()), where=f"at the coordinator before round {round}")
        return result.momentum, result.loss if result.loss == result.loss else 0.0

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)

    def _groups(self, state: FedAvgState) -> tuple[TensorGroup, TensorGroup | None]:
        """The same objects for every silo of a phase, so that they are encoded once; the last state's are kept."""
        if self._served is None or self._served[0] is not state:
            sent, statistics = _sent(state)
            self._served = (state, TensorGroup(sent, digest=tensors.digest(sent)),
                            TensorGroup(statistics) if statistics else None)
        return self._served[1], self._served[2]


def _sent(state: FedAvgState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What silos are sent: parameters and statistics."""
    return (state.w, state.batch_norm) if state.trained is None else (state.trained, state.trained_batch_norm)
