"""Trained weights and frozen parts in a simulation: the file is found beside the study file and goes along with it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

from semisilo.common.errors import BadData
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model
from semisilo.coordinator.studies.study_file import load_study
from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.semisilo.studies import study

FROZEN = ["features.0", "features.1", "features.4", "features.5"]


def write_weights(path: Path) -> dict[str, torch.Tensor]:
    """Of the built-in network, without its head, and with statistics of the first of its three layers alone."""
    generator = torch.Generator().manual_seed(9)
    model = build_model(ModelSettings(classes=tuple("0123456789")), channels=1, size=8)
    found = {name: torch.randn(parameter.shape, generator=generator) * 0.1
             for name, parameter in model.named_parameters() if not name.startswith("classifier")}
    found |= {"features.1.running_mean": torch.randn(32, generator=generator),
              "features.1.running_var": torch.rand(32, generator=generator) + 0.5}
    save_file(found, path)
    return found


def study_file(folder: Path, method: str = "semifl", scenario: str = "labels-at-coordinator",
               **tables: dict[str, Any]) -> Path:
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    write_weights(folder / "weights" / "w.safetensors")
    chosen = study(method, scenario, silos=2, model={"weights": "weights/w.safetensors", "freeze": FROZEN}, **tables)
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(chosen), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_weights_are_found_beside_the_study_file_and_kept_with_the_simulation(tmp_path: Path) -> None:
    path = study_file(tmp_path / "mine")
    given = load_file(tmp_path / "mine" / "weights" / "w.safetensors")
    result = run(path, out=tmp_path / "run", device="cpu")
    model = load_file(next((tmp_path / "run" / "studies").iterdir()) / "model.safetensors")
    assert torch.equal(model["features.4.weight"], given["features.4.weight"])
    assert torch.equal(model["features.1.mean"], given["features.1.running_mean"])
    assert not torch.equal(model["features.7.weight"], given["features.7.weight"]), "what is trained has learnt"
    ledger = sqlite3.connect(tmp_path / "run" / "ledger.sqlite")
    facts = json.loads(ledger.execute("SELECT frozen_json FROM study").fetchone()[0])
    assert (facts["weights"], facts["left_random"]) == ("w.safetensors", ["classifier.weight", "classifier.bias"])
    assert facts["num_frozen"] == 288 + 64 + 18_432 + 128
    down = ledger.execute("SELECT silo, round, count FROM cost WHERE item = 'frozen' ORDER BY silo").fetchall()
    assert down == [("silo-000", 1, 1), ("silo-001", 1, 1)]
    # The file itself may go: the simulation has its own.
    (tmp_path / "mine" / "weights" / "w.safetensors").unlink()
    assert run(path, out=tmp_path / "run", device="cpu").digest == result.digest


def test_split_writes_the_weights_for_the_coordinator_and_nobody_else(tmp_path: Path) -> None:
    path = study_file(tmp_path / "mine")
    write_parts(deal_study(load_simulated_study(path)), tmp_path / "parts")
    config = load_study(tmp_path / "parts" / "coordinator" / "study.toml")
    assert config.model.weights == "data/w.safetensors"
    assert config.model.freeze == tuple(FROZEN)
    copy = tmp_path / "parts" / "coordinator" / config.model.weights
    assert copy.read_bytes() == (tmp_path / "mine" / "weights" / "w.safetensors").read_bytes()
    assert [each.name for each in (tmp_path / "parts").rglob("*.safetensors")] == ["w.safetensors"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = study_file(tmp_path / "mine")
    (tmp_path / "mine" / "weights" / "w.safetensors").unlink()
    with pytest.raises(BadData, match=r"mine/weights/w\.safetensors: there is no such file"):
        run(path, out=tmp_path / "run", device="cpu")


@pytest.mark.slow
def test_the_labelled_only_line_starts_from_the_same_weights(tmp_path: Path) -> None:
    """With everything but the head frozen it is the best line through fixed features, which random ones do not give."""
    lines = {}
    for name, model in (("trained", {"weights": "weights/w.safetensors", "freeze": "backbone"}),
                        ("random", {"freeze": "backbone"})):
        path = study_file(tmp_path / name, study={"rounds": 1, "labelled_only_baseline": True, "baseline_epochs": 2})
        tables = study(silos=2, rounds=1, study={"labelled_only_baseline": True, "baseline_epochs": 2}, model=model)
        path.write_text(tomli_w.dumps(tables), encoding="utf-8")
        run(path, out=tmp_path / name / "run", device="cpu")
        ledger = sqlite3.connect(tmp_path / name / "run" / "ledger.sqlite")
        lines[name] = json.loads(ledger.execute("SELECT baseline_json FROM study").fetchone()[0])["metrics"]["loss"]
    assert lines["trained"] != lines["random"]


@pytest.mark.slow
def test_fed_shvrs_diagnostics_look_at_the_trained_part(tmp_path: Path) -> None:
    path = study_file(tmp_path / "mine", "fed_shvr", "labels-at-silo")
    text = path.read_text(encoding="utf-8").replace("[simulation]", "[simulation]\nstationarity_gap = true", 1)
    path.write_text(text, encoding="utf-8")
    result = run(path, out=tmp_path / "run", device="cpu")
    assert all("stationarity_gap" in row.metrics for row in result.rounds[1:])
