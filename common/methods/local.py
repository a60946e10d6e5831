"""Local-only training: every silo for itself, on the engine of a study. What a federation has to beat.

A silo starts from the study's initial model, keeps its own from round to round and tells how accurate it is, on its
test set where it has one and on its labelled images. The study's own model stays the initial one. Local objectives are
those of fedavg.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import LABELLED_HINTS
from semisilo.common.methods.parts.objectives import OBJECTIVE_METRICS, ObjectiveSettings
from semisilo.common.methods.spec import PSEUDO_LABEL_METRICS, MethodSpec

__all__ = ["LOCAL", "LocalSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSettings(ObjectiveSettings):
    """Settings of local-only training. Source: FedMatch (Jeong et al.), Table 1, Local-SL, -UDA, -FixMatch."""

    scenario: Literal["labels-at-silo"] = "labels-at-silo"
    """Without labels a silo alone has nothing to learn from."""


LOCAL = MethodSpec(
    name="local",
    source="Local-only training, as FedMatch (Jeong et al., ICLR 2021) compares",
    scenarios=("labels-at-silo",),
    down={"model": Meaning.VALUES},
    up={"steps": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, *OBJECTIVE_METRICS, "local_accuracy", "local_labelled_accuracy"),
    settings=LocalSettings,
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    discloses="The coordinator sees how many images a silo has, how many steps it trained, its losses and accuracies "
              "and, where it makes pseudo-labels, how many of each class it kept. No model leaves a silo; silos see "
              "nothing of each other.",
)
