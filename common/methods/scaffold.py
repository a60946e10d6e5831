"""SCAFFOLD: FedAvg whose silos take off their gradients what these have over the mean of all silos.

A silo adds c - c_k to every gradient: c_k is its mean gradient in the last round that it took part in, c their mean
over all silos, with 0 for one that has not taken part yet. So many local steps do not pull the silos apart. Local
objectives and scenarios are those of fedavg. A silo keeps c_k; where it loses it, all silos go one round without.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from semisilo.common.methods.fedavg import FEDAVG, FedAvgSettings
from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.spec import at_least, positive

__all__ = ["SCAFFOLD", "ScaffoldSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaffoldSettings(FedAvgSettings):
    """Settings of SCAFFOLD, those of FedAvg among them. Silos descend without momentum and clipping: a control variate
    is the mean of the gradients, which these would hide.

    Source: Karimireddy et al., ICML 2020, Algorithm 1 with option II; baselines.md section 2.
    """

    eta_g: float = 1.0
    """Global learning rate: what the mean difference is multiplied by."""
    weighting: Literal["uniform"] = "uniform"
    """Weights of accepted updates: equal, as the mean of the control variates has them."""
    correction_epoch: int = 0
    """Number of the sum of control variates that the task belongs to; set by the strategy, never by a person."""
    correction_round: int = 0
    """The round whose control variate of this silo is in that sum, 0 for none; set by the strategy, never by a
    person."""

    @property
    def needs_exact_updates(self) -> bool:
        """A silo must keep the control variate that the coordinator computes from its update, or the sum drifts."""
        return True

    def __post_init__(self) -> None:
        FedAvgSettings.__post_init__(self)
        for name in ("eta_g", "lr"):
            positive(name, getattr(self, name))
        for name in ("correction_epoch", "correction_round"):
            at_least(name, getattr(self, name), 0)
        for name in ("momentum", "clip_norm"):
            if getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)}: SCAFFOLD's control variates are means of gradients, "
                                 f"which {name} would hide. Leave it out.")


SCAFFOLD = replace(
    FEDAVG, name="scaffold", settings=ScaffoldSettings, summed=False, robust_rules=(), dp_units=(),
    source="Karimireddy et al., SCAFFOLD, ICML 2020",
    down={**FEDAVG.down, "correction": Meaning.VALUES}, metrics=(*FEDAVG.metrics, "correction_lost"), counts=("steps",),
    set_by_strategy=(*FEDAVG.set_by_strategy, "correction_epoch", "correction_round"),
    discloses=FEDAVG.discloses + " It also receives the mean of the last mean gradients of all silos that have taken "
              "part (group correction); where there are only two, each can work out the other's. The coordinator can "
              "work out a silo's mean gradient from its differences.")
