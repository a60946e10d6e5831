"""The comparison of methods: its cells, its studies, and that the page follows from what was run."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import run as runner
from benchmarks.learning.cells import (
    ABLATION_CELLS,
    ABLATIONS,
    AT_ONE_PLACE,
    BOTH_CELLS,
    BOTH_METHODS,
    CEILING,
    CELLS,
    METHODS,
    NO_PSEUDO_LABELS,
    OTHERS,
    OURS,
    SETS,
    SILO_CELLS,
    SILO_METHODS,
    WEAK_VIEWS,
    Cell,
    digest_of,
    methods_of,
    study_of,
)
from benchmarks.learning.results import read_table, write_page
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.coordinator.compute.strong_baseline import StrongRecipe, batch_size_of, images_of_study, planned_steps
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.each_of import each_of

FOLDER = Path(runner.__file__).parent
DATA = Path("data")
FEW = Cell("digits", "even", 2)


def test_there_are_at_least_sixteen_cells_of_four_sets_and_four_splits() -> None:
    assert len(set(CELLS)) == len(CELLS) >= 16
    assert {cell.data for cell in CELLS} == {"digits", "blood cells", "Fashion-MNIST", "CIFAR-10"}
    assert {cell.split for cell in CELLS} == {"even", "two classes", "Dirichlet 0.1", "imbalanced"}


@each_of("cell", CELLS, ids=lambda cell: cell.name)
def test_every_study_is_valid_and_no_two_are_the_same(cell: Cell) -> None:
    studies = {name: study_of(cell, name, seed=1, folder=DATA) for name in methods_of(cell)}
    for study in studies.values():
        config_from_dict(study, where="cell")
    assert len({digest_of(study) for study in studies.values()}) == len(studies)
    assert (set(studies) == set(METHODS)) is (cell.split == "even")
    federated = [study["simulation"]["split"] for name, study in studies.items() if name not in AT_ONE_PLACE]
    assert all(split == federated[0] for split in federated), "all methods have the same images"


@each_of("cell", SILO_CELLS, ids=lambda cell: cell.name)
def test_every_study_with_labels_at_silos_is_valid_and_has_the_same_images(cell: Cell) -> None:
    studies = {name: study_of(cell, name, seed=1, folder=DATA) for name in methods_of(cell)}
    for study in studies.values():
        config_from_dict(study, where="cell")
        assert study["simulation"] == studies[OURS]["simulation"]
    assert set(studies) == set(SILO_METHODS)
    assert len({digest_of(study) for study in studies.values()}) == len(studies)


@each_of("cell", BOTH_CELLS, ids=lambda cell: cell.name)
def test_with_labels_at_both_the_coordinator_has_those_of_the_cell_without_the_silos_labels(cell: Cell) -> None:
    studies = {name: study_of(cell, name, seed=1, folder=DATA) for name in methods_of(cell)}
    (alone,) = [each for each in CELLS if (each.data, each.split, each.per_class)
                == (cell.data, cell.split, cell.per_class)]
    there = study_of(alone, OURS, seed=1, folder=DATA)["simulation"]["split"]
    for study in studies.values():
        config_from_dict(study, where="cell")
        assert study["simulation"]["split"].items() > there.items()
        assert study["simulation"] == studies[OURS]["simulation"]
    assert set(studies) == set(BOTH_METHODS)
    assert len({digest_of(study) for study in studies.values()}) == len(studies)


def test_the_ablation_changes_one_thing_and_draws_other_images() -> None:
    for cell in ABLATION_CELLS:
        whole = study_of(cell, "as it stands", seed=101, folder=DATA)
        for name in ABLATIONS:
            study = study_of(cell, name, seed=101, folder=DATA)
            config_from_dict(study, where=name)
            assert study["simulation"] == whole["simulation"]
    assert runner.ABLATION_SEED > 100


def test_a_digest_changes_with_the_study_and_not_with_the_folder() -> None:
    here, there = (study_of(Cell("CIFAR-10", "even", 25), OURS, seed=1, folder=Path(folder)) for folder in ("a", "b"))
    assert digest_of(here) == digest_of(there)
    assert digest_of(here) != digest_of(study_of(Cell("CIFAR-10", "even", 25), OURS, seed=2, folder=Path("a")))


@each_of("cell", CELLS, ids=lambda cell: cell.name)
def test_the_other_methods_take_as_many_steps_on_the_labels_in_all_as_self_training_and_labels_alone(cell: Cell
                                                                                                     ) -> None:
    labels = cell.per_class * SETS[cell.data].classes
    ours = SelfTrainingSettings()
    recipe = StrongRecipe(num_classes=2, study_images=images_of_study(ours, rounds=10, num_labelled=labels))
    size = batch_size_of(labels)
    alone = size * planned_steps(recipe, num_labelled=labels, batch_size=size)
    rounds = 10 * ours.labelled_batch * ours.coordinator_steps
    for name in (name for name in methods_of(cell) if name in OTHERS):
        for fewer, images in ((False, alone + rounds), (True, rounds)):
            settings = study_of(cell, name, seed=1, folder=DATA, fewer=fewer)["method"]
            assert 10 * labels * settings["coordinator_epochs"] == pytest.approx(images, abs=5 * labels)


def _line(method: str, seed: int, value: float, alone: float | None = None, cell: Cell = FEW, *,
          fewer: bool = False) -> str:
    line = {**asdict(cell), "method": method, "seed": seed,
            "study": digest_of(study_of(cell, method, seed=seed, folder=DATA, fewer=fewer)),
            "balanced_accuracy": value, "processor_seconds": 1.0}
    return json.dumps(line if alone is None else {**line, "labels_alone": {"balanced_accuracy": alone}}) + "\n"


def test_the_page_counts_what_the_targets_ask(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("".join([
        _line(OURS, 1, 0.9, 0.8), _line(OURS, 2, 0.8, 0.82), _line(NO_PSEUDO_LABELS, 1, 0.87),
        _line(WEAK_VIEWS, 1, 0.92),
        *(_line(name, 1, 0.7, fewer=name == "FedMix") for name in OTHERS),
        _line("FedMatch", 1, 0.75, fewer=True),
        *(_line(name, 1, value, 0.8 if name == OURS else None, cell=BOTH_CELLS[0])
          for name, value in zip(BOTH_METHODS, (0.95, 0.85), strict=True)),
        *(_line(name, seed, value, cell=Cell("digits", split, 4))
          for split, sparse in (("even", 0.86), ("two classes", 0.91))
          for seed, name, value in ((101, "as it stands", 0.9), (102, "as it stands", 0.8),
                                    (101, "uplink top-k 10% int8", sparse))),
        _line(CEILING, 1, 0.91), json.dumps({**json.loads(_line(OURS, 3, 0.1, 0.9)), "study": "of before"}) + "\n"]))
    (tmp_path / "seconds.json").write_text(json.dumps([{
        "cell": name, "ours": ratio, "semifl": 1.0, "ratio": ratio, "least": ratio, "most": ratio, "repeats": 1}
        for name, ratio in (("a", 1.25), ("b", 1.5))]))
    table = read_table(tmp_path / "results.jsonl")
    assert table.differences(FEW, OURS, "labels alone") == pytest.approx([10.0, -2.0])
    write_page(tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| digits, even | 2 | 2 | 81.0 | 85.0 | 92.0 (1) | 87.0 (1) | 70.0 (1) |" in page
    assert "| +4.0 (-2.0) |" in page
    assert "1 of 1, mean +4.0 points" in page
    assert "worst seed -2.0" in page
    assert "on the labels | more than nothing in 1 of 1 cells, mean +3.0 points" in page
    assert "weak views of the labels add | more than nothing in 1 of 1 cells, mean +2.0 points" in page
    assert "as it does better | 1 of 1, mean against each cell's best +15.0 points" in page
    assert "| digits, even | 2 | 1 | 80.0 | 95.0 | 85.0 | +15.0 (+15.0) | +10.0 | +5.0 |" in page
    assert "at 1/20 of the dense bytes | -1.5 points on average of 2 cells, worst -4.0" in page
    assert "1/100" not in page
    assert "| at most 1.3 times SemiFL's seconds a round | 1.25, 1.50 in 2 cells |" in page
    assert "91 % on average" in page  # (90 - 80) / (91 - 80): seed 2 has no ceiling


def test_the_committed_page_follows_from_the_committed_results(tmp_path: Path) -> None:
    for name in ("results.jsonl", "seconds.json", "notes.md"):
        if (FOLDER / name).exists():
            shutil.copy(FOLDER / name, tmp_path / name)
    write_page(tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (FOLDER / "RESULTS.md").read_text(), \
        "run: python -m benchmarks.learning.run --page"


@pytest.mark.slow
def test_a_cell_is_run_once_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """One study on the embedded digits in a process of its own, as `make bench-learning` does, with fewer rounds."""
    whole = runner.study_of

    def shorter(*args: Any, **options: Any) -> dict[str, Any]:
        study = whole(*args, **options)
        return {**study, "study": {**study["study"], "rounds": 3}}

    monkeypatch.setattr(runner, "study_of", shorter)
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.jsonl")
    arguments = ["--data", str(tmp_path), "--seeds", "1", "--cells", "digits, even, 2", "--methods", "SemiFL"]
    assert runner.main(arguments) == 0
    (line,) = runner.lines()
    assert (line["method"], line["seed"], len(line["curve"])) == ("SemiFL", 1, 4)
    assert 0.5 < line["balanced_accuracy"] <= 1
    assert "[1/1]" in capsys.readouterr().err
    assert runner.main(arguments) == 0
    assert runner.lines() == [line]
    assert "[1/1]" not in capsys.readouterr().err
