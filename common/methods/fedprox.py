"""FedProx: FedAvg whose silos are held near the model that they received.

A silo adds mu (w - w_t) to every gradient. Local objectives and scenarios are those of fedavg.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from semisilo.common.methods.fedavg import FEDAVG, FedAvgSettings
from semisilo.common.methods.spec import at_least

__all__ = ["FEDPROX", "FedProxSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FedProxSettings(FedAvgSettings):
    """Settings of FedProx, those of FedAvg among them. Source: Li et al., MLSys 2020; baselines.md section 2."""

    mu: float = 1e-2
    """Strength of the proximal term mu/2 ||w - w_t||^2; 0 is FedAvg."""
    weighting: Literal["size", "uniform", "fedfreq"] = "uniform"
    """Weights of accepted updates. Equal ones are FedMatch's reading of FedProx."""

    def __post_init__(self) -> None:
        FedAvgSettings.__post_init__(self)
        at_least("mu", self.mu, 0)


FEDPROX = replace(FEDAVG, name="fedprox", settings=FedProxSettings,
                  source="Li et al., FedProx, MLSys 2020; with local objectives as FedMatch (Jeong et al., ICLR 2021) "
                         "compares")
