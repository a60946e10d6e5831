"""What secure aggregation costs: `python -m benchmarks.secure.run --help`, or `make bench-secure`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine_now
from benchmarks.secure.measure import measure_bytes_of_messages, measure_protocol, measure_vectors
from benchmarks.secure.results import write_results

HERE = Path(__file__).parent
_SILOS = (3, 10, 32)
_PARAMETERS = (1_500_000, 25_000_000)
_BITS = (16, 20, 24)
_QUICK_PARAMETERS = (100_000,)


def measure(*, quick: bool, repeats: int) -> dict[str, Any]:
    """Everything that RESULTS.md shows."""
    machine = machine_now()
    torch.set_num_threads(1)
    vectors = []
    for parameters in _QUICK_PARAMETERS if quick else _PARAMETERS:
        for silos in _SILOS:
            for bits in _BITS:
                print(f"{parameters:,} parameters, {silos} silos, {bits} bits", file=sys.stderr, flush=True)
                vectors.append(measure_vectors(parameters=parameters, silos=silos, bits=bits, repeats=repeats))
    protocol = [measure_protocol(silos=silos, repeats=repeats) | {"bytes": measure_bytes_of_messages(silos)}
                for silos in _SILOS]
    return {"machine": machine | {"load_after": os.getloadavg()[0]}, "quick": quick, "vectors": vectors,
            "protocol": protocol}


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure.run", description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="tries all on a small model; the results do not replace those of a full run")
    parser.add_argument("--repeats", type=int, default=5, help="times that each piece of work is done")
    parser.add_argument("--out", type=Path, default=None, help="folder of RESULTS.md and results.json")
    parser.add_argument("--only-write", action="store_true", help="writes RESULTS.md anew from results.json")
    asked = parser.parse_args()
    out = asked.out or (HERE.parents[1] / "build" / "bench-secure" if asked.quick else HERE)
    out.mkdir(parents=True, exist_ok=True)
    if not asked.only_write:
        everything = measure(quick=asked.quick, repeats=asked.repeats)
        (out / "results.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    write_results(json.loads((out / "results.json").read_text(encoding="utf-8")), out / "RESULTS.md")
    print(out / "RESULTS.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
