"""Images with several labels under what protects a study: rules of averaging, masked sums, differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.simulation import run
from semisilo.simulation.settings import load_simulated_study
from tests.semisilo.simulation.test_multi_label import CASES, LEAST, tables_of
from tests.two_digits import write_two_digits

LABELS = CASES["fedavg-sl"]
PSEUDO_LABELS = {**CASES["fedavg-fixmatch"], "weighting": "uniform"}
DP = {"noise_multiplier": 0.3, "clip_norm": 0.5}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_digits(tmp_path_factory.mktemp("two") / "two.npz", train=500, test=200)


def aurocs(images: Path, out: Path, method: dict[str, Any], *, silos: int = 5, **tables: Any) -> list[float]:
    """Of every round; the first is that of random weights."""
    found = run(tables_of(images, method, silos=silos) | tables, out=out, device="cpu", engine="process")
    assert [each.state for each in found.rounds] == ["completed"] * 3
    return [each.metrics["auroc"] for each in found.rounds]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["norm_clipping", "coordinate_median", "trimmed_mean", "geometric_median",
                                  "multi_krum"])
def test_rules_that_look_at_updates_alone_learn(images: Path, tmp_path: Path, rule: str) -> None:
    liars = {"byzantine_silos": 1} if rule in ("trimmed_mean", "multi_krum") else {}
    found = aurocs(images, tmp_path / "run", LABELS, robust={"rule": rule, **liars})
    assert found[-1] > found[0] + 0.08, "two rounds of few labels; the error of an area is below 0.02"


@pytest.mark.slow
def test_fltrust_steps_on_labels_of_several_classes(images: Path, tmp_path: Path) -> None:
    assert aurocs(images, tmp_path / "run", CASES["self_training"], robust={"rule": "fltrust"})[-1] > LEAST


def test_the_judge_is_refused_by_name(images: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"judge. balances its images by the one class"):
        load_simulated_study(tables_of(images, LABELS) | {"robust": {"rule": "judge"}})


@pytest.mark.slow
@pytest.mark.parametrize("method", [PSEUDO_LABELS, CASES["semifl"], CASES["self_training"]])
def test_sums_behind_masks_learn(images: Path, tmp_path: Path, method: dict[str, Any]) -> None:
    assert aurocs(images, tmp_path / "run", method, privacy={"secure_aggregation": True})[-1] > LEAST


def test_behind_masks_weights_that_hang_on_who_answers_are_refused_by_name(images: Path) -> None:
    with pytest.raises(BadConfiguration, match="secure_aggregation is not possible with"):
        load_simulated_study(tables_of(images, CASES["fedmix"]) | {"privacy": {"secure_aggregation": True}})


@pytest.mark.slow
def test_images_and_silos_are_hidden_by_noise(images: Path, tmp_path: Path) -> None:
    found = aurocs(images, tmp_path / "images", CASES["fedavg-fixmatch"], privacy={"dp": DP})
    assert found[-1] > LEAST, "the coordinator's labels are not noised"
    assert sorted((tmp_path / "images").rglob("spent.jsonl")), "every silo counts what it has spent"
    aurocs(images, tmp_path / "silos", PSEUDO_LABELS, silos=10, privacy={"dp": {"unit": "silo", **DP}})
    aurocs(images, tmp_path / "masked", PSEUDO_LABELS, silos=10,
           privacy={"secure_aggregation": True, "dp": {"unit": "silo", **DP}})


@pytest.mark.parametrize("name", ["semifl", "fedmix", "self_training"])
def test_methods_that_tie_images_to_each_other_cannot_hide_one(images: Path, name: str) -> None:
    with pytest.raises(BadConfiguration, match="dp"):
        load_simulated_study(tables_of(images, CASES[name]) | {"privacy": {"dp": DP}})
