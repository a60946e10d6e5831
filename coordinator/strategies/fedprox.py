"""FedProx at the coordinator: FedAvg's half. What is different happens at the silos; the mean is uniform by default.

Source: Li et al., MLSys 2020; the uniform mean is FedMatch's reading of it.
"""

from __future__ import annotations

from semisilo.coordinator.strategies.fedavg import FedAvgStrategy

__all__ = ["FedProxStrategy"]


class FedProxStrategy(FedAvgStrategy):
    """The coordinator half of FedProx."""
