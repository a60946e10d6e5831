"""FedMatch's settings: presets fill in what a study leaves out, and what travels is always explicit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.fedmatch import FEDMATCH, FedMatchSettings, preset_values
from tests.each_of import each_of

SCENARIOS = ("labels-at-coordinator", "labels-at-silo")

TABLE: dict[str, dict[str, Any]] = {
    "paper_v1": {"lr": 1e-4, "momentum": 0.9, "weight_decay": 0.0, "num_helpers": 2, "lambda_s": 10.0, "lambda_i": 1.0,
                 "lambda_a": 1.0, "lambda_l2": 0.01, "lambda_l1": 0.01, "labelled_batch": 10, "unlabelled_batch": 50,
                 "local_epochs": 1, "confidence_threshold": 0.75, "aggregation": "reliability",
                 "helpers": "reliability", "helper_interval": 1, "helper_pool": "last_round", "icc": "sum",
                 "augment_train": True, "plateau_patience": 3, "plateau_factor": 3.0, "tie_break": "lowest_index",
                 "l1_thres": 0.0, "delta_thres": 0.0, "icc_images": "kept"},
    "paper_v3": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "num_helpers": 2, "lambda_s": 10.0,
                 "lambda_i": 1e-2, "lambda_a": 1e-2, "lambda_l2": 10.0, "unlabelled_batch": 100, "local_epochs": 1,
                 "confidence_threshold": 0.85, "aggregation": "uniform", "helpers": "similarity",
                 "helper_interval": 10, "keep_helpers": False, "icc": "mean", "augment_train": False,
                 "plateau_factor": 3.0, "tie_break": "lowest_index"},
}
"""Section 8 of the specification and its table of parts; what depends on the scenario stands below."""


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("preset", TABLE)
def test_a_preset_has_the_published_values(preset: Any, scenario: Any) -> None:
    settings = FedMatchSettings(preset=preset, scenario=scenario)
    assert {name: getattr(settings, name) for name in TABLE[preset]} == TABLE[preset]


def test_v3_differs_between_the_scenarios() -> None:
    coordinator, silo = (FedMatchSettings(preset="paper_v3", scenario=scenario)  # type: ignore[arg-type]
                         for scenario in SCENARIOS)
    assert (coordinator.lambda_l1, silo.lambda_l1) == (1e-5, 1e-4)
    assert (coordinator.labelled_batch, silo.labelled_batch) == (100, 10)
    assert (coordinator.plateau_patience, silo.plateau_patience) == (20, 5)
    assert (coordinator.coordinator_epochs, silo.coordinator_epochs) == (1, 0)
    assert (coordinator.l1_thres, coordinator.delta_thres) == (1e-5, 1e-5)
    assert (silo.l1_thres, silo.delta_thres) == (5e-6, 5e-5)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_preset_v1_holds_but_for_ties_and_the_codes_thresholds(scenario: Any) -> None:
    """v1 names no threshold of the transfer; those of the official code save bytes, and stay the default."""
    own, v1 = FedMatchSettings(scenario=scenario), FedMatchSettings(scenario=scenario, preset="paper_v1")
    differs = {field.name for field in dataclasses.fields(own) if getattr(own, field.name) != getattr(v1, field.name)}
    assert differs == {"preset", "tie_break", "l1_thres", "delta_thres"}
    assert own.tie_break == "local_first"
    assert own.l1_thres > 0 < own.delta_thres


@pytest.mark.parametrize("settings", [{"lambda_i": 0.0}, {"num_helpers": 0}])
def test_images_of_a_term_that_is_not_there_are_refused(settings: dict[str, Any]) -> None:
    FedMatchSettings(icc_images="all")
    with pytest.raises(ValueError, match="icc_images"):
        FedMatchSettings(icc_images="all", **settings)


def test_what_a_study_sets_goes_before_its_preset() -> None:
    settings = from_dict(FedMatchSettings, {"preset": "paper_v3", "lr": 0.02, "helper_interval": 1, "lambda_l1": 0})
    assert (settings.lr, settings.helper_interval, settings.lambda_l1) == (0.02, 1, 0.0)
    assert settings.aggregation == "uniform"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("preset", ["", *TABLE])
def test_settings_travel_as_explicit_values(preset: Any, scenario: Any) -> None:
    """Every value stands in the JSON of a task, and a task means the same whatever the reader's presets are."""
    settings = FedMatchSettings(preset=preset, scenario=scenario)
    sent = to_dict(settings)
    assert None not in sent.values()
    assert from_dict(FedMatchSettings, sent) == settings
    assert canonical_json(from_dict(FedMatchSettings, sent)) == canonical_json(settings)
    other = "paper_v1" if preset == "paper_v3" else "paper_v3"
    resolved = from_dict(FedMatchSettings, {**sent, "preset": other})
    assert dataclasses.replace(resolved, preset=preset) == settings


def test_every_preset_names_the_same_settings() -> None:
    names = {preset: set(preset_values(preset, scenario)) for preset in ("", "paper_v1", "paper_v3")  # type: ignore
             for scenario in SCENARIOS}
    fields = {field.name for field in dataclasses.fields(FedMatchSettings)
              if field.default is None and not field.metadata}
    assert all(each == fields for each in names.values())


@each_of(("wrong", "text"), [
    ({"scenario": "labels-at-silo", "coordinator_epochs": 1}, "coordinator_epochs"),
    ({"confidence_threshold": 1.5}, "confidence_threshold"),
    ({"num_helpers": -1}, "num_helpers"),
    ({"num_helpers": 17}, "num_helpers"),
    ({"plateau_factor": 0.5}, "plateau_factor"),
    ({"momentum": 1.0}, "momentum"),
    ({"l1_thres": -1e-6}, "l1_thres"),
    ({"helper_interval": 0}, "helper_interval"),
    ({"l1_update": "proximal", "lambda_l1": 0.0}, "lambda_l1"),
    ({"preset": "paper_v2"}, "paper_v"),
    ({"scenario": "labels-everywhere"}, "labels-at-"),
    ({"lr": None}, "lr"),
])
def test_settings_that_mean_nothing_are_refused_by_name(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        from_dict(FedMatchSettings, wrong)
    assert text in f"{caught.value.text} {caught.value.remedy}"


def test_the_plain_transfer_needs_three_zeros_and_no_helpers_are_legal() -> None:
    settings = FedMatchSettings(lambda_l1=0.0, l1_thres=0.0, delta_thres=0.0, num_helpers=0)
    assert (settings.lambda_l1, settings.l1_thres, settings.delta_thres, settings.num_helpers) == (0, 0, 0, 0)


def test_the_spec_says_that_helpers_are_other_silos_models() -> None:
    assert "helper_psi/*" in FEDMATCH.down
    assert "other silos" in FEDMATCH.discloses
    assert FEDMATCH.scenarios == SCENARIOS
