"""What the settings against imbalance do for SemiFL: labels and images 10 to 1, another prevalence at every silo.

    .venv/bin/python -m benchmarks.imbalance.measure digits results.json
    .venv/bin/python -m benchmarks.imbalance.measure build/data/bloodcells.npz results.json
    .venv/bin/python -m benchmarks.imbalance.measure table benchmarks/imbalance/results.json

Every row has up to three seeds; a cell that stands in the file is not run again. The settings were written down
before the first run, the model is that of the last round, and nothing was chosen by the test images.
docs/decisions/0028-imbalance.md has the table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from semisilo.api.results import Run
from semisilo.api.simulate import simulate
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.simulation.folder import SimulationFolder

SEEDS = (1, 2, 3)
VARIANTS: dict[str, dict[str, Any]] = {
    "SemiFL": {},
    "class-balanced sampling": {"labelled_sampling": "class_balanced"},
    "logit adjustment, tau 1": {"logit_adjustment": 1.0},
    "alignment with the labels": {"distribution_alignment": "labels"},
    "alignment with the labels, strength 0.5": {"distribution_alignment": "labels", "alignment_strength": 0.5},
    "alignment, uniform": {"distribution_alignment": "uniform"},
    "thresholds relative": {"thresholds": "relative"},
    "thresholds class-relative": {"thresholds": "class_relative"},
    "logit adjustment, class-relative": {"logit_adjustment": 1.0, "thresholds": "class_relative"},
    "class-balanced, class-relative": {"labelled_sampling": "class_balanced", "thresholds": "class_relative"},
}
SETS: dict[str, dict[str, Any]] = {
    "digits": {"num_labelled": 60, "image": {"size": 8, "channels": 1}, "fraction": 1.0, "silos": 5, "classes": 10},
    "bloodcells": {"num_labelled": 80, "image": {"size": 28, "channels": 3}, "fraction": 0.2, "silos": 5,
                   "classes": 8},
}


def study(data: str, variant: str) -> dict[str, Any]:
    """The tables of one cell's study."""
    of = SETS[Path(data).stem]
    return {
        "study": {"rounds": 15, "labelled_only_baseline": variant == "SemiFL", "baseline_epochs": 200},
        "model": {"name": "small_cnn"}, "data": {"image": of["image"]},
        "augmentation": {"policy": "small", "without": ["Invert", "Solarize"]},
        "method": {"name": "semifl", "local_epochs": 2, "coordinator_epochs": 20, "unlabelled_batch": 32,
                   **VARIANTS[variant]},
        "simulation": {"data": data, "split": {
            "name": "prevalence_shift", "dirichlet": 1.0, "silos": of["silos"], "fraction": of["fraction"],
            "num_labelled": of["num_labelled"], "label_imbalance": 10, "unlabelled_imbalance": 10}}}


def _labels_alone(run: Run) -> Mapping[str, float]:
    """What was measured of the same network trained on the labels alone; nothing where that was not asked for."""
    ledger = Ledger(SimulationFolder(run.folder).ledger)
    try:
        baseline = ledger.study(run.study).baseline
    finally:
        ledger.close()
    return {} if baseline is None else baseline.metrics


def main(data: str, file: Path) -> None:
    """Runs what the file does not have yet."""
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    for seed in SEEDS:
        for variant in VARIANTS:
            key = f"{Path(data).stem}/{variant}/{seed}"
            if key in found:
                continue
            with tempfile.TemporaryDirectory() as folder:
                run = simulate(study(data, variant), seed=seed, out=Path(folder) / "run", engine="process",
                               progress=False)
                metrics = dict(run.rounds[-1].metrics)
                metrics |= {f"labels_alone/{name}": value for name, value in _labels_alone(run).items()}
            found[key] = metrics
            write_durably(file, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())
            print(key, round(metrics["balanced_accuracy"], 4), flush=True)


def table(file: Path) -> str:
    """Balanced accuracy in per cent by seed, their mean, the mean difference to SemiFL with the same seed, and the mean
    recall of the three rarest classes; of the seeds of which every cell is there."""
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    lines = []
    for data, of in SETS.items():
        seeds = [seed for seed in SEEDS if all(f"{data}/{variant}/{seed}" in found for variant in VARIANTS)]
        heads = [data, *(f"seed {seed}" for seed in seeds), "mean", "to SemiFL", "rarest three"]
        lines += ["", f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
        for variant, prefix in (("labels alone", "labels_alone/"), *((name, "") for name in VARIANTS)):
            rows = [found[f"{data}/{variant if variant in VARIANTS else 'SemiFL'}/{seed}"] for seed in seeds]
            plain = [100 * found[f"{data}/SemiFL/{seed}"]["balanced_accuracy"] for seed in seeds]
            values = [100 * row[f"{prefix}balanced_accuracy"] for row in rows]
            rare = [100 * row.get(f"{prefix}recall/{label}", 0.0) for row in rows
                    for label in range(of["classes"] - 3, of["classes"])]
            numbers = [*(f"{value:.1f}" for value in values), f"{fmean(values):.1f}",
                       f"{fmean(values) - fmean(plain):+.1f}", f"{fmean(rare):.1f}"]
            lines.append(f"| {variant} | {' | '.join(numbers)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print(table(Path(sys.argv[2])))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
