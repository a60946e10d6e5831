"""FedNova at the coordinator: FedAvg's half with normalised averaging.

Source: Wang et al., NeurIPS 2020.
"""

from __future__ import annotations

import math
from dataclasses import replace

from semisilo.common.learning.averaging.normalised import normalised_factors
from semisilo.common.methods.contract import UpdateHeader, Updates
from semisilo.coordinator.strategies.fedavg import FedAvgState, FedAvgStrategy
from semisilo.coordinator.strategies.parts.averaging import AverageTally

__all__ = ["FedNovaStrategy", "effective_steps"]


class FedNovaStrategy(FedAvgStrategy):
    """The coordinator half of FedNova."""

    def train_begin(self, state: FedAvgState, headers: tuple[UpdateHeader, ...], *, round: int) -> AverageTally:
        """As FedAvg's, with p_k tau_eff / tau_k for p_k, tau_k of the metric "steps"."""
        tally = super().train_begin(state, headers, round=round)
        if not headers:
            return tally
        steps = [effective_steps(int(header.metrics["steps"]), momentum=self._settings.momentum) for header in headers]
        factors = normalised_factors([tally.weights[header.silo] for header in headers], steps)
        return replace(tally, weights={header.silo: factor for header, factor in zip(headers, factors, strict=True)})

    def stretches(self, tally: AverageTally, updates: Updates) -> list[float]:
        """tau_eff / tau_k: a silo that says it took fewer steps than it did is counted with a longer update."""
        steps = [effective_steps(int(header.metrics["steps"]), momentum=self._settings.momentum)
                 for header in updates.headers]
        together = math.fsum(tally.weights[header.silo] * count
                             for header, count in zip(updates.headers, steps, strict=True))
        return [together / count for count in steps]


def effective_steps(steps: int, *, momentum: float) -> float:
    """||a_k||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho): by how many gradients tau steps with momentum rho
    have moved, starting from no momentum; tau itself for rho = 0.

    With buf = rho buf + g the gradient of step i acts in all later ones: 1 + rho + ... + rho^(tau - i) times.
    Source: FedNova, Wang et al. (NeurIPS 2020) section 4, proximal and momentum variants.
    """
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)
