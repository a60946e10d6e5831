"""Which simulated silos can be reached in a round, and which are asked and then do not answer. Pure functions of seeds.

Uneven availability is what FedFreq is for: it gives less weight to silos that took part often.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semisilo.common.learning.seeds import numpy_generator
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_ROUND, StudyState
from semisilo.coordinator.studies.simulation_table import SimulationSettings

__all__ = ["AvailableRoster", "drops_out", "probabilities", "reachable"]


def probabilities(settings: SimulationSettings, num_silos: int, *, seed: int) -> NDArray[np.float64]:
    """The probability with which each silo can be reached in a round, float64 (K,); their mean is `reachable`.

    "skewed": silos in the order that the named seed "availability order" draws get, with r = `reachable` and at
    position i of K, 2 r (i + 1/2) / K; for r above 1/2 it is 1 - 2 (1 - r) (i + 1/2) / K, so that none exceeds 1.
    """
    if settings.availability == "always":
        return np.ones(num_silos)
    if settings.availability == "uniform":
        return np.full(num_silos, settings.reachable)
    position_K = numpy_generator(seed, "availability order").permutation(num_silos)
    ramp_K = 2 * (position_K + 0.5) / num_silos
    r = settings.reachable
    skewed: NDArray[np.float64] = r * ramp_K if r <= 0.5 else 1 - (1 - r) * ramp_K
    return skewed


def reachable(settings: SimulationSettings, silos: Sequence[str], *, seed: int, round: int) -> list[str]:
    """The silos that can be reached in a round, in their order: those whose number u of the named seed "availability"
    and the round is below their probability; if there are none, the one that came nearest (least u / probability)."""
    if settings.availability == "always":
        return list(silos)
    chance_K = probabilities(settings, len(silos), seed=seed)
    drawn_K = numpy_generator(seed, "availability", round=round).random(len(silos))
    there = np.flatnonzero(drawn_K < chance_K)
    if len(there) == 0:
        there = np.array([int(np.argmin(drawn_K / chance_K))])
    return [silos[int(index)] for index in there]


def drops_out(settings: SimulationSettings, silo: str, *, seed: int, round: int) -> bool:
    """Whether a silo does not answer in a round; the same for all phases of it (named seed "dropout", round, silo)."""
    return bool(settings.dropout) and bool(
        numpy_generator(seed, "dropout", round=round, silo=silo).random() < settings.dropout)


class AvailableRoster(LedgerRoster):
    """The roster of a simulation: the members that a round is drawn from are those that can be reached in it."""

    def __init__(self, ledger: Ledger, *, study: str, settings: SimulationSettings, seed: int) -> None:
        super().__init__(ledger)
        self._study = study
        self._settings = settings
        self._seed = seed

    def members(self) -> list[str]:
        """The silos that can be reached in the round that is open, or else in the next one; all before the first."""
        everyone = super().members()
        if self._settings.availability == "always" or self._ledger.study(self._study).state is not StudyState.RUNNING:
            return everyone
        last = self._ledger.last_round(self._study)
        assert last is not None, "a study runs after its round 0"
        number = last.number + 1 if last.state in ENDED_ROUND else last.number
        return reachable(self._settings, everyone, seed=self._seed, round=number)
