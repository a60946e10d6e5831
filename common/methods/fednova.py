"""FedNova: FedAvg whose silos count by the mean of their gradients, not by how far these led.

Silos that take more steps move further, so a plain average leans towards them. Here each difference is divided by its
silo's number of steps and all are multiplied by the mean number. Local objectives and scenarios are those of fedavg.
With the objective of Fed-SHVR it is fed_shvr's variant fed_sh.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from semisilo.common.methods.fedavg import FEDAVG, FedAvgSettings
from semisilo.common.methods.parts.secure_sum import STEPS

__all__ = ["FEDNOVA", "FedNovaSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FedNovaSettings(FedAvgSettings):
    """Settings of FedNova: those of FedAvg. Source: Wang et al., NeurIPS 2020; baselines.md section 2."""

    def __post_init__(self) -> None:
        FedAvgSettings.__post_init__(self)
        if self.nesterov:
            raise ValueError("nesterov = true: FedNova's number of steps is known for plain momentum only.")
        if self.persist_local_momentum:
            raise ValueError("persist_local_momentum = true: FedNova's number of steps is known only for momentum that "
                             "starts anew in every round.")

    @property
    def sum_totals(self) -> tuple[str, ...]:
        """See `semisilo.common.methods.parts.secure_sum.totals_of`."""
        return (STEPS,)

    @property
    def sums_per_step(self) -> bool:
        """See `semisilo.common.methods.parts.secure_sum.sums_per_step`."""
        return True


FEDNOVA = replace(FEDAVG, name="fednova", dp_units=("example",), settings=FedNovaSettings,
                  counts=("steps",),
                  source="Wang et al., FedNova, NeurIPS 2020; as Fed-SHVR (Wang et al., 2021) compares")
