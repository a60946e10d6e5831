"""What a round of self-training costs against one of SemiFL: `python -m benchmarks.learning.seconds`.

Processor seconds, so that other work on the machine hardly counts: of a study of ten rounds less those of a study of
one, over nine, so that what comes before round 1 cancels. Both take the same steps on the labels in a round. The two
methods in turn, each study in a process of its own, one thread. Writes seconds.json, which RESULTS.md shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.cells import CELLS, OURS, Cell, study_of

HERE = Path(__file__).parent
FILE = HERE / "seconds.json"
CELLS_TIMED = tuple(cell for cell in CELLS if (cell.data, cell.split, cell.per_class) in (
    ("digits", "even", 4), ("Fashion-MNIST", "even", 4), ("blood cells", "imbalanced", 10)))
_SEMIFL = "SemiFL"
_ROUNDS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the page with it."""
    parser = argparse.ArgumentParser(description="Seconds a round of self-training and SemiFL.")
    parser.add_argument("--data", type=Path, default=Path("build/data"),
                        help="folder of bloodcells.npz and fashion_mnist.npz")
    parser.add_argument("--repeats", type=int, default=3, help="of each")
    options = parser.parse_args(arguments)
    rows = []
    for cell in CELLS_TIMED:
        pairs: list[tuple[float, float]] = []
        for seed in range(1, options.repeats + 1):
            ours, semifl = (_a_round(cell, method, seed=seed, folder=options.data.absolute())
                            for method in (OURS, _SEMIFL))
            pairs.append((ours, semifl))
            print(f"{cell.name}, seed {seed}: {ours:.2f} s, {_SEMIFL} {semifl:.2f} s", file=sys.stderr, flush=True)
        ratios = [ours / semifl for ours, semifl in pairs]
        rows.append({"cell": cell.name, "ours": statistics.median(ours for ours, _ in pairs),
                     "semifl": statistics.median(semifl for _, semifl in pairs), "ratio": statistics.median(ratios),
                     "least": min(ratios), "most": max(ratios), "repeats": len(ratios)})
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    from benchmarks.learning.results import write_page

    write_page(HERE)
    return 0


def _a_round(cell: Cell, method: str, *, seed: int, folder: Path) -> float:
    study = study_of(cell, method, seed=seed, folder=folder, fewer=True)
    study["study"]["labelled_only_baseline"] = False
    return (_seconds(study, rounds=_ROUNDS) - _seconds(study, rounds=1)) / (_ROUNDS - 1)


def _seconds(study: dict[str, Any], *, rounds: int) -> float:
    """Processor seconds of a study in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**study, "study": {**study["study"], "rounds": rounds}}, file)
        file.flush()
        done = subprocess.run([sys.executable, "-m", "benchmarks.learning.run", "--job", file.name], text=True,
                              capture_output=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["processor_seconds"])


if __name__ == "__main__":
    raise SystemExit(main())
