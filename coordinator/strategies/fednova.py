"""FedNova at the coordinator: FedAvg's half with normalised averaging.

Source: Wang et al., NeurIPS 2020.
"""

from __future__ import annotations

import math
from dataclasses import replace

from semisilo.common.learning.averaging.normalised import effective_steps, normalised_factors
from semisilo.common.methods.contract import UpdateHeader, Updates
from semisilo.common.methods.parts.secure_sum import STEPS
from semisilo.coordinator.strategies.fedavg import FedAvgState, FedAvgStrategy
from semisilo.coordinator.strategies.parts.averaging import AverageTally
from semisilo.coordinator.strategies.parts.step_cap import counted_steps

__all__ = ["FedNovaStrategy"]


class FedNovaStrategy(FedAvgStrategy):
    """The coordinator half of FedNova."""

    def train_begin(self, state: FedAvgState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """As FedAvg's, with p_k tau_eff / tau_k for p_k. tau_eff is what all updates are multiplied by, so no silo has
        much say in it."""
        tally = super().train_begin(state, headers, round=round)
        if not headers:
            return tally
        steps = self._steps(headers)
        factors = normalised_factors([tally.weights[header.silo] for header in headers], steps, counted=counted_steps(
            self._environment.robust, headers, steps, round=round))
        return replace(tally, weights={header.silo: factor for header, factor in zip(headers, factors, strict=True)})

    def stretches(self, tally: AverageTally, updates: Updates) -> list[float]:
        """tau_eff / tau_k: a silo that says it took fewer steps than it did is counted with a longer update."""
        steps = self._steps(updates.headers)
        together = math.fsum(tally.weights[header.silo] * count
                             for header, count in zip(updates.headers, steps, strict=True))
        return [together / count for count in steps]

    def _steps(self, headers: tuple[UpdateHeader, ...]) -> list[float]:
        """tau_k of the metric "steps"; of several silos that were added up their mean, momentum reckoned already."""
        if self._environment.summed:
            return [header.metrics[STEPS] for header in headers]
        return [effective_steps(int(header.metrics["steps"]), momentum=self._settings.momentum) for header in headers]
