"""The papers' comparisons: every study in them can be run, and what is written follows from what was run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import run as runner
from benchmarks.papers.comparison import load_comparison, merged, study_digest
from benchmarks.papers.results import spread, write_results
from semisilo.simulation.settings import load_simulated_study
from tests.each_of import each_of

FOLDER = Path(runner.__file__).parent
SMALL, FULL = (sorted((FOLDER / scale).glob("*.toml")) for scale in ("small", "full"))
COMPARISONS = [*SMALL, *FULL]


def test_each_of_the_four_papers_has_its_comparison() -> None:
    assert {path.stem for path in SMALL} == {"semifl", "fedmatch", "fedmix", "fed_shvr"}
    assert not {path.stem for path in FULL} & {path.stem for path in SMALL}, "results have one folder"


@each_of("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_group_has_the_labels_alone_and_the_method_without_its_unlabelled_term(path: Path) -> None:
    """Labels alone are a row of their own, with labels at the coordinator the line of some study."""
    comparison = load_comparison(path, data=Path("data"))
    for group in {variant.group for variant in comparison.variants}:
        mine = [variant for variant in comparison.variants if variant.group == group]
        assert any("without the unlabelled term" in variant.name for variant in mine), group
        lines = [variant for variant in mine if variant.tables["study"].get("labelled_only_baseline")]
        rows = [variant for variant in mine if variant.name.startswith("labels alone with equal steps")]
        assert len(lines) + len(rows) == 1, group


def test_labels_alone_take_as_many_steps_as_the_method_takes_on_labels() -> None:
    """Fed-SHVR: floor(14 * 60 / 32) = 26 = floor(2 * 420 / 32). SemiFL: (15 + 1) rounds of 20 epochs. FedMatch: 12 + 1
    of 1. FedMix: 20 of 10, or 20 of 40 in batches of 20 of 50 images (3 steps an epoch), 480 epochs in batches of 10 (5
    steps)."""
    epochs = {(path.stem, variant.group): variant.tables["study"].get("baseline_epochs")
              for path in SMALL for variant in load_comparison(path, data=Path("data")).variants
              if variant.tables["study"].get("labelled_only_baseline")}
    assert epochs == {("semifl", "IID"): 16 * 20, ("semifl", "two classes per silo"): 16 * 20,
                      ("fedmatch", "labels at the coordinator: 100"): 13, ("fedmix", "200 labels"): 20 * 10 // 2,
                      ("fedmix", "50 labels"): 20 * 40 * 3 // 5}
    shvr = load_comparison(FOLDER / "small" / "fed_shvr.toml", data=Path("data"))
    found = {variant.tables["method"]["local_epochs"] for variant in shvr.variants if "equal steps" in variant.name}
    assert found == {14}
    assert 14 * 60 // 32 == 2 * 420 // 32 == 26


@each_of("path", COMPARISONS, ids=lambda path: path.stem)
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


@pytest.mark.slow
def test_the_committed_page_follows_from_the_committed_results(tmp_path: Path) -> None:
    for name in ("small", "full", "results", "notes"):
        if (FOLDER / name).is_dir():
            shutil.copytree(FOLDER / name, tmp_path / name)
    write_results(tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (FOLDER / "RESULTS.md").read_text(), \
        "run: python -m benchmarks.papers.run"


def test_committed_results_are_of_the_studies_as_they_are_now() -> None:
    """Every row of the results is a study of the comparison, settings and all."""
    for path in COMPARISONS:
        results = FOLDER / "results" / f"{path.stem}.json"
        if results.exists():
            comparison = load_comparison(path, data=Path("data"))
            known = {(variant.group, variant.name, variant.chosen, study_digest(variant, seed))
                     for variant in comparison.variants for seed in variant.seeds}
            found = [(row["group"], row["variant"], row["chosen"], row["study"])
                     for row in json.loads(results.read_text())]
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
    # Without the folder of runs: rows are kept, but not that of a study that has changed.
    shutil.rmtree(tmp_path / "runs")
    before = (tmp_path / "results" / "tiny.json").read_text()
    assert runner.main([*arguments, "--keep"]) == 0
    assert (tmp_path / "results" / "tiny.json").read_text() == before
    changed = (small / "tiny.toml").read_text().replace('aggregation = "parallel"', 'mix_weight = 0.0')
    (small / "tiny.toml").write_text(changed)
    assert runner.main([*arguments, "--keep", "--only", "nothing"]) == 0
    assert [row["variant"] for row in json.loads((tmp_path / "results" / "tiny.json").read_text())] == ["one"]
    page = (tmp_path / "RESULTS.md").read_text()
    assert "Not run with the studies as they are now: other (seeds 1)." in page


def _row(variant: Any, seed: int, *, accuracy: float, validation: float, revision: str = "aaaaaaa") -> dict[str, Any]:
    return {"variant": variant.name, "group": variant.group, "published": "", "chosen": variant.chosen, "seed": seed,
            "study": study_digest(variant, seed), "revision": revision, "accuracy": accuracy, "labelled_only": None,
            "dense_bytes": 1, "up_bytes": 1, "down_bytes": 1, "updates": 1,
            "rounds": [{"round": 1, "accuracy": accuracy, "validation_accuracy": validation, "label_ratio": 0.25}]}


@pytest.mark.slow
def test_a_choice_is_made_on_validation_images_and_only_among_all(tmp_path: Path) -> None:
    """0.5 is best on the test images, 0.9 on the validation images; rows of two revisions are told apart."""
    for name in ("small", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "small" / "tiny.toml").write_text("""
paper = "semifl"
title = "Tiny"
claim = "None."
scale = "All."
seeds = [1]
[base.simulation]
data = "{data}/digits.npz"
[[variant]]
name = "plain"
[[variant]]
name = "tuned"
[variant.choose.method]
confidence_threshold = [0.5, 0.9]
""")
    comparison = load_comparison(tmp_path / "small" / "tiny.toml", data=Path("anywhere"))
    plain, half, nine = comparison.variants
    assert (half.chosen, nine.chosen) == ("confidence_threshold = 0.5", "confidence_threshold = 0.9")
    assert nine.tables["method"] == {"confidence_threshold": 0.9}
    rows = [_row(plain, 1, accuracy=0.4, validation=0.0, revision="bbbbbbb"),
            _row(half, 1, accuracy=0.9, validation=0.6), _row(nine, 1, accuracy=0.8, validation=0.7)]
    for count, shown in ((3, "| tuned: confidence_threshold = 0.9, by validation of 2 | 1 | 80.0 | 80.0 |  | 25 % |"),
                         (2, "Not run with the studies as they are now: tuned, confidence_threshold = 0.9 (seeds 1).")):
        (tmp_path / "results" / "tiny.json").write_text(json.dumps(rows[:count]))
        write_results(tmp_path)
        page = (tmp_path / "RESULTS.md").read_text()
        assert shown in page
        assert ("Measured: plain with revision bbbbbbb; tuned: confidence_threshold = 0.9, by validation of 2 with "
                "revision aaaaaaa." in page) == (count == 3)
        assert "90.0" not in page


def test_a_study_is_the_same_wherever_its_images_lie() -> None:
    here, there = (load_comparison(COMPARISONS[0], data=Path(folder)).variants[0] for folder in ("/a", "/b"))
    assert study_digest(here, 1) == study_digest(there, 1) != study_digest(here, 2)
