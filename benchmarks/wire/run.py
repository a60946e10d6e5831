"""`make bench-wire`: measures everything that RESULTS.md shows, in one run, and writes it.

    python -m benchmarks.wire.run                 # all; what an interrupted run has measured already is kept
    python -m benchmarks.wire.run --fresh         # all anew
    python -m benchmarks.wire.run --quick         # a small model, two rounds: does everything work?
    python -m benchmarks.wire.run --only nvflare flower
    python -m benchmarks.wire.run --report        # write RESULTS.md anew from results.json

Every measurement is a process of its own with a federation of its own. What one starts is ended when it ends, also on
Ctrl-C. A measurement that fails is shown with its reason and costs no other. Needs Linux and, for the peers, virtual
environments under build/peers (made by `make bench-wire`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import processor_name
from benchmarks.wire.cells import FULL, QUICK, SYSTEMS, Cell, Plan, command, order
from benchmarks.wire.results import write_results
from benchmarks.wire.watch import Processes

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def main() -> int:
    """Entry point of the command; 1 if a measurement failed."""
    asked = _arguments()
    plan = QUICK if asked.quick else FULL
    output = asked.build / "quick" if asked.quick else _HERE
    output.mkdir(parents=True, exist_ok=True)
    if asked.report:
        write_results(json.loads((output / "results.json").read_text()), output)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = asked.build / plan.name / "cells"
    if asked.fresh:
        shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    try:
        everything = _measure_all(plan, order(plan, asked.only), kept, asked.peers, asked.seconds)
    except KeyboardInterrupt:
        print("interrupted; what was measured so far is kept, and the next run goes on from there", file=sys.stderr)
        return 130
    if not asked.only:
        (output / "results.json").write_text(json.dumps(everything, indent=1) + "\n")
        write_results(everything, output)
        _say(f"written: {output / 'RESULTS.md'}")
    else:
        _say("not written: RESULTS.md needs all systems; run again without --only, finished measurements are kept")
    failed = [cell for cell in everything["cells"] if "failed" in cell]
    for cell in failed:
        _say(f"failed: {cell['key']}: {cell['failed']}")
    return 1 if failed else 0


def _measure_all(plan: Plan, cells: list[Cell], kept: Path, peers: Path, longest_seconds: float) -> dict[str, Any]:
    """Runs what is not there yet; returns everything."""
    began, load = time.monotonic(), os.getloadavg()
    left = [cell for cell in cells if not (kept / f"{cell.key}.json").exists()]
    expected = sum(plan.expected_seconds(cell) for cell in left)
    _say(f"{len(left)} of {len(cells)} measurements to do, some {expected / 60:.0f} minutes")
    limits = _limits(plan, kept)
    found, spent, spent_expected = [], 0.0, 0.0
    for number, cell in enumerate(cells, start=1):
        path = kept / f"{cell.key}.json"
        if not path.exists():
            speed = spent / spent_expected if spent_expected > 60 else 1.0
            _say(f"[{number}/{len(cells)}] {cell.system.name}, K = {cell.silos}, P = {cell.parameters:,}, density "
                 f"{cell.density:g}; some {speed * expected / 60:.0f} minutes left")
            start = time.monotonic()
            facts = _measure(cell, plan, kept, peers, longest_seconds)
            spent, spent_expected = spent + time.monotonic() - start, spent_expected + plan.expected_seconds(cell)
            expected -= plan.expected_seconds(cell)
            _say(f"    failed: {facts['failed']}" if "failed" in facts else
                 f"    {' '.join(f'{seconds:.2f}' for seconds in facts['seconds_per_round'])} s a round")
        else:
            facts = json.loads(path.read_text())
        found.append(facts)
    return {"machine": _machine(load), "plan": plan.name, "minutes": (time.monotonic() - began) / 60,
            "limits": limits, "cells": found}


def _measure(cell: Cell, plan: Plan, kept: Path, peers: Path, longest_seconds: float) -> dict[str, Any]:
    """One measurement in a process of its own; a failure is a result too, but is not kept."""
    folder = kept.parent / "runs" / cell.key
    shutil.rmtree(folder, ignore_errors=True)
    result = kept / f"{cell.key}.measured"
    result.unlink(missing_ok=True)
    facts: dict[str, Any] = {"key": cell.key, "system_key": cell.system.key, "silos": cell.silos,
                             "parameters": cell.parameters, "density": cell.density,
                             "load_before": os.getloadavg()[0], "time": _now()}
    words = command(cell, rounds=plan.timed_rounds(cell), result=result, folder=folder / "run", peers=peers)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    with Processes(folder) as processes:
        try:
            processes.start("adapter", words, environment=environment, folder=_ROOT)
            process = processes.started["adapter"]
            try:
                code = process.wait(longest_seconds)
            except BaseException:
                process.terminate()  # it ends what it has started; what is left then is ended here
                process.wait(20)
                raise
            if code != 0 or not result.exists():
                return {**facts, "failed": f"ended with {code}: {processes.tail('adapter', 600)}"}
        except subprocess.TimeoutExpired:
            return {**facts, "failed": f"not done after {longest_seconds:.0f} s: {processes.tail('adapter', 600)}"}
        except OSError as error:
            return {**facts, "failed": str(error)}
    facts |= {name: value for name, value in json.loads(result.read_text()).items() if name not in facts}
    part = kept / f"{cell.key}.part"
    part.write_text(json.dumps(facts, indent=1))
    part.rename(kept / f"{cell.key}.json")
    result.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    return facts


def _limits(plan: Plan, kept: Path) -> dict[str, Any]:
    path = kept / "limits.json"
    if not path.exists():
        _say("raw limits")
        cells = [f"{silos}x{parameters}" for silos in plan.silos for parameters in plan.parameters]
        densities = [f"{density:g}" for density in plan.densities if density < 1]
        with Processes(kept.parent / "runs") as processes:
            processes.start("limits", [sys.executable, "-m", "benchmarks.wire.limits", "--json", str(path), "--cells",
                                       *cells, "--densities", *densities],
                            environment={**os.environ, "PYTHONPATH": str(_ROOT)}, folder=_ROOT)
            if processes.started["limits"].wait(300) != 0:
                raise RuntimeError(f"The raw limits failed: {processes.tail('limits')}")
    limits: dict[str, Any] = json.loads(path.read_text())
    return limits


def _machine(load: tuple[float, float, float]) -> dict[str, Any]:
    """Where this was measured."""
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"cpu": processor_name(), "cores": len(os.sched_getaffinity(0)), "memory_bytes": memory,
            "kernel": platform.release(), "python": platform.python_version(), "load_before": load, "date": _now()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.run", description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 000 parameters, two silos, two rounds")
    parser.add_argument("--fresh", action="store_true", help="measure again what is there already")
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md anew from results.json")
    parser.add_argument("--only", nargs="+", default=[], metavar="SYSTEM",
                        choices=sorted({system.key for system in SYSTEMS} | {"semisilo"}), help="these systems only")
    parser.add_argument("--peers", type=Path, default=_ROOT / "build" / "peers",
                        help="holds the peers' virtual environments, flower and nvflare")
    parser.add_argument("--build", type=Path, default=_ROOT / "build" / "bench-wire",
                        help="keeps measurements until all are done, and what they write meanwhile")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest that one measurement may take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
