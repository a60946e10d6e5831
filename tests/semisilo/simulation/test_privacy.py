"""Differential privacy in simulations: the same code, ledgers and bits, and a study that can be repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.simulation import run


def tables(*, silos: int = 3, seed: int = 1, method: dict[str, Any] | None = None, **dp: Any) -> dict[str, Any]:
    return {
        "study": {"seed": seed, "rounds": 2, "labelled_only_baseline": False},
        "model": {"name": "small_cnn", "normalisation": "group"},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.3]}}, "augmentation": {"policy": "none"},
        "method": {"name": "fedavg", "labelled_batch": 20, "lr": 0.2, "lambda_s": 1.0, **(method or {})},
        "privacy": {"dp": {"noise_multiplier": 1.0, "clip_norm": 0.5, **dp}},
        "simulation": {"data": "digits", "split": {"name": "iid", "silos": silos, "all_labelled": True,
                                                   "num_test": 100, "fraction": 0.2}}}


def ledgers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.parent.parent.name: [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(folder.rglob("spent.jsonl"))}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_every_simulated_silo_counts_and_the_study_can_be_repeated(tmp_path: Path) -> None:
    first = run(tables(), out=tmp_path / "a", engine="process", device="cpu")
    found = ledgers(tmp_path / "a")
    assert len(found) == 3
    for lines in found.values():
        assert [line["round"] for line in lines] == [1, 2]
        spent = [NoisySteps(noise_multiplier=1.0, sampling_rate=line["sampling_rate"], steps=line["steps"])
                 for line in lines]
        assert lines[-1]["epsilon"] == epsilon_of(spent, 1e-5)
    again = run(tables(), out=tmp_path / "b", engine="process", device="cpu")
    assert again.digest == first.digest
    other = run(tables(noise_multiplier=1.001), out=tmp_path / "c", engine="process", device="cpu")
    assert other.digest != first.digest


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_silos_are_hidden_by_noise_on_the_sum_that_can_be_repeated(tmp_path: Path) -> None:
    """Ten silos; the silos themselves train without noise and keep no ledger."""
    study = tables(silos=10, unit="silo", method={"weighting": "uniform"})
    first = run(study, out=tmp_path / "a", engine="process", device="cpu")
    assert run(study, out=tmp_path / "b", engine="process", device="cpu").digest == first.digest
    assert ledgers(tmp_path / "a") == {}
    other = run(tables(silos=10, unit="silo", noise_multiplier=2.0, method={"weighting": "uniform"}),
                out=tmp_path / "c", engine="process", device="cpu")
    assert other.digest != first.digest


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_behind_masks_every_silo_adds_a_share_of_the_noise_and_counts_it(tmp_path: Path) -> None:
    def study(**dp: Any) -> dict[str, Any]:
        found = tables(silos=10, unit="silo", method={"weighting": "uniform"}, **dp)
        return {**found, "privacy": {**found["privacy"], "secure_aggregation": True}}

    first = run(study(), out=tmp_path / "a", engine="process", device="cpu")
    assert run(study(), out=tmp_path / "b", engine="process", device="cpu").digest == first.digest
    found = ledgers(tmp_path / "a")
    assert len(found) == 10
    for lines in found.values():
        counted = [(line["steps"], line["sampling_rate"], line["noise_multiplier"]) for line in lines]
        assert counted == [(1, 1.0, 0.5)] * 2
        assert lines[-1]["epsilon"] == epsilon_of([NoisySteps(noise_multiplier=0.5, sampling_rate=1.0, steps=2)], 1e-5)
    assert run(study(honest_silos=1), out=tmp_path / "c", engine="process", device="cpu").digest != first.digest


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_behind_masks_silos_share_the_noise_of_their_images_and_each_counts_all_of_it(tmp_path: Path) -> None:
    def study(**dp: Any) -> dict[str, Any]:
        found = tables(silos=5, method={"weighting": "uniform"}, **dp)
        return {**found, "privacy": {**found["privacy"], "secure_aggregation": True}}

    first = run(study(honest_silos=3), out=tmp_path / "a", engine="process", device="cpu")
    assert run(study(honest_silos=3), out=tmp_path / "b", engine="process", device="cpu").digest == first.digest
    for lines in ledgers(tmp_path / "a").values():
        counted = [(line["steps"], line["noise_multiplier"]) for line in lines]
        assert counted == [(1, 1.0)] * 2
        spent = [NoisySteps(noise_multiplier=1.0, sampling_rate=line["sampling_rate"], steps=1) for line in lines]
        assert lines[-1]["epsilon"] == epsilon_of(spent, 1e-5)
    assert run(study(honest_silos=2), out=tmp_path / "c", engine="process", device="cpu").digest != first.digest


def test_too_few_silos_for_a_sum_are_refused(tmp_path: Path) -> None:
    """Nobody would join later, for whom a real study waits."""
    few = {**tables(silos=2, method={"weighting": "uniform"}), "privacy": {"secure_aggregation": True}}
    with pytest.raises(BadConfiguration, match=r"takes 3 silos .* and a round asks 2"):
        run(few, out=tmp_path / "a")


def test_too_few_silos_to_hide_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"there are 9: with fewer than 10"):
        run(tables(silos=9, unit="silo", method={"weighting": "uniform"}), out=tmp_path / "a")
