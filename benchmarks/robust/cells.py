"""The cells of the comparison: how images are dealt, what how many silos do, and the rule that meets them.

Ten silos share scikit-learn's digits; the coordinator has ten labels a class. Small enough that a study takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.robust.attacks import ABSENT, ATTACKS, STATISTICS

__all__ = [
    "METHODS",
    "NETWORK",
    "NOBODY",
    "RULES",
    "SEEDS",
    "SILOS",
    "SPLITS",
    "Cell",
    "attacks_on",
    "cells",
    "digest_of",
    "rules_of",
    "study_of",
]

SILOS = 10
NETWORK = "benchmarks.robust.network:TinyCNN"
SEEDS = (1, 2, 3)
NOBODY = "nobody"
_F = 3
"""What rules are told that must know how many may lie."""

SPLITS: dict[str, dict[str, Any]] = {
    "even": {"name": "iid"},
    "Dirichlet 0.1": {"name": "dirichlet_semifl", "dirichlet": 0.1},
}
RULES: dict[str, dict[str, Any]] = {
    "mean": {"norm_bound": 0.0},
    "bound": {},
    "norm clipping": {"rule": "norm_clipping", "byzantine_silos": _F},
    "median": {"rule": "coordinate_median", "byzantine_silos": _F},
    "trimmed mean": {"rule": "trimmed_mean", "byzantine_silos": _F},
    "geometric median": {"rule": "geometric_median", "byzantine_silos": _F},
    "multi-Krum": {"rule": "multi_krum", "byzantine_silos": _F},
    "FLTrust": {"rule": "fltrust"},
    "judge": {"rule": "judge", "byzantine_silos": _F},
}
"""Table [robust]. "mean" is the plain one; "bound" is the default: the mean with bounds on lengths and on what
statistics do."""
METHODS: dict[str, dict[str, Any]] = {
    "SemiFL": {"name": "semifl", "local_epochs": 2, "unlabelled_batch": 32, "labelled_batch": 32, "mix_weight": 0.0,
               "confidence_threshold": 0.8},
    "FedAvg": {"name": "fedavg", "objective": "sl", "local_epochs": 2, "labelled_batch": 32, "lr": 0.1,
               "momentum": 0.9, "nesterov": True, "lambda_s": 1.0, "schedule": "cosine", "clip_norm": 1.0},
    "self-training": {"name": "self_training"},
}
"""SemiFL and self-training, with its defaults: labels at the coordinator. FedAvg: all images of the silos are labelled,
and the coordinator has as many validation images as it has labels with SemiFL; rules that need labels to learn from are
refused there."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the table."""

    method: str
    split: str
    attack: str
    """One of `ATTACKS`, `STATISTICS`, `ABSENT` or `NOBODY`."""
    attackers: int
    rule: str


def rules_of(method: str) -> tuple[str, ...]:
    """Which rules meet liars there."""
    if method == "self-training":
        return ("mean", "bound", "median", "judge")
    return tuple(rule for rule in RULES if (method, rule) != ("FedAvg", "FLTrust"))


def attacks_on(method: str) -> tuple[str, ...]:
    """What liars do there: with self-training silos measure batch-norm statistics as well."""
    return (*ATTACKS, STATISTICS) if method == "self-training" else ATTACKS


def cells(method: str) -> Iterator[Cell]:
    """All, those first that say most: no silo that gives anything, honest silos, then three liars, one, two."""
    for split in SPLITS:
        yield Cell(method, split, "free rider", SILOS, "mean")
    for attackers in (0, 3, 1, 2):
        for split in SPLITS:
            if attackers:
                yield Cell(method, split, ABSENT, attackers, "mean")
            for attack in attacks_on(method) if attackers else (NOBODY,):
                for rule in rules_of(method):
                    yield Cell(method, split, attack, attackers, rule)


def study_of(cell: Cell, *, seed: int) -> dict[str, Any]:
    """The tables of one study."""
    at_silo = cell.method == "FedAvg"
    robust = RULES[cell.rule]
    if (cell.method, cell.rule) == ("self-training", "mean"):
        robust = {**robust, "statistics_bound": 0.0}
    split = {**SPLITS[cell.split], "silos": SILOS}
    image: dict[str, Any] = {"size": 8, "channels": 1}
    if at_silo:
        split |= {"all_labelled": True, "num_validation": 100}
        image |= {"mean": [0.3], "std": [0.38]}
    else:
        split |= {"num_labelled": 40}
    return {"study": {"rounds": 10, "seed": seed, "labelled_only_baseline": False}, "model": {"name": NETWORK},
            "data": {"image": image, **({} if at_silo else {"validation_share": "0%"})},
            "augmentation": {"policy": "small", "without": ["Invert", "Solarize"]}, "method": METHODS[cell.method],
            "numerics": {"threads": 1}, "robust": robust,
            "simulation": {"data": "digits", "silos_test": False, "split": split}}


def digest_of(study: Mapping[str, Any]) -> str:
    """16 hex digits that change when the study does."""
    return hashlib.sha256(json.dumps(study, sort_keys=True).encode()).hexdigest()[:16]
