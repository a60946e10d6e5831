"""Accuracy of the same study in every precision, over several seeds: `python -m benchmarks.training.precision --help`.

SemiFL on scikit-learn's digits with the demo's settings, simulated; each study goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from semisilo.common.methods.numerics import Precision
from semisilo.simulation.simulate import run

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing, then prints the table and writes the accuracies as JSON."""
    parser = argparse.ArgumentParser(description="Accuracy in every precision.")
    parser.add_argument("--seeds", type=int, default=5, help="studies of each precision, with seeds 1, 2, ...")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("build/precision"), help="of the simulations")
    chosen = parser.parse_args(arguments)
    found: dict[str, list[float]] = {}
    for precision in get_args(Precision):
        for seed in range(1, chosen.seeds + 1):
            study = {
                "study": {"rounds": chosen.rounds, "seed": seed, "labelled_only_baseline": False},
                "data": {"image": {"size": 8, "channels": 1}}, "numerics": {"precision": precision},
                "method": {"name": "semifl", "unlabelled_batch": 32, "coordinator_epochs": 20},
                "simulation": {"data": "digits", "split": {"name": "iid", "silos": 3, "num_labelled": 50}}}
            result = run(study, out=chosen.folder / f"{precision}-{chosen.rounds}-{seed}")
            found.setdefault(precision, []).append(result.rounds[-1].metrics["accuracy"])
            print(f"{precision} seed {seed}: {100 * found[precision][-1]:.2f} %", flush=True)
    for precision, accuracies in found.items():
        print(f"{precision}: mean {100 * statistics.fmean(accuracies):.2f} %, deviation over seeds"
              f" {100 * statistics.pstdev(accuracies):.2f}")
    (HERE / "precision.json").write_text(json.dumps({"rounds": chosen.rounds, "accuracies": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
