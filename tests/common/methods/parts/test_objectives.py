"""Settings of the baselines: what is refused by name, and that they survive their journey."""

from __future__ import annotations

from typing import Any

import pytest

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods import METHODS
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fednova import FedNovaSettings
from semisilo.common.methods.fedprox import FedProxSettings
from semisilo.common.methods.local import LocalSettings
from semisilo.common.methods.parts.imbalance import LABELLED_HINTS
from tests.each_of import each_of

OBJECTIVES = ("sl", "uda", "fixmatch", "pseudo_label", "mean_teacher")


@each_of(("objective", "key", "value"), [
    ("sl", "lambda_u", 2.0), ("sl", "confidence_threshold", 0.9), ("sl", "unlabelled_batch", 50), ("sl", "alpha0", 0.5),
    ("fixmatch", "temperature", 0.5), ("fixmatch", "tsa", "linear"), ("fixmatch", "teacher", "local"),
    ("uda", "ema_decay", 0.9), ("uda", "alpha0_ramp", "none"), ("uda", "label_refresh", "batch"),
    ("pseudo_label", "lambda_s", 1.0), ("pseudo_label", "lambda_u", 2.0), ("pseudo_label", "mask_mean", "kept"),
    ("mean_teacher", "confidence_threshold", 0.9), ("mean_teacher", "label_refresh", "batch"),
    ("mean_teacher", "tsa", "none"),
])
def test_a_setting_that_the_objective_does_not_use_is_refused_by_name(objective: str, key: str, value: Any) -> None:
    with pytest.raises(BadConfiguration, match=f"{key} = .*{objective}"):
        from_dict(FedAvgSettings, {"objective": objective, key: value})
    default = next(field for field in FedAvgSettings.__dataclass_fields__.values() if field.name == key).default
    if default is not None:  # written out as it is anyway, as it stands in a ledger
        from_dict(FedAvgSettings, {"objective": objective, key: default})


@each_of(("settings", "named"), [
    ({"scenario": "labels-at-coordinator"}, "objective = \"sl\""),
    ({"scenario": "labels-at-coordinator", "objective": "uda", "sbn_source": "silos"}, "sbn_source"),
    ({"coordinator_epochs": 2}, "coordinator_epochs"),
    ({"persist_local_momentum": True}, "persist_local_momentum"),
    ({"nesterov": True}, "nesterov"),
    ({"objective": "pseudo_label", "alpha0_ramp": "none", "ramp_epochs": 10}, "ramp_epochs"),
    ({"objective": "fixmatch", "confidence_threshold": 1.5}, "confidence_threshold"),
    ({"objective": "uda", "temperature": 0.0}, "temperature"),
    ({"objective": "mean_teacher", "ema_decay": 1.1}, "ema_decay"),
    ({"lr": -1.0}, "lr"), ({"momentum": 1.0}, "momentum"), ({"local_epochs": 0}, "local_epochs"),
    ({"global_momentum": 1.0}, "global_momentum"),
])
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BadConfiguration, match=named):
        from_dict(FedAvgSettings, settings)


def test_the_threshold_left_out_is_the_objectives_own() -> None:
    assert FedAvgSettings(objective="fixmatch").threshold == 0.85
    assert FedAvgSettings(objective="uda").threshold == 0.8
    assert FedAvgSettings(objective="uda", confidence_threshold=0.0).threshold == 0.0


def test_fedprox_is_fedavg_with_mu_and_equal_weights() -> None:
    assert FedProxSettings().mu == 0.01
    assert (FedProxSettings().weighting, FedAvgSettings().weighting) == ("uniform", "size")
    with pytest.raises(BadConfiguration, match="mu"):
        from_dict(FedProxSettings, {"mu": -1.0})
    with pytest.raises(BadConfiguration, match="lambda_u"):
        from_dict(FedProxSettings, {"lambda_u": 2.0})


def test_fednova_takes_only_momentum_whose_steps_it_can_count() -> None:
    assert from_dict(FedNovaSettings, {"momentum": 0.9}).momentum == 0.9
    for key in ("nesterov", "persist_local_momentum"):
        with pytest.raises(BadConfiguration, match=key):
            from_dict(FedNovaSettings, {"momentum": 0.9, key: True})


def test_local_training_knows_no_coordinator() -> None:
    for key, value in (("scenario", "labels-at-coordinator"), ("weighting", "size"), ("global_momentum", 0.5),
                       ("coordinator_epochs", 1), ("sbn_source", "auto")):
        with pytest.raises(BadConfiguration, match=key):
            from_dict(LocalSettings, {key: value})


@each_of("objective", OBJECTIVES)
@each_of("name", ["fedavg", "fedprox", "fednova", "local"])
def test_settings_survive_ledger_and_task(name: str, objective: str) -> None:
    before = from_dict(METHODS[name].settings, {"objective": objective, "lr": 0.5})
    after = from_dict(METHODS[name].settings, to_dict(before))
    assert canonical_json(after) == canonical_json(before)
    assert after == before


@each_of("name", ["fedavg", "fedprox", "fednova", "local"])
def test_the_strategy_alone_sets_the_learning_rate_of_a_round_and_what_the_labels_say(name: str) -> None:
    assert METHODS[name].set_by_strategy == ("round_lr", *LABELLED_HINTS)
    assert "scenario" in METHODS[name].settings.__dataclass_fields__
