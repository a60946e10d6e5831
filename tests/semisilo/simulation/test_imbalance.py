"""Whole studies with the settings against imbalance: every method in every scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadConfiguration, SemisiloError
from semisilo.simulation import run
from tests.semisilo.studies import CASES, study

SHIFTED: dict[str, Any] = {"name": "prevalence_shift", "fraction": 0.3, "unlabelled_imbalance": 3.0}
QUICK = [("semifl", "labels-at-coordinator"), ("fed_shvr", "labels-at-silo")]


def _settings(method: str, scenario: str) -> dict[str, Any]:
    found: dict[str, Any] = {"logit_adjustment": 1.0, "distribution_alignment": "labels", "alignment_strength": 0.5}
    if method != "fed_shvr" and (method, scenario) != ("fedsgd", "labels-at-silo"):
        found["thresholds"] = "class_relative"
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), [
    case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES
    if case[0] != "self_training"])  # which has what it needs of them built in
def test_a_study_runs_with_all_of_them_and_its_bits_follow_from_its_settings(
        method: str, scenario: str, tmp_path: Path) -> None:
    """Twice the same, and another model without them."""
    def digest(name: str, settings: dict[str, Any]) -> str:
        labels: dict[str, Any] = {"labelled_per_class": 2}
        if scenario == "labels-at-coordinator":
            labels = {"num_labelled": 30, "label_imbalance": 4.0}
        split = {**SHIFTED, **labels, **({"num_validation": 0} if method == "local" else {})}
        tables = study(method, scenario, rounds=1, silos=2, split=split, settings=settings)
        return run(tables, out=tmp_path / name, device="cpu").digest

    with_them = digest("a", _settings(method, scenario))
    assert digest("b", _settings(method, scenario)) == with_them
    assert method == "local" or digest("c", {}) != with_them


def test_a_prior_that_does_not_fit_the_classes_is_refused_before_anything_runs(tmp_path: Path) -> None:
    tables = study(settings={"distribution_alignment": "stated", "class_prior": [0.5, 0.5]})
    with pytest.raises(SemisiloError, match="2 shares, not 10"):
        run(tables, out=tmp_path / "run", device="cpu")


def test_what_the_strategy_says_no_person_may_say(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="labelled_confidence"):
        run(study(settings={"labelled_confidence": 0.5}), out=tmp_path / "run", device="cpu")


@pytest.mark.parametrize("settings", [{"logit_adjustment": 1.0}, {"labelled_sampling": "class_balanced"},
                                      {"distribution_alignment": "uniform"}])
def test_the_gap_of_fed_shvrs_theorem_is_not_measured_of_another_objective(settings: dict[str, Any],
                                                                           tmp_path: Path) -> None:
    tables = study("fed_shvr", "labels-at-silo", settings=settings, simulation={"stationarity_gap": True})
    with pytest.raises(BadConfiguration, match="another objective"):
        run(tables, out=tmp_path / "run", device="cpu")
