"""One real coordinator and many silos: seconds per round and memory for 10, 50 and 200, and whether any is lost.

    python -m benchmarks.wire.many_silos --silos 200 --json OUT

The silos are real agents, each with a certificate and a connection of its own (benchmarks/wire/stub_silos.py), but
several share a process, and none trains. The coordinator is `coordinator serve` as always. One more silo asks a small
question again and again (benchmarks/wire/probe.py): how long it waits for the answer is the latency, while all others
wait for a study and while they work. With `--registered` the roster has as many more members, who never call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.wire.local_federation import STUDY, LocalFederation, StudyShape, plugin_on_path
from benchmarks.wire.process_use import ProcessUse
from semisilo.common import __version__
from semisilo.common.text.cli_errors import interrupt_on_termination
from semisilo.demo.processes import Processes, StepFailed

__all__ = ["measure"]

_SILOS_PER_PROCESS = 50
_SMALLER = (10, 50)
_PROBE = "probe"
_IDLE_SECONDS = 10.0
"""So long all wait for a study while the probe asks."""


def measure(silos: int, *, parameters: int, rounds: int, say: Callable[[str], None],
            keep: Path | None = None, seconds: float = 600.0, registered: int = 0) -> dict[str, Any]:
    """Runs one federation of stub silos and returns what came out; no process is left behind.

    Args:
        keep: a folder that stays, for looking at logs; None for a temporary one.
        seconds: the study may take so long.
        registered: members that have joined once and never call, beside the silos.
    Raises: StepFailed with the end of the log of what failed.
    """
    with tempfile.TemporaryDirectory(prefix="semisilo-many-") as temporary:
        folder = keep or Path(temporary)
        with plugin_on_path(folder), Processes(logs=folder / "logs") as processes:
            return _measure(LocalFederation(folder, processes), processes, silos, parameters, rounds, say, seconds,
                            registered)


def _measure(federation: LocalFederation, processes: Processes, silos: int, parameters: int, rounds: int,
             say: Callable[[str], None], seconds: float, registered: int) -> dict[str, Any]:
    names = [f"silo-{number:04}" for number in range(silos)]
    say(f"{silos} silos, {parameters:,} parameters, {rounds} rounds")
    federation.start_coordinator()
    federation.enrol([*names, _PROBE])
    federation.register([f"registered-{number:05}" for number in range(registered)])
    say("all have their certificates")
    for name in names:
        federation.permit(name, parameters)
    federation.look()
    light, together = federation.coordinator.own_peak_bytes, federation.coordinator.peak_bytes
    alone = federation.coordinator.own_resident_bytes
    for start in range(0, silos, _SILOS_PER_PROCESS):
        name = f"stubs-{start:04}"
        federation.silos[name] = ProcessUse(processes.start(
            name, [sys.executable, "-m", "benchmarks.wire.stub_silos", str(federation.homes),
                            *names[start:start + _SILOS_PER_PROCESS]]))
    federation.wait_until_joined(silos + registered)
    waits = federation.folder / "waits"
    processes.start(_PROBE, [sys.executable, "-m", "benchmarks.wire.probe", str(federation.homes / _PROBE), str(waits)])
    say("all have joined")
    time.sleep(_IDLE_SECONDS)
    connected, begun = federation.coordinator.own_resident_bytes, time.time()
    say("the study begins")
    federation.queue(StudyShape(silos=silos, parameters=parameters, rounds=rounds))
    cpu: dict[int, dict[str, float]] = {}

    def note(number: int) -> None:
        cpu[number] = federation.cpu_seconds()

    federation.wait_until_complete(seconds=seconds, say=say, on_round=note)
    federation.look()
    first, last = min(number for number in cpu if number), max(cpu)
    rows = federation.query("SELECT opened_unix, closed_unix FROM round WHERE study = ? AND number > 0 ORDER BY number",
                            STUDY)
    states = dict(federation.query("SELECT state, count(*) FROM task WHERE study = ? GROUP BY state", STUDY))
    wire = dict(federation.query("SELECT direction, sum(bytes) FROM cost WHERE study = ? AND kind = 'wire' AND"
                                 " round > 1 GROUP BY direction", STUDY))
    return {
        "silos": silos, "parameters": parameters, "rounds": rounds,
        "first_round_seconds": rows[0][1] - rows[0][0],
        "seconds_per_round": [after[1] - before[1] for before, after in itertools.pairwise(rows)],
        "updates": states.get("updated", 0), "lost": silos * rounds - states.get("updated", 0),
        "up_bytes": wire["up"] / (silos * (rounds - 1)), "down_bytes": wire["down"] / (silos * (rounds - 1)),
        "cpu_seconds_per_round": {role: (cpu[last][role] - cpu[first][role]) / max(1, last - first)
                                  for role in ("coordinator", "coordinator compute", "silos")},
        "registered": registered,
        "waits_while_idle": _waits(waits, until=begun), "waits_in_rounds": _waits(waits, since=begun),
        "coordinator_bytes_alone": alone, "coordinator_bytes_connected": connected,
        "coordinator_bytes_after": federation.coordinator.own_resident_bytes,
        "coordinator_peak_bytes": federation.coordinator.own_peak_bytes,
        "coordinator_compute_peak_bytes": federation.coordinator.peak_bytes - federation.coordinator.own_peak_bytes,
        "coordinator_import_bytes": light, "coordinator_compute_import_bytes": together - light,
    }


def _waits(path: Path, *, since: float = 0.0, until: float = math.inf) -> dict[str, float]:
    """How long the probe has waited for its answers: how many there were, and seconds at some of them by rank."""
    words = [line.split() for line in path.read_text().splitlines()]
    asked = [(float(took), failed) for when, took, *failed in words if since < float(when) <= until]
    seconds = sorted(took for took, _ in asked)
    if not seconds:
        return {"answers": 0}
    return {"answers": len(seconds), "failed": sum(bool(failed) for _, failed in asked),
            **{f"p{share}": seconds[min(len(seconds) - 1, len(seconds) * share // 100)]
               for share in (50, 90, 99)}, "longest": seconds[-1]}


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.many_silos",
                                     description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--silos", type=int, default=200, help="silos of the largest federation; 10 and 50 before it")
    parser.add_argument("--only", action="store_true", help="only the largest federation")
    parser.add_argument("--parameters", type=int, default=100_000, help="float32 parameters, at least 1000")
    parser.add_argument("--rounds", type=int, default=6, help="rounds, the first of which is reported apart")
    parser.add_argument("--registered", type=int, default=0, help="further members, who never call")
    parser.add_argument("--json", type=Path, default=None, help="where to write the result; standard output as well")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest that one study may take")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder that keeps federations and their logs")
    asked = parser.parse_args()
    if asked.silos < 1 or asked.rounds < 2 or asked.parameters < 1000:
        parser.error("at least 1 silo, 2 rounds and 1000 parameters")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    found = []
    smaller = () if asked.only else tuple(count for count in _SMALLER if count < asked.silos)
    try:
        with interrupt_on_termination():
            for count in (*smaller, asked.silos):
                found.append(measure(count, parameters=asked.parameters, rounds=asked.rounds, say=say,
                                     keep=asked.keep and asked.keep.resolve() / str(count), seconds=asked.seconds,
                                     registered=asked.registered))
                last = found[-1]
                say(f"{count} silos: {statistics.median(last['seconds_per_round']):.2f} s a round, {last['lost']} lost;"
                    f" the slowest answer but 1 % in {1000 * last['waits_in_rounds'].get('p99', 0):.0f} ms")
    except StepFailed as error:
        print(f"{error.line()}\n{error.log_tail}", file=sys.stderr)
        return 1
    text = json.dumps({"system": "semisilo", "version": __version__, "federations": found}, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n", encoding="utf-8")
    return int(any(each["lost"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
