"""The papers' comparisons: every study in them can be run, and what is written follows from what was run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import run as runner
from benchmarks.papers.comparison import load_comparison, merged
from benchmarks.papers.results import spread, write_results
from semisilo.simulation.settings import load_simulated_study

FOLDER = Path(runner.__file__).parent
COMPARISONS = sorted((FOLDER / "small").glob("*.toml"))


def test_each_of_the_four_papers_has_its_comparison() -> None:
    assert {path.stem for path in COMPARISONS} == {"semifl", "fedmatch", "fedmix", "fed_shvr"}


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_study_of_a_comparison_is_valid_and_has_three_seeds(path: Path) -> None:
    comparison = load_comparison(path, data=Path("data"))
    for variant in comparison.variants:
        assert len(set(variant.seeds)) >= 3, variant.name
        study = load_simulated_study(variant.tables)
        assert study.tables["method"]["name"] in {"semifl", "fedmatch", "fedmix", "fed_shvr", "fedavg", "fedprox"}
        assert study.simulation.data.startswith("data/")


def test_changes_are_merged_table_by_table_and_an_empty_text_removes() -> None:
    base = {"method": {"name": "a", "lr": 1, "mu": 2}, "study": {"rounds": 3}}
    assert merged(base, {"method": {"lr": 5, "mu": ""}}) == {"method": {"name": "a", "lr": 5}, "study": {"rounds": 3}}
    assert base["method"] == {"name": "a", "lr": 1, "mu": 2}, "the base stays"


def test_two_variants_of_one_name_are_refused(tmp_path: Path) -> None:
    text = COMPARISONS[0].read_text()
    twice = text + "\n[[variant]]" + text.split("[[variant]]")[1]
    (tmp_path / "twice.toml").write_text(twice)
    with pytest.raises(ValueError, match="one name"):
        load_comparison(tmp_path / "twice.toml", data=tmp_path)


def test_the_spread_is_the_root_of_the_mean_squared_deviation() -> None:
    """Of 1, 2, 6: mean 3, squares 4, 1, 9, mean 14/3."""
    assert spread([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(14 / 3))


def test_the_committed_page_follows_from_the_committed_results(tmp_path: Path) -> None:
    for name in ("small", "results", "notes"):
        if (FOLDER / name).is_dir():
            shutil.copytree(FOLDER / name, tmp_path / name)
    write_results(tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (FOLDER / "RESULTS.md").read_text(), \
        "run: python -m benchmarks.papers.run"


def test_committed_results_are_of_the_studies_as_they_are_now() -> None:
    """Every (group, variant, seed) of the results is in the comparison."""
    for path in COMPARISONS:
        results = FOLDER / "results" / f"{path.stem}.json"
        if results.exists():
            comparison = load_comparison(path, data=Path("data"))
            known = {(variant.group, variant.name, seed) for variant in comparison.variants for seed in variant.seeds}
            found = [(row["group"], row["variant"], row["seed"]) for row in json.loads(results.read_text())]
            assert len(set(found)) == len(found)
            assert set(found) <= known


@pytest.mark.slow
def test_a_comparison_is_run_once_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """Two variants on the embedded digits, in processes of their own, as `make bench-papers-small` does."""
    small = tmp_path / "small"
    small.mkdir()
    (small / "tiny.toml").write_text("""
paper = "semifl"
title = "Tiny"
claim = "None."
scale = "All."
seeds = [1]
[base.study]
rounds = 1
labelled_only_baseline = false
[base.data]
image = { size = 8, channels = 1 }
[base.method]
name = "semifl"
local_epochs = 1
coordinator_epochs = 2
[base.simulation]
data = "digits"
split = { name = "iid", silos = 2, num_labelled = 20, fraction = 0.2 }
[[variant]]
name = "one"
[[variant]]
name = "other"
[variant.set.method]
aggregation = "parallel"
""")
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "SMALL", small)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    arguments = ["tiny", "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--jobs", "2"]
    assert runner.main(arguments) == 0
    rows: list[dict[str, Any]] = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert [row["variant"] for row in rows] == ["one", "other"]
    assert rows[0]["digest"] != rows[1]["digest"]
    for row in rows:
        assert [entry["round"] for entry in row["rounds"]] == [0, 1]
        assert row["updates"] in (0, 1, 2)
        assert (row["up_bytes"] > 0) == (row["updates"] > 0)
    assert "| one | 1 |" in (tmp_path / "RESULTS.md").read_text()
    assert (tmp_path / "tiny.svg").stat().st_size > 1000
    capsys.readouterr()
    assert runner.main(arguments) == 0
    assert "everything has been run before" in capsys.readouterr().err
