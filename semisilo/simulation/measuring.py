"""What a simulation measures beyond a federation, where nobody sees the images of all silos: the stationarity gap of
Fed-SHVR, what silos forget of their labelled images, and the loss around a model.

The coordinator's operations with more numbers in their answers. They go into the round's metrics together with its own,
so a simulation that was killed has them as well; no state, task or update depends on them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from semisilo.common.errors import SemisiloError
from semisilo.common.learning.evaluation import evaluate_classes
from semisilo.common.methods.contract import Environment, SiloData, Strategy, TensorGroup, Tensors
from semisilo.common.process.compute import InlineCompute, OnProgress
from semisilo.common.process.messages import Handler, Request
from semisilo.coordinator.compute.evaluation import UpdateObserver, diagnostics_of, measurable
from semisilo.coordinator.compute.messages import Evaluate, Evaluated
from semisilo.coordinator.compute.operations import Operations
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.diagnostics import LossSurface, Problem, labels_of, loss_surface, stationarity_gap, statistics_of
from semisilo.silo.compute.images import SiloImages
from semisilo.simulation.dealing import Dealt

__all__ = ["ForgettingObserver", "MeasuredSurface", "MeasuringCompute", "MeasuringOperations", "Stationarity",
           "silos_of_round"]

AnswerT = TypeVar("AnswerT")

_LOG = logging.getLogger("semisilo.simulation")

SilosOfRound = Callable[[int], Mapping[str, SiloData]]
"""The images of every silo, by its name, in a round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stationarity(Request[Evaluated]):
    """Fed-SHVR's gap after a round, for the objective of that round (alpha_0 of its first local epoch)."""

    state: str
    """Digest of the state after the round."""
    before: str
    """Digest of the state before it."""
    round: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSurface:
    """Fed-SHVR's loss around a model."""

    surface: LossSurface
    alpha0: float
    alpha2: float
    """Weights of the objective."""


class MeasuringOperations(Operations):
    """The coordinator's operations in a process that has the images of all silos."""

    def __init__(self, progress: Callable[[float, str], None], silos: SilosOfRound, *, device: str = "",
                 forgetting: bool = False) -> None:
        super().__init__(progress, device=device)
        self._silos = silos
        self._forgetting = forgetting

    def _observers(self, round: int) -> list[UpdateObserver]:
        found = super()._observers(round)
        if self._forgetting:
            study = self._opened()
            found.append(ForgettingObserver(study.strategy, study.environment, self._silos(round)))
        return found

    def handlers(self) -> tuple[Handler, ...]:
        """See `semisilo.common.process.messages.Operations`."""
        return (*super().handlers(), Stationarity.handled_by(self.stationarity))

    def stationarity(self, request: Stationarity) -> Evaluated:
        """Fed-SHVR's gap after a round; no metrics where a number is not finite or something is missing."""
        try:
            problem, w = self._problem(request.state, request.round)
            w_before = self._opened().strategy.model(self._load(request.before))[0]
            v_before = labels_of(problem, w_before)  # what the silos have trained on in the round
            statistics = statistics_of(problem, w)
            v = labels_of(problem, w, statistics)
            self._progress(0.5, "measuring the stationarity gap")
            found = stationarity_gap(problem, w, v, v_before, statistics)
        except SemisiloError as error:
            _LOG.warning("round %d: no stationarity gap: %s", request.round, error.line())
            return Evaluated(metrics={})
        metrics = {"stationarity_gap": found.gap, "stationarity_gradient": found.gradient,
                   "stationarity_labels": found.labels, "objective": found.objective.total}
        return Evaluated(metrics={name: value for name, value in metrics.items() if math.isfinite(value)})

    def surface(self, state: str, round: int, points: Sequence[float]) -> MeasuredSurface:
        """Fed-SHVR's loss around the model of a state, with the soft labels that it gives.

        Args:
            round: the one that gave the state; its alpha_0 counts.
            points: coordinates along both directions.
        """
        problem, w = self._problem(state, max(round, 1))
        found = loss_surface(problem, w, labels_of(problem, w), b1=points, b2=points,
                             progress=lambda share: self._progress(share, "measuring the loss"))
        return MeasuredSurface(surface=found, alpha0=problem.alpha0, alpha2=problem.alpha2)

    def _problem(self, state: str, round: int) -> tuple[Problem, Tensors]:
        """The objective of a round, and the model of a state."""
        study, now = self._opened(), self._load(state)
        settings, environment = study.config.method.settings, study.environment
        problem = Problem(
            build_model=environment.build_model, silos=self._silos(round), image=environment.image,
            alpha0=diagnostics_of(study.strategy, now)["alpha0"], alpha1=settings.alpha1,
            alpha2=settings.penalty_of_mean, seed=environment.seed, device=environment.device)
        return problem, study.strategy.model(now)[0]


class MeasuringCompute(InlineCompute):
    """The coordinator's compute of a simulation. What the study asks for is measured after each round."""

    def __init__(self, dealt: Dealt, ledger: Ledger, *, device: str) -> None:
        settings = dealt.study.simulation
        self._study = dealt.study.name
        self._ledger = ledger
        self._gap = settings.stationarity_gap
        super().__init__(lambda progress: MeasuringOperations(
            progress, silos_of_round(dealt), device=device, forgetting=settings.forgetting))

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        """See `InlineCompute.call`."""
        answer = await super().call(request, on_progress=on_progress)
        if not (self._gap and isinstance(request, Evaluate) and isinstance(answer, Evaluated)):
            return answer
        row = self._ledger.round(self._study, request.round)
        more = await super().call(Stationarity(state=request.state, before=row.start_digest, round=row.number),
                                  on_progress=on_progress)
        return replace(answer, metrics={**more.metrics, **answer.metrics})


def silos_of_round(dealt: Dealt) -> SilosOfRound:
    """The images of every silo in a round, as its trainer gets them; they are read when they are first asked for."""
    kept: dict[str, SiloImages] = {}

    def of(round: int) -> Mapping[str, SiloData]:
        if not kept:
            kept.update(zip(dealt.silos, dealt.silos_images(), strict=True))
        return {name: images.data(round=round, scenario=dealt.study.scenario) for name, images in kept.items()}

    return of


class ForgettingObserver:
    """The accuracy of a model on a silo's labelled images before and after the silo has trained it.

    Before is the model that the round began with, after is the silo's own as the coordinator decodes it, both with the
    batch-norm statistics that the silo was sent. Source: FedMatch, first version, Figure 5c.
    """

    def __init__(self, strategy: Strategy[Any], environment: Environment, silos: Mapping[str, SiloData]) -> None:
        self._strategy: Any = strategy
        self._environment = environment
        self._silos = silos
        self._found: dict[str, tuple[float, float]] = {}

    def measure(self, silo: str, state: Any, groups: Mapping[str, TensorGroup], kept: Any) -> None:
        """See `UpdateObserver`; nothing for a silo without labels, or an update without a model."""
        labelled = self._silos[silo].labelled
        if labelled is None:
            return
        try:
            own = self._strategy.local_model(state, groups, kept)
        except (SemisiloError, LookupError):  # a phase of statistics
            return
        accuracies = []
        for parameters, statistics in (self._strategy.model(state), own):
            model = measurable(self._environment, parameters, statistics)
            if model is None:
                return
            accuracies.append(evaluate_classes(model, labelled, form=self._environment.image).accuracy)
        self._found[silo] = accuracies[0], accuracies[1]

    def metrics(self) -> dict[str, float]:
        """"labelled_accuracy_before" and "labelled_accuracy_after", means over silos, and "<name>/<silo>" of each."""
        if not self._found:
            return {}
        metrics = {}
        for index, name in enumerate(("labelled_accuracy_before", "labelled_accuracy_after")):
            values = {silo: pair[index] for silo, pair in self._found.items()}
            metrics[name] = math.fsum(values.values()) / len(values)
            metrics |= {f"{name}/{silo}": value for silo, value in values.items()}
        return metrics
