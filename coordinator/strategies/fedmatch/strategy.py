"""FedMatch at the coordinator: shadows of the silos, scores or embeddings, helpers, and the mean of psi (and sigma).

Source: FedMatch, Jeong et al., arXiv 2006.12097 (v1) and ICLR 2021 (v3) with official code.

| when       | what happens                                                                                          |
|------------|-------------------------------------------------------------------------------------------------------|
| round 0    | psi = 0.2 sigma; labels-at-coordinator: sigma of round 1 is trained on the labels                     |
| a task     | sigma and psi, to be written over the silo's shadow; in helper rounds also psi of H other silos       |
| an update  | (sigma_k, psi_k) as decoded is the silo's new shadow; theta_k = sigma_k + psi_k is scored or embedded |
| train ends | psi, with labels at silos sigma as well, becomes the mean; with labels at the coordinator sigma is    |
|            | trained on them, after the last round as after all others; then batch-norm statistics                 |
| round ends | validation loss of the new model, plateau rule of the learning rate                                   |

A strategy works where a phase ends, not where a round begins. So with labels at the coordinator the model of a round,
evaluated, judged by the plateau rule and handed over, is sigma^{r+1} + psi^{r+1} of Algorithm 2: the silos' mean after
the coordinator's pass over its labels, in every round alike. The mean before that pass can be forty points worse.
sigma follows a fall of the learning rate one round later than the silos.

Memory: sigma, psi, sigma's momentum, one shadow at a time, and the thresholded psi of those who may become helpers:
by reliability the H + 1 best silos of the last round (whoever asks, the H best others are among them); by similarity
all silos of the last round; with helper_pool = "all" every silo so far, since any may become anybody's best.
A silo that does not permit the group `helper_psi/*` refuses FedMatch altogether, so its psi helps nobody. Nor does that
of one that was set aside or revoked, or has left, from the next end of training on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.learning import tensors
from semisilo.common.learning.decomposition import initial_psi, parts_of_trained, theta
from semisilo.common.learning.sparse_transfer import comm_cost, density, nonzero_count, num_elements, threshold
from semisilo.common.learning.training import check_finite
from semisilo.common.methods.contract import (
    FROM_TASK,
    NUM_LABELLED,
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    Task,
    TensorGroup,
    UpdateHeader,
)
from semisilo.common.methods.fedmatch import FedMatchSettings
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS, StatisticsTally
from semisilo.coordinator.strategies.fedmatch.helpers import (
    helpers_by_embedding,
    helpers_by_reliability,
    pool_joined,
    pool_keeping,
    pool_psi,
    pool_silos,
    pool_with,
)
from semisilo.coordinator.strategies.fedmatch.labelled_step import train_sigma
from semisilo.coordinator.strategies.fedmatch.scoring import (
    embedding_of,
    measured_on_validation,
    network_with,
    validation_images,
)
from semisilo.coordinator.strategies.fedmatch.shadow_downlink import SparseDownlink
from semisilo.coordinator.strategies.parts.averaging import WeightLimits, weight_limits
from semisilo.coordinator.strategies.parts.count_cap import capped_weights
from semisilo.coordinator.strategies.parts.labelled_training import labelled_images
from semisilo.coordinator.strategies.parts.phases import TRAIN, TrainAndMeasure
from semisilo.coordinator.strategies.parts.plateau import Plateau, plateau_lr
from semisilo.coordinator.strategies.parts.served import ServedState
from semisilo.coordinator.strategies.parts.weighted_mean import WeightedMean
from semisilo.coordinator.strategies.parts.weights import counted, weights_of

__all__ = ["FedMatchShadow", "FedMatchState", "FedMatchStrategy", "FedMatchTally"]

_LOG = logging.getLogger("semisilo.coordinator")


@dataclass(frozen=True, kw_only=True)
class FedMatchState(ServedState):
    """Everything that survives a round, besides the shadows."""

    round: int
    """The round that gave this state."""
    sigma: dict[str, Tensor]
    """With labels at the coordinator as trained since the last mean."""
    psi: dict[str, Tensor]
    """The mean as it is; it is thresholded where it is sent or evaluated."""
    sigma_buf: dict[str, Tensor] | None = None
    """SGD momentum of sigma at the coordinator, which goes on over the rounds."""
    batch_norm: dict[str, Tensor] = field(default_factory=dict)
    """Static batch-norm statistics in use; empty for a network without such layers."""
    own_statistics: dict[str, Tensor] = field(default_factory=dict)
    """The coordinator's part of them, with counts."""
    pool: dict[str, Tensor] = field(default_factory=dict)
    """Thresholded psi of those who may be helpers, "<silo>/<tensor>"."""
    scores: dict[str, float] = field(default_factory=dict)
    """Accuracy on the validation images by silo, of its last accepted update; empty where nobody is scored."""
    embeddings: dict[str, list[float]] = field(default_factory=dict)
    """Class probabilities on the noise image by silo, likewise."""
    last_round: dict[str, int] = field(default_factory=dict)
    """Round of the last accepted update by silo."""
    participation: dict[str, int] = field(default_factory=dict)
    """Accepted updates so far by silo."""
    lr: float
    """Learning rate of the next round."""
    best_loss: float | None = None
    """Lowest validation loss so far."""
    patience_left: int
    unjudged: bool = False
    """Whether this model's validation loss has still to be taken."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Diagnostics of the round."""


@dataclass(frozen=True, kw_only=True)
class FedMatchShadow:
    """What a silo holds since its last accepted update, to the bit."""

    sigma: dict[str, Tensor]
    psi: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class FedMatchTally:
    """The phase "train" being folded. Sums are of differences to the state's psi and sigma; see `WeightedMean`."""

    round: int
    weights: dict[str, float]
    """p_k by silo in psi; empty where the weight is the score, which is known only when the silo is folded."""
    participation: dict[str, int]
    sigma_weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo in sigma. Here and there they are shares of those that count, over their sum."""
    psi_total: dict[str, Tensor] | None = None
    psi_weight: float = 0.0
    psi_count: int = 0
    sigma_total: dict[str, Tensor] | None = None
    sigma_weight: float = 0.0
    sigma_count: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    embeddings: dict[str, list[float]] = field(default_factory=dict)
    pool: dict[str, Tensor] = field(default_factory=dict)
    without_answer: list[str] = field(default_factory=list)
    """Silos whose own model gives no finite answer."""
    gone: list[str] = field(default_factory=list)
    """Silos that are asked nothing any more: they help nobody from the next round on."""
    folded: list[str] = field(default_factory=list)
    c2s_percent: float = 0.0
    """Sum over the silos folded so far."""
    s2c_percent: float = 0.0


class FedMatchStrategy(TrainAndMeasure[FedMatchState, FedMatchTally, FedMatchShadow]):
    """The coordinator half of FedMatch."""

    State = FedMatchState
    Tally = FedMatchTally
    SiloState = FedMatchShadow

    def __init__(self, settings: FedMatchSettings, environment: Environment) -> None:
        """Raises: BadData without the labelled images that the scenario needs; BadConfiguration when silos are to be
        scored and there is no validation set."""
        self._labelled = None
        if settings.scenario == "labels-at-coordinator":
            self._labelled = labelled_images(
                environment, "FedMatch with labels at the coordinator", where="there",
                remedy='Name them in [data] labelled of the study, or set scenario = "labels-at-silo".')
        helped = settings.num_helpers > 0
        self._scores = settings.aggregation == "reliability" or (helped and settings.helpers == "reliability")
        self._embeds = helped and settings.helpers == "similarity"
        self._judges = validation_images(environment) is not None
        if self._scores and not self._judges:
            key = "aggregation" if settings.aggregation == "reliability" else "helpers"
            raise BadConfiguration(
                f'[method] {key} = "reliability" needs validation images at the coordinator; there are none.',
                remedy='Name them in [data] validation of the study, or set aggregation = "uniform"'
                       + (' and helpers = "similarity".' if helped else "."))
        self._settings = settings
        self._at_silo = settings.scenario == "labels-at-silo"
        self._downlink = SparseDownlink(l1_thres=settings.l1_thres, delta_thres=settings.delta_thres)
        super().__init__(environment, settings.sbn_source, settings)

    # Round 0 ----------------------------------------------------------------------------------------------------------

    def start(self, initial: Mapping[str, Tensor]) -> FedMatchState:
        """sigma_0 as initialised, psi_0 from it; with labels at the coordinator sigma is trained for round 1."""
        settings = self._settings
        sigma, psi = (parts_of_trained(initial) if self._environment.trained_before
                      else (dict(initial), initial_psi(initial)))
        state = FedMatchState(round=0, sigma=sigma, psi=psi, lr=settings.lr,
                              patience_left=settings.plateau_patience, numbers={"lr": settings.lr})
        return self._prepared(state, round=0)

    # A round ----------------------------------------------------------------------------------------------------------

    def sent_model(self, state: FedMatchState) -> TensorGroup:
        """sigma + threshold(psi): what silos measure. They train its parts."""
        return state.served.group("model", lambda: self.model(state)[0])

    def train_task(self, state: FedMatchState, silo: str, kept: FedMatchShadow | None, *, round: int) -> Task:
        """sigma and psi over the silo's shadow, batch-norm statistics, helpers, and the learning rate."""
        groups = self._downlink.groups(state, kept)
        for index, helper in enumerate(self._helpers_of(state, silo, round=round)):
            groups[f"helper_psi/{index}"] = state.served.group(f"helper/{helper}",
                                                               partial(pool_psi, state.pool, helper))
        return Task(groups=groups, settings={"round_lr": state.lr})

    def train_expects(self, state: FedMatchState) -> dict[str, GroupLayout]:
        """psi, with labels at silos sigma as well, written over what the silo was sent."""
        names = ("sigma", "psi") if self._at_silo else ("psi",)
        return {name: GroupLayout(Meaning.OVERWRITE, FROM_TASK, tensors.specs(state.psi)) for name in names}

    def train_begin(self, state: FedMatchState, headers: tuple[UpdateHeader, ...], *, round: int) -> FedMatchTally:
        """Weights, where they do not depend on scores. Those of psi and sigma are of other silos, so a silo that is
        within its share of all may be far above it of those that have labels."""
        silos = [header.silo for header in headers]
        participation = counted(state.participation, silos)
        rule, tally = self._settings.aggregation, FedMatchTally(round=round, weights={}, participation=participation)
        if rule == "reliability":
            return tally
        limits = weight_limits(self._environment)
        weights = weights_of(rule, silos, [header.num_examples for header in headers], participation, **limits)
        psi, sigma = (_capped_among([header.silo for header in headers if counts(header)], weights, limits)
                      for counts in (self._has_unlabelled, self._has_labelled))
        return replace(tally, weights=psi, sigma_weights=sigma)

    def leave(self, phase: Phase, tally: FedMatchTally | StatisticsTally, silos: tuple[str, ...]
              ) -> FedMatchTally | StatisticsTally:
        """Their psi is nobody's helper any more; they may come back and answer anew."""
        return replace(tally, gone=sorted(silos)) if isinstance(tally, FedMatchTally) else tally

    def train_fold(self, state: FedMatchState, tally: FedMatchTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: FedMatchShadow | None
                   ) -> tuple[FedMatchTally, FedMatchShadow | None]:
        """Scores or embeds one silo, adds its differences to the sums, and keeps what it holds as its shadow."""
        received, silo, at_silo = self._downlink.received(state, kept), header.silo, self._at_silo
        psi = dict(groups["psi"].tensors)
        sigma = dict(groups["sigma"].tensors if at_silo else received.sigma)
        tally = self._compared(state, tally, silo, theta(sigma if at_silo else state.sigma, psi))
        by_score = self._settings.aggregation == "reliability"
        if self._has_unlabelled(header):
            mean = WeightedMean(tally.psi_total, tally.psi_weight, tally.psi_count).plus(
                tensors.subtract(psi, state.psi), tally.scores[silo] if by_score else tally.weights[silo])
            tally = replace(tally, psi_total=mean.total, psi_weight=mean.weight, psi_count=mean.count)
        if self._has_labelled(header):
            mean = WeightedMean(tally.sigma_total, tally.sigma_weight, tally.sigma_count).plus(
                tensors.subtract(sigma, state.sigma), tally.scores[silo] if by_score else tally.sigma_weights[silo])
            tally = replace(tally, sigma_total=mean.total, sigma_weight=mean.weight, sigma_count=mean.count)
        size = num_elements(state.psi)
        helpers = self._helpers_of(state, silo, round=tally.round)
        up = _changed(psi, received.psi) + (_changed(sigma, received.sigma) if at_silo else 0)
        tally = replace(
            tally, folded=[*tally.folded, silo], pool=self._pool_with(tally, silo, psi),
            c2s_percent=tally.c2s_percent + comm_cost(size, up),
            s2c_percent=tally.s2c_percent + comm_cost(size, received.values_sent, *(
                nonzero_count(pool_psi(state.pool, helper)) for helper in helpers)))
        return tally, FedMatchShadow(sigma=sigma, psi=psi)

    def _has_unlabelled(self, header: UpdateHeader) -> bool:
        """Whether the silo's psi counts."""
        return not self._at_silo or header.metrics.get("num_unlabelled", 0) >= 1

    def _has_labelled(self, header: UpdateHeader) -> bool:
        """Whether the silo's sigma counts."""
        return self._at_silo and header.metrics.get(NUM_LABELLED, 0) >= 1

    def train_finish(self, state: FedMatchState, tally: FedMatchTally, *, round: int) -> FedMatchState:
        """The means, then sigma's pass over the labels; where no silo measures, validation loss and learning rate too.

        Without an accepted update psi stays, and sigma learns all the same: silos that abstain while they are not
        confident about any image would never become so if nothing was learnt meanwhile. Where the coordinator trains
        nothing, nothing changes then but the number of the round.
        """
        if tally.folded:
            averaged = self._averaged(state, tally)
        elif self._settings.coordinator_epochs:
            averaged = replace(state, round=round, pool=_without(state.pool, tally.gone), unjudged=True, numbers={})
        else:
            return replace(state, round=round, pool=_without(state.pool, tally.gone), numbers={"lr": state.lr})
        del state, tally  # what silos were sent of the state goes with it
        after = self._prepared(averaged, round=round)
        asks_silos = STATISTICS in self._statistics.phases(TRAIN, round=round)
        return after if asks_silos else self._judged(after)

    def measured(self, state: FedMatchState) -> FedMatchState:
        """With validation loss and learning rate."""
        return self._judged(state)

    def model(self, state: FedMatchState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """sigma + threshold(psi) and its statistics."""
        return theta(state.sigma, threshold(state.psi, self._settings.l1_thres)), state.batch_norm

    def local_model(self, state: FedMatchState, groups: Mapping[str, TensorGroup],
                    kept: FedMatchShadow | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """sigma_k + psi_k, with statistics of its own where the coordinator can measure them."""
        sigma = groups["sigma"].tensors if self._at_silo else self._downlink.received(state, kept).sigma
        model_k = theta(sigma, groups["psi"].tensors)
        return model_k, self._statistics_of(model_k, state)

    def diagnostics(self, state: FedMatchState) -> dict[str, float]:
        """"c2s_percent" and "s2c_percent", values sent per silo in percent of theta, by the paper's measure (a silo
        that has lost what it held is sent more); "mean_score", "psi_density", "sigma_loss", "plateau_loss", and the
        "lr" of the next round."""
        return state.numbers

    # Helpers ----------------------------------------------------------------------------------------------------------

    def _helpers_of(self, state: FedMatchState, silo: str, *, round: int) -> tuple[str, ...]:
        """Best or nearest first; nobody in a round without helpers."""
        settings, limit = self._settings, self._settings.helper_max_age_rounds
        if not settings.num_helpers or round % settings.helper_interval:
            return ()
        may = [each for each in pool_silos(state.pool) if not limit or round - state.last_round[each] <= limit]
        if settings.helpers == "reliability":
            return helpers_by_reliability({each: state.scores[each] for each in may}, silo, settings.num_helpers)
        embeddings = {each: state.embeddings[each] for each in {*may, silo} if each in state.embeddings}
        return helpers_by_embedding(embeddings, silo, settings.num_helpers).helpers

    def _pool_with(self, tally: FedMatchTally, silo: str, psi: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This round's candidates, of whom none is without a finite answer; by reliability out of the last round the
        H + 1 best so far."""
        settings = self._settings
        if not settings.num_helpers or silo in tally.without_answer:
            return tally.pool
        pool = pool_with(tally.pool, silo, threshold(psi, settings.l1_thres))
        if settings.helpers == "reliability" and settings.helper_pool == "last_round":
            best = helpers_by_reliability({each: tally.scores[each] for each in pool_silos(pool)}, "",
                                          settings.num_helpers + 1)
            pool = pool_keeping(pool, sorted(best, key=str.encode))
        return pool

    def _compared(self, state: FedMatchState, tally: FedMatchTally, silo: str,
                  model_k: Mapping[str, Tensor]) -> FedMatchTally:
        """The tally with the silo's score and embedding, as far as the settings need them."""
        if not (self._scores or self._embeds):
            return tally
        finite = True
        try:
            statistics = self._statistics_of(model_k, state)
        except BadPayload:  # what its layers give on the coordinator's images overflows
            statistics, finite = {}, False
        if self._scores:
            score = 0.0
            if finite:
                found = measured_on_validation(self._environment, model_k, statistics)
                # Where logits are not finite all predictions are one class: some accuracy, but no reliability.
                score, finite = (found.accuracy, True) if math.isfinite(found.loss) else (0.0, False)
            tally = replace(tally, scores={**tally.scores, silo: score})
        if self._embeds and finite:
            embedding = embedding_of(self._environment, model_k, statistics)
            finite = all(map(math.isfinite, embedding))
            if finite:
                tally = replace(tally, embeddings={**tally.embeddings, silo: embedding})
        if not finite:
            _LOG.warning("the model of silo %s gives no finite answer: its score is 0, and it helps nobody", silo)
            tally = replace(tally, without_answer=[*tally.without_answer, silo])
        return tally

    def _statistics_of(self, model_k: Mapping[str, Tensor], state: FedMatchState) -> dict[str, Tensor]:
        """Batch-norm statistics measured with a silo's weights on the coordinator's images: those of the global model
        do not fit a model that has moved. Where only silos measure, what the silo was sent.

        Raises: BadPayload where they are not finite.
        """
        if not self._statistics.needed:
            return {}
        own = self._statistics.own(network_with(self._environment, model_k, {}), round=state.round)
        return self._statistics.used(own) if own else state.batch_norm

    # The end of a round -----------------------------------------------------------------------------------------------

    def _averaged(self, state: FedMatchState, tally: FedMatchTally) -> FedMatchState:
        """psi and sigma plus the mean differences, and what is known of the silos."""
        psi_mean = WeightedMean(tally.psi_total, tally.psi_weight, tally.psi_count).mean()
        sigma_mean = WeightedMean(tally.sigma_total, tally.sigma_weight, tally.sigma_count).mean()
        psi = state.psi if psi_mean is None else tensors.add(state.psi, psi_mean)
        sigma = state.sigma if sigma_mean is None else tensors.add(state.sigma, sigma_mean)
        check_finite({**psi, **{f"sigma/{name}": tensor for name, tensor in sigma.items()}},
                     where=f"in the mean over silos of round {tally.round}")
        last_round = {**state.last_round, **dict.fromkeys(tally.folded, tally.round)}
        folded = set(tally.folded)
        embeddings = {silo: vector for silo, vector in state.embeddings.items() if silo not in folded}
        count, limit = len(tally.folded), self._settings.helper_max_age_rounds
        numbers = {"c2s_percent": tally.c2s_percent / count, "s2c_percent": tally.s2c_percent / count}
        if tally.scores:
            numbers["mean_score"] = sum(tally.scores.values()) / count
        pool = tally.pool
        if self._settings.helper_pool == "all":
            # One that is too old now is chosen never again, unless it answers and comes anew.
            pool = pool_joined(pool_keeping(state.pool, [
                silo for silo in pool_silos(state.pool)
                if silo not in folded and not (limit and tally.round + 1 - last_round[silo] > limit)]), pool)
        return replace(
            state, round=tally.round, sigma=sigma, psi=psi, pool=_without(pool, tally.gone),
            scores={**state.scores, **tally.scores},
            embeddings={**embeddings, **tally.embeddings}, last_round=last_round, participation=tally.participation,
            unjudged=True, numbers=numbers)

    def _prepared(self, state: FedMatchState, *, round: int) -> FedMatchState:
        """Trains sigma where the coordinator has labels, and measures batch-norm statistics."""
        settings, environment = self._settings, self._environment
        numbers = dict(state.numbers)
        if settings.coordinator_epochs:
            assert self._labelled is not None
            found = train_sigma(environment, settings, self._labelled, sigma=state.sigma, psi=state.psi,
                                momentum=state.sigma_buf, lr=state.lr, round=round)
            state = replace(state, sigma=found.sigma, sigma_buf=found.momentum if settings.momentum else None)
            numbers["sigma_loss"] = found.loss
        numbers["psi_density"] = density(threshold(state.psi, settings.l1_thres))
        own: dict[str, Tensor] = {}
        if self._statistics.needed:
            own = self._statistics.own(
                network_with(environment, self.model(state)[0], {}), round=round, report_from=0.9)
        return replace(state, own_statistics=own, numbers=numbers,
                       batch_norm=self._statistics.used(own) if own else state.batch_norm)

    def _judged(self, state: FedMatchState) -> FedMatchState:
        """The plateau rule, once for every new model; not before somebody has measured the statistics that it needs."""
        if not state.unjudged or (self._judges and self._statistics.needed and not state.batch_norm):
            return state
        settings = self._settings
        plateau = Plateau(lr=state.lr, best=state.best_loss, left=state.patience_left)
        numbers = dict(state.numbers)
        if self._judges:
            loss = measured_on_validation(self._environment, *self.model(state)).loss
            plateau = plateau_lr(plateau, loss, factor=settings.plateau_factor, patience=settings.plateau_patience)
            if math.isfinite(loss):
                numbers["plateau_loss"] = loss
        return replace(state, lr=plateau.lr, best_loss=plateau.best, patience_left=plateau.left, unjudged=False,
                       numbers={**numbers, "lr": plateau.lr})


def _capped_among(silos: Sequence[str], weights: Mapping[str, float], limits: WeightLimits) -> dict[str, float]:
    """The weights, those of some silos cut so that none of these has more than its share of them; the very same numbers
    where none has."""
    return {**weights, **dict(zip(silos, capped_weights([weights[silo] for silo in silos], **limits), strict=True))}


def _without(pool: dict[str, Tensor], silos: Sequence[str]) -> dict[str, Tensor]:
    """The pool of helpers without some silos; the same object where none of them is in it."""
    there = pool_silos(pool)
    return pool_keeping(pool, [silo for silo in there if silo not in silos]) if set(there) & set(silos) else pool


def _changed(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> int:
    """Elements that were sent: those that differ from what the silo had received."""
    return sum(int((after[name] != before[name]).sum()) for name in after)
