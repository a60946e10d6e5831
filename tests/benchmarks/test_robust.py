"""The benchmark of lying silos: who lies, what an attack sends, and that it ends with the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.robust import results
from benchmarks.robust.attacks import ABSENT, STATISTICS, Attack, attacking, chosen_silos, patched
from benchmarks.robust.cells import (
    METHODS,
    NOBODY,
    RULES,
    SILOS,
    Cell,
    attacks_on,
    cells,
    digest_of,
    rules_of,
    study_of,
)
from benchmarks.robust.run import run_cell
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.contract import Meaning, SiloTask, TensorGroup, Update
from semisilo.simulation.settings import load_simulated_study

NAMES = tuple(f"silo-{index:03d}" for index in range(SILOS))


class HonestTrainer:
    """Sends ones; measures a mean of 1 and a variance of 4."""

    Memory = type(None)

    def train(self, task: SiloTask, data: object, memory: None) -> tuple[Update, None]:
        if task.phase == "statistics":
            measured = {"a.mean": torch.ones(2), "a.var": torch.full((2,), 4.0), "a.count": torch.tensor([9])}
            return Update(groups={"batch_norm": TensorGroup(measured, Meaning.VALUES)}, num_examples=3), None
        return Update(groups={"model": TensorGroup({"w": torch.ones(4)}, Meaning.DIFFERENCE)}, num_examples=3), None


def _task(silo: str, phase: str = "train") -> SiloTask:
    unused: Any = None
    return SiloTask(study="s", round=1, rounds=1, phase=phase, silo=silo, seed=1, settings=None, groups={},
                    build_model=unused, augmentation=unused, image=unused)


@pytest.mark.parametrize(("kind", "length"), [("sign flip", -2.0), ("x10", 20.0), ("x1000", 2000.0),
                                              ("free rider", 0.0), ("Gaussian noise", 20.0)])
def test_only_the_chosen_silos_lie_and_only_while_it_lasts(kind: str, length: float,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from semisilo.common.methods.plugins import load_half

    row = replace(BUILT_IN["semifl"], trainer=f"{__name__}:HonestTrainer")
    monkeypatch.setitem(BUILT_IN, "semifl", row)
    liars = chosen_silos(NAMES, 3, seed=1)
    with attacking("semifl", Attack(kind=kind, silos=liars, num_classes=10)):
        trainer = load_half("semifl", "trainer")()
        for silo in NAMES:
            sent = trainer.train(_task(silo), None, None)[0].groups["model"].tensors["w"]
            assert float(sent.norm()) == pytest.approx(abs(length) if silo in liars else 2.0, rel=1e-5)
            assert (float(sent.sum()) < 0) == (silo in liars) or kind != "sign flip"
    assert BUILT_IN["semifl"] is row


def test_an_absent_silo_abstains_and_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from semisilo.common.methods.plugins import load_half

    monkeypatch.setitem(BUILT_IN, "semifl", replace(BUILT_IN["semifl"], trainer=f"{__name__}:HonestTrainer"))
    liars = chosen_silos(NAMES, 2, seed=1)
    with attacking("semifl", Attack(kind=ABSENT, silos=liars, num_classes=10)):
        trainer = load_half("semifl", "trainer")()
        for silo in NAMES:
            update = trainer.train(_task(silo), None, None)[0]
            assert (bool(update.abstention), bool(update.groups)) == (silo in liars, silo not in liars)


def test_liars_that_mismeasure_train_honestly(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from semisilo.common.methods.plugins import load_half

    monkeypatch.setitem(BUILT_IN, "self_training", replace(BUILT_IN["self_training"],
                                                           trainer=f"{__name__}:HonestTrainer"))
    liars = chosen_silos(NAMES, 2, seed=1)
    with attacking("self_training", Attack(kind=STATISTICS, silos=liars, num_classes=10)):
        trainer = load_half("self_training", "trainer")()
        for silo in NAMES:
            assert trainer.train(_task(silo), None, None)[0].groups["model"].tensors["w"].tolist() == [1.0] * 4
            sent = trainer.train(_task(silo, "statistics"), None, None)[0].groups["batch_norm"].tensors
            assert sent["a.mean"].tolist() == [9.0 if silo in liars else 1.0] * 2
            assert (sent["a.var"].tolist(), sent["a.count"].tolist()) == ([4.0, 4.0], [9])


def test_fewer_liars_are_among_more_and_another_seed_draws_others() -> None:
    assert len(chosen_silos(NAMES, 3, seed=1)) == 3
    assert chosen_silos(NAMES, 1, seed=1) < chosen_silos(NAMES, 2, seed=1) < chosen_silos(NAMES, 3, seed=1)
    assert len({chosen_silos(NAMES, 3, seed=seed) for seed in range(1, 6)}) > 1


def test_the_patch_is_a_chessboard_in_one_corner() -> None:
    marked = patched(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8))[0, 0]
    assert marked[5:, 5:].tolist() == [[255, 0, 255], [0, 255, 0], [255, 0, 255]]
    assert int((marked == 7).sum()) == 64 - 9


@pytest.mark.parametrize("method", METHODS)
def test_every_cell_is_a_study_that_may_be_run(method: str) -> None:
    found = list(cells(method))
    assert len(found) == len(set(found))
    assert {cell.attack for cell in found} == {*attacks_on(method), ABSENT, NOBODY}
    assert {cell.rule for cell in found} == set(rules_of(method)) <= set(RULES)
    for rule in {cell.rule for cell in found}:
        load_simulated_study(study_of(Cell(method, "even", NOBODY, 0, rule), seed=1))


def test_the_page_counts_what_is_lost_against_the_honest_mean(tmp_path: Path) -> None:
    import json

    lines = []
    for cell, accuracy, backdoor in ((Cell("SemiFL", "even", NOBODY, 0, "mean"), 0.9, 0.0),
                                     (Cell("SemiFL", "even", "backdoor", 3, "judge"), 0.885, 0.07),
                                     (Cell("SemiFL", "even", "x10", 3, "judge"), 0.8, 0.0),
                                     (Cell("SemiFL", "even", ABSENT, 3, "mean"), 0.84, 0.0)):
        lines.append({"method": cell.method, "split": cell.split, "attack": cell.attack, "attackers": cell.attackers,
                      "rule": cell.rule, "seed": 1, "study": digest_of(study_of(cell, seed=1)), "accuracy": accuracy,
                      "backdoor": backdoor})
    lines.append({**lines[2], "study": "of an earlier version", "accuracy": 0.1})
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    results.write_page(tmp_path)
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "| judge | +10.0 | 3 x10 | +4.0 | 3 x10 |  | 7.0 |" in page
    assert "| absent | 3 | 84.0 (1) |" in page
    assert "| backdoor | 3 |" in page


@pytest.mark.slow
def test_three_liars_of_ten_do_not_spoil_a_study_of_self_training_by_false_statistics() -> None:
    """As a new study has it, 40 labels; without the bound the model ends as good as a guess."""
    accuracy = {rule: run_cell(Cell("self-training", "even", STATISTICS, 3, rule), seed=4)["accuracy"]
                for rule in ("bound", "mean")}
    assert accuracy["bound"] > 0.88
    assert accuracy["mean"] < 0.3
