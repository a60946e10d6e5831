"""The method `perturb` as both sides know it: spec, settings, and the names of its halves. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods import MethodPlugin, MethodSpec
from semisilo.common.methods.contract import Meaning

__all__ = ["PERTURB", "PerturbSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PerturbSettings:
    """Settings of `perturb`."""

    scenario: Literal["labels-at-coordinator"] = "labels-at-coordinator"
    """No labels are used at all; methods need to name a scenario."""
    density: float = 1.0
    """Share of the elements that a silo changes in a round, at positions of its own. Above 0, at most 1."""
    scale: float = 1e-3
    """Standard deviation of a change, apart from a factor of 0.5 to 1.5 per 2^20 elements."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density = {self.density}: must be above 0 and at most 1.")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale = {self.scale}: must be above 0 and finite.")


PERTURB = MethodPlugin(
    spec=MethodSpec(
        name="perturb",
        source="none: it measures transport",
        scenarios=("labels-at-coordinator",),
        down={"model": Meaning.VALUES},
        up={"model": Meaning.DIFFERENCE},
        metrics=(),
        settings=PerturbSettings,
        discloses="Nothing: what a silo sends is noise.",
    ),
    strategy="semisilo_perturb.strategy:PerturbStrategy",
    trainer="semisilo_perturb.trainer:PerturbTrainer",
)
