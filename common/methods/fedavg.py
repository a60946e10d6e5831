"""FedAvg with labels and pseudo-labels: any local objective, weighted averaging, server momentum if wanted.

| objective    | a step's loss at a silo                                                                    |
|--------------|--------------------------------------------------------------------------------------------|
| sl           | lambda_s * CE(labelled)                                                                    |
| fixmatch     | lambda_s * CE(labelled) + lambda_u * CE(strong view, confident hard label of the weak one) |
| uda          | lambda_s * annealed CE(labelled) + lambda_u * CE(strong view, sharpened original)          |
| pseudo_label | CE(labelled) + alpha0(t) * CE(unlabelled, hard label)                                      |
| mean_teacher | CE(labelled) + alpha0(t) * squared difference to an averaged teacher                       |

Where all images are labelled, "sl" is the supervised upper bound. FedMatch compares itself with FedAvg-SL, -UDA and
-FixMatch, Fed-SHVR with FedAvg (sl), Fed-Pseudo (pseudo_label) and Fed-MT (mean_teacher).

With labels-at-silo a silo trains on what it has: labelled images, unlabelled ones or both. With labels-at-coordinator
the coordinator trains the labelled term before it sends, silos the unlabelled term alone, and the round's model is
their average, not trained on labels since.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import HINTS_DISCLOSE, LABELLED_HINTS
from semisilo.common.methods.parts.objectives import OBJECTIVE_METRICS, ObjectiveSettings
from semisilo.common.methods.parts.robust import RULES
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    MethodSpec,
    StatisticsSource,
    at_least,
    below_one,
    refuse_unused,
)

__all__ = ["FEDAVG", "FedAvgSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvgSettings(ObjectiveSettings):
    """Settings of FedAvg. Source: McMahan et al., AISTATS 2017; baselines.md sections 2 and 5."""

    weighting: Literal["size", "uniform", "fedfreq"] = "size"
    """Weights of accepted updates: by the silo's images, labelled and not; equal; or less for who came often."""
    global_momentum: float = 0.0
    """Server momentum on the averaged difference; 0.5 makes SemiFL's upper bound of objective "sl"."""
    coordinator_epochs: int = 1
    """With labels-at-coordinator: passes over its labelled images before it sends."""
    sbn_source: StatisticsSource = "auto"
    """Whose images give the static batch-norm statistics; with labels-at-coordinator its own."""
    persist_local_momentum: bool = False
    """Whether a silo keeps its SGD momentum between rounds, as SemiFL's code does."""

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        at_least("coordinator_epochs", self.coordinator_epochs, 1)
        below_one("global_momentum", self.global_momentum)
        if self.scenario == "labels-at-silo":
            refuse_unused(self, "coordinator_epochs", 'scenario = "labels-at-silo"')
        elif self.sbn_source not in ("auto", "coordinator"):
            raise ValueError(f'sbn_source = "{self.sbn_source}": with labels-at-coordinator two models are measured in '
                             'a round, both on the labelled images there. Choose "auto" or "coordinator".')
        if self.momentum == 0:
            refuse_unused(self, "persist_local_momentum", "momentum = 0")


FEDAVG = MethodSpec(
    name="fedavg",
    source="McMahan et al., FedAvg, AISTATS 2017; with UDA, FixMatch, pseudo-labels or mean teacher as FedMatch "
           "(Jeong et al., ICLR 2021) and Fed-SHVR (Wang et al., 2021) compare",
    scenarios=("labels-at-coordinator", "labels-at-silo"),
    down={"model": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, *OBJECTIVE_METRICS),
    settings=FedAvgSettings,
    tasks=("single_label", "multi_label"),
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    robust_rules=RULES,
    summed=True,
    dp_units=("example", "silo"),
    discloses="The coordinator sees a silo's model difference, how many images it has, its losses and, where it makes "
              "pseudo-labels, how many of each class it kept; if silos measure batch-norm statistics also mean, "
              "variance and count at every such layer. A silo sees the averaged model." + HINTS_DISCLOSE,
)
