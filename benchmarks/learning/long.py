"""Studies of a hundred rounds, as `coordinator new` asks for: `python -m benchmarks.learning.long --help`.

The table of `run.py` has ten rounds. Here some of its cells have a hundred, on draws that are not in it. What stands in
long.jsonl is not run again. Writes LONG.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.learning.cells import OURS, WEAK_VIEWS, Cell, digest_of, study_of

__all__ = ["CELLS_OF_LONG", "METHODS_OF_LONG", "ROUNDS", "lines", "write_page"]

HERE = Path(__file__).parent
RESULTS = HERE / "long.jsonl"
ROUNDS = 100
FIRST_SEED = 101
CELLS_OF_LONG = (Cell("digits", "even", 4), Cell("digits", "imbalanced", 4), Cell("blood cells", "even", 4),
                 Cell("blood cells", "imbalanced", 10), Cell("Fashion-MNIST", "even", 4))
METHODS_OF_LONG = (OURS, WEAK_VIEWS, "SemiFL", "FedAvg + FixMatch")
_SHOWN = (1, 5, 10, 20, 50, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description="Self-training, SemiFL and FixMatch over a hundred rounds.")
    parser.add_argument("--data", type=Path, default=Path("build/data"),
                        help="folder of bloodcells.npz and fashion_mnist.npz")
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--cells", default="", help="only cells whose name holds this text, such as 'digits, even'")
    parser.add_argument("--methods", default="", help="only methods whose name holds this text")
    parser.add_argument("--page", action="store_true", help="run nothing, write LONG.md only")
    options = parser.parse_args(arguments)
    done = {(row["method"], row["study"]) for row in lines()}
    wanted = [] if options.page else [
        (cell, method, seed, study) for seed in range(FIRST_SEED, FIRST_SEED + options.seeds) for cell in CELLS_OF_LONG
        for method in METHODS_OF_LONG if options.cells in cell.name and options.methods in method
        and (method, digest_of(study := study_of(cell, method, seed=seed, folder=options.data.absolute(),
                                                 rounds=ROUNDS))) not in done]
    from benchmarks.learning.run import run_job

    for number, (cell, method, seed, study) in enumerate(wanted):
        found = run_job(study)
        with RESULTS.open("a") as out:
            out.write(json.dumps({**asdict(cell), "method": method, "seed": seed, "study": digest_of(study), **found})
                      + "\n")
        print(f"[{number + 1}/{len(wanted)}] {cell.name}, {method}, seed {seed}:"
              f" {100 * found['balanced_accuracy']:.1f}", file=sys.stderr, flush=True)
    write_page(HERE)
    return 0


def lines() -> list[dict[str, Any]]:
    """What was run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def write_page(folder: Path) -> None:
    """LONG.md from long.jsonl."""
    table = ["| cell | draw | method | labels alone | " + " | ".join(f"round {number}" for number in _SHOWN)
             + " | best | macro AUROC |", "|---|---:|---|" + "---:|" * (len(_SHOWN) + 3)]
    by = {(Cell(row["data"], row["split"], row["per_class"]), row["seed"], row["method"]): row for row in lines()}
    for cell, seed, method in itertools.product(CELLS_OF_LONG, sorted({seed for _, seed, _ in by}), METHODS_OF_LONG):
        if (row := by.get((cell, seed, method))) is None:
            continue
        alone = [row["labels_alone"]["balanced_accuracy"]] if "labels_alone" in row else []
        shown = (*(row["curve"][number] for number in _SHOWN), max(row["curve"]), row["auroc"])
        table.append(f"| {cell.name} | {seed} | {method} | {_shown(*alone)} | "
                     + " | ".join(_shown(value) for value in shown) + " |")
    (folder / "LONG.md").write_text(f"""# A hundred rounds

Written by `python -m benchmarks.learning.long`. Cells of RESULTS.md, five silos, with {ROUNDS} rounds, as many as a new
study asks for, in the place of ten; draws {FIRST_SEED} and up, which are not in that table. Balanced accuracy on the
test images in per cent after some rounds. *Best* is the best of all rounds, which nobody can choose without looking at
the test images. Labels alone take 4000 steps at most; the other methods take these and those of self-training's rounds
in their own.

""" + "\n".join(table) + "\n", encoding="utf-8")


def _shown(*share: float) -> str:
    return "".join(f"{100 * value:.1f}" for value in share)


if __name__ == "__main__":
    raise SystemExit(main())
