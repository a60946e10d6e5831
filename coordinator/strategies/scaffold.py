"""SCAFFOLD at the coordinator: FedAvg's half, and the mean of the control variates that corrections are made of.

    w + (eta_g / m) sum (w_k - w)          c = (1 / K) sum c_k          c_k' - c_k = Delta_k - c

m silos took part; K is the number of silos in the study, of which those that have not taken part yet count with
c_k = 0. The change of c_k follows from the difference w_k - w alone (Delta_k = (w - w_k) / (lr tau_k)), so nothing but
the model goes up. Symbols are those of `common.normalised_averaging`.

What the coordinator cannot do is to take out a c_k that its silo has lost. Then it raises `correction_epoch`, all
control variates are 0 again, and one round goes without correction (ours; the paper's silos lose nothing).

Source: SCAFFOLD, Karimireddy et al. (ICML 2020), Algorithm 1 with option II.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from torch import Tensor

from common import tensors
from common.exchange import Environment, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.methods.scaffold import ScaffoldSettings
from common.normalised_averaging import control_increment, mean_gradient
from coordinator.static_statistics import STATISTICS, StatisticsTally
from coordinator.strategies.fedavg import FedAvgState, FedAvgStrategy, FedAvgTally

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


@dataclass(frozen=True, kw_only=True)
class ScaffoldTally(FedAvgTally):
    """The training phase being folded; weights sum to eta_g."""

    round: int = 0
    c_sum: dict[str, Tensor] | None = None
    members: dict[str, int] = field(default_factory=dict)
    renew: str = ""
    """Why the sum must be begun anew; empty when it need not."""


class ScaffoldStrategy(FedAvgStrategy):
    """The coordinator half of SCAFFOLD."""

    State = ScaffoldState
    Tally = ScaffoldTally

    def __init__(self, settings: ScaffoldSettings, environment: Environment) -> None:
        super().__init__(settings, environment)
        self._eta_g = settings.eta_g
        self._sent_control: tuple[ScaffoldState, TensorGroup] | None = None

    def start(self, initial: Mapping[str, Tensor]) -> ScaffoldState:
        """As FedAvg's, with all control variates 0."""
        state = super().start(initial)
        return ScaffoldState(**{each.name: getattr(state, each.name) for each in fields(state)})

    def task(self, state: FedAvgState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """As FedAvg's; for training also c once there is one, and which c_k of the silo is in it."""
        assert isinstance(state, ScaffoldState)
        task = super().task(state, phase, silo, kept, round=round)
        if phase.name == STATISTICS.name:
            return task
        control = self._control(state)
        groups = dict(task.groups) if control is None else {**task.groups, "correction": control}
        return replace(task, groups=groups, settings={**task.settings, "correction_epoch": state.correction_epoch,
                                                      "correction_round": state.members.get(silo, 0)})

    def begin(self, state: FedAvgState, phase: Phase, headers: tuple[UpdateHeader, ...], *,
              round: int) -> FedAvgTally | StatisticsTally:
        """As FedAvg's, with weights eta_g / m; also whether the sum of control variates can go on."""
        assert isinstance(state, ScaffoldState)
        tally = super().begin(state, phase, headers, round=round)
        if isinstance(tally, StatisticsTally):
            return tally
        lost = [header.silo for header in headers
                if header.silo in state.members and header.metrics.get("correction_lost", 0.0) > 0]
        return ScaffoldTally(
            weights={silo: self._eta_g * weight for silo, weight in tally.weights.items()},
            participation=tally.participation, round=round, c_sum=state.c_sum, members=state.members,
            renew=f"silo {lost[0]} has lost its control variate" if lost else "")

    def fold(self, state: FedAvgState, tally: FedAvgTally | StatisticsTally, header: UpdateHeader,
             groups: Mapping[str, TensorGroup], kept: SiloState) -> tuple[FedAvgTally | StatisticsTally, SiloState]:
        """As FedAvg's; adds c_k' - c_k = Delta_k - c to the sum, for a newcomer with c_k = 0 as well."""
        tally, kept = super().fold(state, tally, header, groups, kept)
        if not isinstance(tally, ScaffoldTally) or tally.renew:
            return tally, kept
        assert isinstance(state, ScaffoldState)
        followed = mean_gradient(groups["model"].tensors, lr=self._lr(tally.round), steps=int(header.metrics["steps"]))
        control = self._control(state)
        increment = control_increment(followed, None if control is None else control.tensors)
        c_sum = increment if tally.c_sum is None else tensors.add(tally.c_sum, increment)
        return replace(tally, c_sum=c_sum, members={**tally.members, header.silo: tally.round}), kept

    def finish(self, state: FedAvgState, phase: Phase, tally: FedAvgTally | StatisticsTally, *,
               round: int) -> FedAvgState:
        """As FedAvg's, with the new sum. Without an update all stays as it was."""
        after = super().finish(state, phase, tally, round=round)
        if not isinstance(tally, ScaffoldTally) or tally.delta is None:
            return after
        assert isinstance(after, ScaffoldState)
        self._sent_control = None
        if tally.renew:
            _LOG.warning("round %d: %s; all control variates are 0 again, and the next round goes without correction",
                         round, tally.renew)
            return replace(after, c_sum=None, members={}, correction_epoch=after.correction_epoch + 1)
        return replace(after, c_sum=tally.c_sum, members=tally.members)

    def diagnostics(self, state: FedAvgState) -> dict[str, float]:
        """As FedAvg's; of the correction its epoch, how many silos are in it, and the norm of c, which tends to 0 as
        the model becomes stationary."""
        assert isinstance(state, ScaffoldState)
        control = self._control(state)
        return {**super().diagnostics(state), "correction_epoch": float(state.correction_epoch),
                "correction_silos": float(len(state.members)),
                "correction_norm": 0.0 if control is None else tensors.norm(control.tensors)}

    def _control(self, state: ScaffoldState) -> TensorGroup | None:
        """c in the type in which it is sent: everything goes on from what the silos got. None while it is 0.

        K grows with silos that come in addition to those that the study began with.
        """
        if state.c_sum is None:
            return None
        if self._sent_control is None or self._sent_control[0] is not state:
            count = max(self._environment.num_silos, len(state.members))
            self._sent_control = state, TensorGroup({name: (tensor / count).to(state.w[name].dtype)
                                                     for name, tensor in state.c_sum.items()})
        return self._sent_control[1]
