"""Ways of training beside each other, in one run on one machine: `python -m benchmarks.training.run --help`.

Every way is a process of its own (`measure.py`); they take turns, so that what else the machine does meets all of them.
Ratios are of one turn each. What was measured is kept as JSON; `--write` makes RESULTS.md of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.machine import processor_name
from benchmarks.training.measure import VARIANTS
from benchmarks.training.results import Measured, write_results
from semisilo.common.process.processors import usable_processors

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained."""

    network: str
    size: int
    batch: int
    images: int
    epochs: int


CASES = (Case("wide_resnet_28_2", 32, 10, 200, 2), Case("wide_resnet_28_2", 32, 64, 320, 2),
         Case("small_cnn", 28, 10, 1000, 2))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all cases, then writes the table."""
    parser = argparse.ArgumentParser(description="A silo's round of SemiFL against a plain PyTorch loop.")
    parser.add_argument("--turns", type=int, default=5, help="of every way of training")
    parser.add_argument("--measurements", type=Path, default=HERE / "training.json", help="file of what was measured")
    parser.add_argument("--only", default="", help="only cases whose network begins with this")
    chosen = parser.parse_args(arguments)
    found: list[Measured] = []
    for case in CASES:
        if not case.network.startswith(chosen.only):
            continue
        for turn in range(chosen.turns):
            for variant in VARIANTS:
                found.append(_measured(case, variant, turn))
                print(f"{case.network}, batch {case.batch}, {variant}: {found[-1].images_per_second:.1f} images/s",
                      flush=True)
    machine = {"processor": processor_name(), "processors": usable_processors(), "torch": str(torch.__version__),
               "cpu_capability": torch.backends.cpu.get_cpu_capability(),
               "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    chosen.measurements.write_text(json.dumps({"machine": machine, "turns": chosen.turns,
                                               "measured": [asdict(each) for each in found]}, indent=1) + "\n")
    write_results(HERE / "RESULTS.md", chosen.measurements)


def _measured(case: Case, variant: str, turn: int) -> Measured:
    words = [f"--{name}={getattr(case, name)}" for name in ("network", "size", "batch", "images", "epochs")]
    answer = subprocess.run([sys.executable, "-m", "benchmarks.training.measure", variant, *words], check=True,
                            capture_output=True, text=True, cwd=HERE.parents[1])
    said = json.loads(answer.stdout.splitlines()[-1])
    return Measured(network=case.network, size=case.size, batch=case.batch, variant=variant, turn=turn,
                    images_per_second=said["images_per_second"], threads=said.get("threads", 0))


if __name__ == "__main__":
    main()
