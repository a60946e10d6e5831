"""SCAFFOLD at the coordinator: FedAvg's half, and the mean of the control variates that corrections are made of.

    w + (eta_g / m) sum (w_k - w)          c = (1 / K) sum c_k          c_k' - c_k = Delta_k - c

m silos took part; K is the number of silos as the round opens that permit the method and are heard, of which those
that have not taken part yet count with c_k = 0. The change of c_k follows from the difference w_k - w alone
(Delta_k = (w - w_k) / (lr tau_k)), so nothing but the model goes up. Symbols are those of
`semisilo.common.learning.averaging.normalised`.

What the coordinator cannot do is to take out a c_k that its silo has lost, or that of a silo that was set aside. Then
it raises `correction_epoch`, all control variates are 0 again, and one round goes without correction (ours; the paper's
silos lose nothing).

Delta_k is as long as a silo likes: it says tau_k. One that is longer than `norm_bound` medians of the round is
therefore not believed: a newcomer's c_k stays 0, and where the silo has one in the sum that is begun anew.

Source: SCAFFOLD, Karimireddy et al. (ICML 2020), Algorithm 1 with option II.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import control_increment, mean_gradient
from semisilo.common.learning.robust.norms import norm_limit
from semisilo.common.methods.contract import Environment, Phase, Task, TensorGroup, UpdateHeader, Updates
from semisilo.common.methods.scaffold import ScaffoldSettings
from semisilo.common.storage.checkpoint import YOUNGER
from semisilo.coordinator.strategies.batch_norm.statistics import StatisticsTally
from semisilo.coordinator.strategies.fedavg import FedAvgState, FedAvgStrategy
from semisilo.coordinator.strategies.parts.averaging import AverageTally
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.robust import CUT, GONE

__all__ = ["ScaffoldState", "ScaffoldStrategy", "ScaffoldTally"]

_LOG = logging.getLogger("semisilo.coordinator")


@dataclass(frozen=True, kw_only=True)
class ScaffoldState(FedAvgState):
    """Everything that survives a round."""

    c_sum: dict[str, Tensor] | None = None
    """sum c_k over the members, float64; None while there is none."""
    members: dict[str, int] = field(default_factory=dict)
    """By silo whose c_k is in the sum: the round of that c_k."""
    correction_epoch: int = 1
    """Rises when the sum is begun anew."""
    silos: int = field(default=0, metadata=YOUNGER)
    """K, as the round opened; 0 in a round that an earlier version has opened, which took `start_with` for it."""


@dataclass(frozen=True, kw_only=True)
class ScaffoldTally(AverageTally):
    """The training phase being folded; weights sum to eta_g."""

    round: int = 0
    c_sum: dict[str, Tensor] | None = None
    members: dict[str, int] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)
    """Silos whose Delta_k is too long for the sum."""
    renew: str = ""
    """Why the sum must be begun anew; empty when it need not."""


class ScaffoldStrategy(TrainAndMeasure[ScaffoldState, ScaffoldTally, None]):
    """The coordinator half of SCAFFOLD."""

    State = ScaffoldState
    Tally = ScaffoldTally

    def __init__(self, settings: ScaffoldSettings, environment: Environment) -> None:
        """Raises: as `FedAvgStrategy`."""
        self._average = FedAvgStrategy(settings, environment)
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> ScaffoldState:
        """As FedAvg's, with all control variates 0."""
        return self._average.closed(ScaffoldState(round=0, w=dict(initial), batch_norm={}, own_statistics={}), round=0)

    def opened(self, state: ScaffoldState, *, round: int, silos: int) -> ScaffoldState:
        """With K. It stays the same for the whole round, whoever joins meanwhile: what silos are sent and what is made
        of their answers is the same c."""
        return state if state.silos == silos else replace(state, silos=silos)

    def sent_model(self, state: ScaffoldState) -> TensorGroup:
        return self._average.sent_model(state)

    def train_task(self, state: ScaffoldState, silo: str, kept: None, *, round: int) -> Task:
        """As FedAvg's, with c once there is one, and which c_k of the silo is in it."""
        task, control = self._average.train_task(state, silo, kept, round=round), self._control(state)
        groups = dict(task.groups) if control is None else {**task.groups, "correction": control}
        return Task(groups=groups, settings={**task.settings, "correction_epoch": state.correction_epoch,
                                             "correction_round": state.members.get(silo, 0)})

    def train_begin(self, state: ScaffoldState, headers: tuple[UpdateHeader, ...], *, round: int) -> ScaffoldTally:
        """As FedAvg's, with weights eta_g / m; also whether the sum of control variates can go on."""
        tally = self._average.train_begin(state, headers, round=round)
        lost = [header.silo for header in headers
                if header.silo in state.members and header.metrics.get("correction_lost", 0.0) > 0]
        return ScaffoldTally(
            weights={silo: self._settings.eta_g * weight for silo, weight in tally.weights.items()},
            participation=tally.participation, round=round, c_sum=state.c_sum, members=state.members,
            renew=f"silo {lost[0]} has lost its control variate" if lost else "")

    def leave(self, phase: Phase, tally: ScaffoldTally | StatisticsTally, silos: tuple[str, ...]
              ) -> ScaffoldTally | StatisticsTally:
        """The sum is begun anew where a c_k of theirs is in it."""
        if not isinstance(tally, ScaffoldTally) or not (gone := sorted(tally.members.keys() & set(silos))):
            return tally
        return replace(tally, renew=tally.renew or GONE.format(gone[0]))

    def train_appraise(self, state: ScaffoldState, tally: ScaffoldTally, updates: Updates, *,
                       round: int) -> tuple[ScaffoldTally, Mapping[str, float]]:
        """The bound alone, of the differences and of what they come to a step. A silo whose update is shortened keeps a
        c_k that the coordinator does not count so, and therefore the sum is begun anew."""
        after, told = super().train_appraise(state, tally, updates, round=round)
        if after is not tally:
            after = replace(after, renew=tally.renew or CUT)
        apart = self._too_long(updates, round=round)
        if apart:
            lost = sorted(tally.members.keys() & set(apart))
            after = replace(after, apart=apart, renew=after.renew or (
                f"what silo {lost[0]} says of its gradient is not believed" if lost else ""))
        return after, told

    def _too_long(self, updates: Updates, *, round: int) -> list[str]:
        """Silos whose mean gradient, by the steps that they say, is longer than the bound of [robust]."""
        steps = [int(header.metrics["steps"]) for header in updates.headers]
        lengths = [norm / count for norm, count in zip(updates.norms("model"), steps, strict=True)]
        # An honest newcomer with few images has a long one: it follows its own gradient, of which the others have most
        # taken off by then, over fewer steps. Of those that were tried it was up to 18 medians.
        factor = self._environment.robust.length_bound**2
        if not factor or (limit := norm_limit(lengths, factor=factor)) is None:
            return []
        found = [(header.silo, count, length) for header, count, length in zip(updates.headers, steps, lengths,
                                                                               strict=True) if length > limit]
        for silo, count, length in found:
            _LOG.warning("round %d: by the %d steps that silo %s says, its mean gradient is %.1f times as long as the"
                         " median one: no correction is made of it", round, count, silo, length / limit * factor)
        return [silo for silo, _, _ in found]

    def train_fold(self, state: ScaffoldState, tally: ScaffoldTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: None) -> tuple[ScaffoldTally, None]:
        """As FedAvg's; adds c_k' - c_k = Delta_k - c to the sum, for a newcomer with c_k = 0 as well."""
        difference = groups["model"].tensors
        tally = tally.plus(header.silo, difference, like=state.w)
        if tally.renew or header.silo in tally.apart:
            return tally, None
        followed = mean_gradient(difference, lr=self._average.lr(tally.round), steps=int(header.metrics["steps"]))
        control = self._control(state)
        increment = control_increment(followed, None if control is None else control.tensors)
        c_sum = increment if tally.c_sum is None else tensors.add(tally.c_sum, increment)
        return replace(tally, c_sum=c_sum, members={**tally.members, header.silo: tally.round}), None

    def train_finish(self, state: ScaffoldState, tally: ScaffoldTally, *, round: int) -> ScaffoldState:
        """As FedAvg's, with the new sum. Without an update the sum stays as it was."""
        if tally.delta is not None:
            if tally.renew:
                _LOG.warning("round %d: %s; all control variates are 0 again, and the next round has no"
                             " correction", round, tally.renew)
                state = replace(state, c_sum=None, members={}, correction_epoch=state.correction_epoch + 1)
            else:
                state = replace(state, c_sum=tally.c_sum, members=tally.members)
        return self._average.train_finish(state, tally, round=round)

    def model(self, state: ScaffoldState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The averaged model and its statistics."""
        return self._average.model(state)

    def local_model(self, state: ScaffoldState, groups: Mapping[str, TensorGroup],
                    kept: None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A silo's own model, with the statistics that it was sent."""
        return self._average.local_model(state, groups, kept)

    def diagnostics(self, state: ScaffoldState) -> dict[str, float]:
        """As FedAvg's; of the correction its epoch, how many silos are in it, and the norm of c, which tends to 0 as
        the model becomes stationary."""
        control = self._control(state)
        return {**self._average.diagnostics(state), "correction_epoch": float(state.correction_epoch),
                "correction_silos": float(len(state.members)),
                "correction_norm": 0.0 if control is None else tensors.norm(control.tensors)}

    def _control(self, state: ScaffoldState) -> TensorGroup | None:
        """c in the type in which it is sent: everything goes on from what the silos got. None while it is 0.

        A silo may be in the sum and no longer in the federation, until the round that begins the sum anew is over.
        """
        if state.c_sum is None:
            return None
        c_sum, count = state.c_sum, max(state.silos or self._environment.num_silos, len(state.members))
        return state.served.group("correction", lambda: {
            name: (tensor / count).to(state.w[name].dtype) for name, tensor in c_sum.items()}, digest=False)
