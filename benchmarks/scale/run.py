"""Rounds at every size, in one run on one machine: `python -m benchmarks.scale.run --help`, or `make bench-scale`.

Stub silos: real agents with certificates, connections and files of their own, which do not train. Beside each size the
floor is measured, bare gRPC that carries the same bytes (`bare_grpc.py`), so that ratios are of one machine at one
time. Then federations with many registered silos, large models, simulations, and commands on a long record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_now
from benchmarks.scale import bare_grpc, commands
from benchmarks.scale.results import write_results
from benchmarks.wire import many_silos, semisilo_rounds
from benchmarks.wire.local_federation import StudyShape
from semisilo.common.text.cli_errors import interrupt_on_termination
from semisilo.demo.processes import StepFailed

HERE = Path(__file__).parent
_PARAMETERS = 100_000
_ROUNDS = {8: 12, 50: 8, 200: 6, 1000: 4}
_QUICK_ROUNDS = {8: 4, 20: 3}
_LARGE = ((2, 1_500_000, 8), (8, 25_000_000, 4))
_QUICK_LARGE = ((2, 150_000, 3),)
_REGISTERED, _ASKED, _REGISTERED_ROUNDS = 10_000, 100, 5
_QUICK_REGISTERED, _QUICK_ASKED, _QUICK_REGISTERED_ROUNDS = 500, 10, 3
_SIMULATIONS, _QUICK_SIMULATIONS = "start,many,again,engines,beside", "again"
_QUICK_COMMANDS = {"silos": 20, "rounds": 10, "repeats": 1}
_PAYLOAD_FRAMING = 1.0012
"""File of a payload over its elements: manifest and headers of blocks."""


def measure(*, quick: bool, say: Callable[[str], None], seconds: float) -> dict[str, Any]:
    """Everything that RESULTS.md shows.

    Args:
        seconds: one study may take so long.
    Raises: StepFailed.
    """
    machine = machine_now()
    sizes = []
    for silos, rounds in (_QUICK_ROUNDS if quick else _ROUNDS).items():
        sizes.append({"semisilo": many_silos.measure(silos, parameters=_PARAMETERS, rounds=rounds, say=say,
                                                     seconds=seconds),
                      "floor": _floor(silos, _PARAMETERS, rounds, say)})
    registered, asked, rounds = ((_QUICK_REGISTERED, _QUICK_ASKED, _QUICK_REGISTERED_ROUNDS) if quick else
                                 (_REGISTERED, _ASKED, _REGISTERED_ROUNDS))
    rosters = [many_silos.measure(asked, parameters=_PARAMETERS, rounds=rounds, say=say, seconds=seconds,
                                  registered=more) for more in (0, registered)]
    large = []
    for silos, parameters, rounds in _QUICK_LARGE if quick else _LARGE:
        shape = StudyShape(silos=silos, parameters=parameters, rounds=rounds)
        large.append({"semisilo": semisilo_rounds.measure(shape, say=say, seconds=seconds),
                      "floor": _floor(silos, parameters, rounds, say)})
    say("simulations")
    simulations = _simulations(_QUICK_SIMULATIONS if quick else _SIMULATIONS)
    say("commands")
    return {"machine": machine, "quick": quick, "sizes": sizes, "rosters": rosters, "large": large,
            "simulations": simulations,
            "commands": commands.measure(say=say, **(_QUICK_COMMANDS if quick else {}))}


def _floor(silos: int, parameters: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    found = bare_grpc.measure(silos, size_bytes=round(4 * parameters * _PAYLOAD_FRAMING), rounds=max(5, rounds))
    say(f"bare gRPC, {silos} callers: {found['median_seconds']:.3f} s a round")
    return found


def _simulations(names: str) -> dict[str, Any]:
    answer = subprocess.run([sys.executable, "-m", "benchmarks.scale.simulation", "--only", names], check=True,
                            stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1])
    found: dict[str, Any] = {}
    for line in answer.stdout.splitlines():
        name, _, figures = line.partition(" ")
        if figures.startswith("{"):
            found[name] = json.loads(figures)
    return found


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.run", description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="tries all on small federations; the results do not replace those of a full run")
    parser.add_argument("--out", type=Path, default=None, help="folder of RESULTS.md and results.json")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest that one study may take")
    parser.add_argument("--only-write", action="store_true", help="writes RESULTS.md anew from results.json")
    asked = parser.parse_args()
    out = asked.out or (HERE.parents[1] / "build" / "bench-scale" if asked.quick else HERE)
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    if not asked.only_write:
        try:
            with interrupt_on_termination():
                everything = measure(quick=asked.quick, say=say, seconds=asked.seconds)
        except StepFailed as error:
            print(f"{error.line()}\n{error.log_tail}", file=sys.stderr)
            return 1
        (out / "results.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    everything = json.loads((out / "results.json").read_text())
    write_results(everything, out / "RESULTS.md")
    print(out / "RESULTS.md")
    return int(any(each["semisilo"]["lost"] for each in everything["sizes"]))


if __name__ == "__main__":
    sys.exit(main())
