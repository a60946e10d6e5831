"""A tiny study for every method and each of its scenarios, for tests of the contract; a method without one fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semisilo.common.methods import Scenario

__all__ = ["STUDIES", "MethodStudy"]

AT_COORDINATOR: Scenario = "labels-at-coordinator"
AT_SILO: Scenario = "labels-at-silo"
AT_BOTH: Scenario = "labels-at-both"


@dataclass(frozen=True, eq=False)
class MethodStudy:
    """Settings under which a method learns something in two rounds on a handful of images."""

    method: str
    scenario: Scenario
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Besides the scenario."""
    note: str = ""
    """What is special about it."""
    quiet: Mapping[str, Any] = field(default_factory=dict)
    """Settings under which the coordinator learns nothing by itself, where the method has it learn in a round without
    updates as well: then such a round must leave the model as it is."""
    has_statistics: bool = True
    """Whether the method measures batch-norm statistics; the study's own model of a network with such layers is
    otherwise of no use, and not evaluated."""

    def __str__(self) -> str:
        return "-".join(part for part in (self.method, self.scenario.removeprefix("labels-"), self.note) if part)


_BATCHES = {"labelled_batch": 6, "unlabelled_batch": 9}
_ALL_COUNT = {"confidence_threshold": 0.0}
_OBJECTIVE = {**_BATCHES, "lr": 0.05}
_SEMIFL = {**_BATCHES, **_ALL_COUNT, "local_epochs": 1, "coordinator_epochs": 1, "lr": 0.05}
_FEDMATCH = {**_BATCHES, **_ALL_COUNT, "lr": 0.01, "delta_thres": 1e-4}
_FEDMIX = {**_BATCHES, **_ALL_COUNT, "lr": 0.01}
_FEDRGD = {**_BATCHES, **_ALL_COUNT, "warmup_rounds": 0}
_SHVR = {**_BATCHES, "local_epochs": 1, "lr": 0.05, "alpha0_ramp": "none"}
_QUIET = {"coordinator_epochs": 0}
_STILL = {"lr": 1e-60}
"""FedAvg and its kin train at least one epoch; of so small a learning rate nothing is left in float32."""
_UNMIXED = {**_QUIET, "mix_alpha": 1.0, "mix_beta": 0.0, "mix_gamma": 0.0}
"""FedMix mixes in such rounds as well (fedmix.md section 5); here only what came from silos, which is nothing new."""

STUDIES: tuple[MethodStudy, ...] = (
    MethodStudy("self_training", AT_COORDINATOR, {**_BATCHES, **_ALL_COUNT, "warm_up_steps": 3, "coordinator_steps": 2,
                                                  "local_epochs": 1, "lr": 0.05}, quiet={"coordinator_steps": 0}),
    MethodStudy("self_training", AT_SILO, {**_BATCHES, **_ALL_COUNT, "warm_up_rounds": 1, "labelled_steps": 2,
                                           "local_epochs": 1, "lr": 0.05}),
    MethodStudy("self_training", AT_BOTH, {**_BATCHES, **_ALL_COUNT, "warm_up_steps": 3, "coordinator_steps": 2,
                                           "labelled_steps": 2, "local_epochs": 1, "lr": 0.05},
                quiet={"coordinator_steps": 0}),
    MethodStudy("semifl", AT_COORDINATOR, _SEMIFL, quiet=_QUIET),
    MethodStudy("semifl", AT_COORDINATOR, {**_SEMIFL, "sbn_source": "coordinator+silos"}, "statistics of silos",
                quiet=_QUIET),
    MethodStudy("fedmatch", AT_COORDINATOR, _FEDMATCH, quiet=_QUIET),
    MethodStudy("fedmatch", AT_COORDINATOR, {**_FEDMATCH, "preset": "paper_v3", "helper_interval": 1,
                                             "keep_helpers": True, "sbn_source": "silos"}, "v3", quiet=_QUIET),
    MethodStudy("fedmatch", AT_SILO, {**_FEDMATCH, "sbn_source": "silos"}),
    MethodStudy("fedmatch", AT_SILO, {**_FEDMATCH, "preset": "paper_v3", "helper_interval": 2, "l1_update": "proximal",
                                      "aggregation": "fedfreq"}, "v3"),
    MethodStudy("fedmix", AT_COORDINATOR, _FEDMIX, quiet=_UNMIXED),
    MethodStudy("fedmix", AT_COORDINATOR, {**_FEDMIX, "sbn_source": "coordinator+silos", "schedule": "plateau",
                                           "l1_thres": 1e-5, "delta_thres": 1e-4}, "sparse", quiet=_UNMIXED),
    MethodStudy("fedavg", AT_SILO, {"labelled_batch": 6, "lr": 0.05}),
    MethodStudy("fedavg", AT_SILO, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch", "momentum": 0.9,
                                    "persist_local_momentum": True, "weighting": "fedfreq"}, "fixmatch"),
    MethodStudy("fedavg", AT_SILO, {**_OBJECTIVE, **_ALL_COUNT, "objective": "uda", "sbn_source": "silos"}, "uda"),
    MethodStudy("fedavg", AT_SILO, {**_OBJECTIVE, "objective": "pseudo_label", "steps_rule": "fed_shvr"}, "pseudo"),
    MethodStudy("fedavg", AT_SILO, {**_OBJECTIVE, "objective": "mean_teacher", "teacher": "local"}, "teacher"),
    MethodStudy("fedavg", AT_COORDINATOR, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch",
                                           "global_momentum": 0.5}, quiet=_STILL),
    MethodStudy("fedprox", AT_SILO, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch", "mu": 0.5}),
    MethodStudy("fedprox", AT_COORDINATOR, {**_OBJECTIVE, **_ALL_COUNT, "objective": "uda", "mu": 0.5}, quiet=_STILL),
    MethodStudy("fednova", AT_SILO, {**_OBJECTIVE, "objective": "pseudo_label", "momentum": 0.9}),
    MethodStudy("fednova", AT_COORDINATOR, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch"}, quiet=_STILL),
    MethodStudy("scaffold", AT_SILO, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch", "lambda_s": 1.0}),
    MethodStudy("scaffold", AT_SILO, {**_OBJECTIVE, "objective": "mean_teacher", "teacher": "local",
                                      "steps_rule": "fed_shvr", "sbn_source": "silos"}, "teacher"),
    MethodStudy("scaffold", AT_COORDINATOR, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch", "eta_g": 0.5},
                quiet=_STILL),
    MethodStudy("local", AT_SILO, {**_OBJECTIVE, **_ALL_COUNT, "objective": "fixmatch", "momentum": 0.9},
                has_statistics=False),
    MethodStudy("fedrgd", AT_COORDINATOR, _FEDRGD),
    MethodStudy("fedrgd", AT_COORDINATOR, {**_FEDRGD, "mode": "semifl_variant", "persist_local_momentum": True,
                                           "sbn_source": "coordinator+silos"}, "semifl variant"),
    MethodStudy("fedsgd", AT_COORDINATOR, {**_BATCHES, **_ALL_COUNT}),
    MethodStudy("fedsgd", AT_SILO, {**_BATCHES, **_ALL_COUNT, "objective": "uda", "sbn_source": "silos"}),
    MethodStudy("fed_shvr", AT_SILO, _SHVR),
    MethodStudy("fed_shvr", AT_SILO, {**_SHVR, "correction_at": "coordinator", "correction_max_age_rounds": 1,
                                      "sbn_source": "silos"}, "kept at the coordinator"),
    MethodStudy("fed_shvr", AT_SILO, {**_SHVR, "variant": "fed_sh"}, "fed_sh"),
    MethodStudy("fed_shvr", AT_SILO, {**_SHVR, "variant": "fed_svr"}, "fed_svr"),
)
