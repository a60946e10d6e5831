"""RESULTS.md of the comparison of rules, from results.jsonl and what a person read out of it (notes.md)."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.robust.attacks import ABSENT
from benchmarks.robust.cells import (
    METHODS,
    NOBODY,
    RULES,
    SILOS,
    SPLITS,
    Cell,
    attacks_on,
    digest_of,
    rules_of,
    study_of,
)

__all__ = ["Results", "read_results", "write_page"]

_HEAD = """# What do lying silos cost?

Written by `make bench-robust`. Ten silos share scikit-learn's digits, ten rounds, a network of two convolutions, one
thread. In each cell: accuracy on the test images after the last round in per cent, mean over seeds, and how many seeds
were run. *mean* is the plain average without any bound; *bound* the default of `[robust]`. Rules that are told how many
may lie are told 3. A study that could not go on, because the model was no longer finite, counts as *failed*. Attackers
act in every round and are drawn by the seed.

- **sign flip, x10, x1000**: the honest update times -1, 10 or 1000. **Gaussian noise**: noise ten times as long as the
  honest update. **free rider**: zeros. **label flip**: trained on true labels moved by one class. **backdoor**: half of
  the images are trained with a chessboard of 3 x 3 pixels in a corner as class 0; its success is how often the final
  model says class 0 of test images of other classes with that patch. **absent**: no attack, those silos send nothing;
  this is what a rule that knew them could reach, and where silos hold few classes each it is below the honest mean.
- **statistics**: the batch-norm statistics of a silo, which self-training asks for, with means four standard deviations
  too high.
- SemiFL: 40 labels at the coordinator. FedAvg: all images labelled at the silos, 100 validation images at the
  coordinator. Self-training: SemiFL's 40 labels, the defaults of a new study otherwise.
"""


class Results:
    """Numbers by cell and seed, of the studies as they are now."""

    def __init__(self) -> None:
        self.found: dict[Cell, dict[int, dict[str, Any]]] = defaultdict(dict)

    def values(self, cell: Cell, what: str) -> list[float]:
        """In per cent, of the seeds that could end."""
        return [100 * each[what] for each in self.found[cell].values() if what in each]

    def mean(self, cell: Cell, what: str = "accuracy") -> float | None:
        """Over the seeds that are there and could end."""
        values = self.values(cell, what)
        return statistics.fmean(values) if values else None

    def text(self, cell: Cell, what: str = "accuracy") -> str:
        """Mean and number of seeds; how many failed."""
        runs, mean = self.found[cell], self.mean(cell, what)
        if not runs:
            return ""
        failed = sum(what not in each for each in runs.values())
        said = [] if mean is None else [f"{mean:.1f} ({len(runs) - failed})"]
        return ", ".join([*said, *([f"{failed} failed"] if failed else [])])


def read_results(file: Path) -> Results:
    """Lines of earlier versions of a study do not count."""
    results = Results()
    for text in file.read_text().splitlines() if file.exists() else ():
        line: dict[str, Any] = json.loads(text)
        cell = Cell(*(line[name] for name in ("method", "split", "attack", "attackers", "rule")))
        if cell.rule in RULES and line["study"] == digest_of(study_of(cell, seed=line["seed"])):
            results.found[cell][line["seed"]] = line
    return results


def write_page(folder: Path) -> None:
    """Writes it anew from what is there."""
    results, notes = read_results(folder / "results.jsonl"), folder / "notes.md"
    parts = [_HEAD]
    for method in METHODS:
        if any(runs for cell, runs in results.found.items() if cell.method == method):
            parts += _of_method(results, method)
    parts.append(notes.read_text() if notes.exists() else "")
    (folder / "RESULTS.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _of_method(results: Results, method: str) -> list[str]:
    rules = rules_of(method)
    rows = [f"## {method}\n"]
    for split in SPLITS:
        alone = results.text(Cell(method, split, "free rider", SILOS, "mean"))
        rows += [f"### {method}, {split}\n",
                 f"Without anything from a silo: {alone or 'not run yet'}.\n",
                 f"| attack | silos | {' | '.join(rules)} |", "|---|---:|" + "---:|" * len(rules)]
        for attackers in (0, 1, 2, 3):
            for attack in (ABSENT, *attacks_on(method)) if attackers else (NOBODY,):
                found = [Cell(method, split, attack, attackers, rule) for rule in rules]
                if any(results.found[cell] for cell in found):
                    rows.append(f"| {attack} | {attackers} | {' | '.join(map(results.text, found))} |")
                    if attack == "backdoor":
                        success = (results.text(cell, "backdoor") for cell in found)
                        rows.append(f"| its success | {attackers} | {' | '.join(success)} |")
        rows += ["", *_lost(results, method, split, rules), ""]
    return rows


def _lost(results: Results, method: str, split: str, rules: Iterable[str]) -> list[str]:
    """The most that any attack takes: from what the plain mean has when all silos are honest, and from what it has when
    the liars send nothing; and the backdoor's largest success."""
    honest = _accuracies(results, Cell(method, split, NOBODY, 0, "mean"))
    if not honest:
        return []
    rows = ["| rule | most points lost against the honest mean | under |"
            " most points lost against the honest others alone | under | lost without attack | backdoor at most |",
            "|---|---:|---|---:|---|---:|---:|"]
    for rule in rules:
        lost: dict[str, float] = {}
        lost_to_others: dict[str, float] = {}
        success: list[float] = []
        for cell, runs in results.found.items():
            if (cell.method, cell.split, cell.rule) != (method, split, rule):
                continue
            if cell.attack not in (*attacks_on(method), NOBODY):
                continue
            if cell.attackers == SILOS:
                continue
            others = _accuracies(results, Cell(method, split, ABSENT, cell.attackers, "mean"))
            name = f"{cell.attackers} {cell.attack}"
            for against, found in ((honest, lost), (others, lost_to_others)):
                if same := [seed for seed in runs if seed in against]:
                    found[name] = 100 * statistics.fmean(against[seed] - runs[seed].get("accuracy", 0.0)
                                                         for seed in same)
            if cell.attack == "backdoor":
                success += results.values(cell, "backdoor")
        free = f"{lost[f'0 {NOBODY}']:+.1f}" if f"0 {NOBODY}" in lost else ""
        rows.append(f"| {rule} | {_worst(lost)} | {_worst(lost_to_others)} | {free} |"
                    f" {f'{max(success):.1f}' if success else ''} |")
    return rows


def _accuracies(results: Results, cell: Cell) -> dict[int, float]:
    """By seed, of the runs that could end."""
    return {seed: run["accuracy"] for seed, run in results.found.get(cell, {}).items() if "accuracy" in run}


def _worst(lost: dict[str, float]) -> str:
    """Two cells: the largest loss under an attack, and under which."""
    attacked = {name: value for name, value in lost.items() if name != f"0 {NOBODY}"}
    worst = max(attacked, key=lambda name: attacked[name], default="")
    return f"{attacked[worst]:+.1f} | {worst}" if worst else " | not run yet"
