"""Seconds per round, bytes and memory of a real semisilo federation on this machine.

    python -m benchmarks.wire.semisilo_rounds --silos 2 --parameters 1500000 --rounds 12 --wire raw --json OUT

A coordinator and K silos, each two processes, over mutual TLS on localhost. Nothing is trained and nothing evaluated:
the method `perturb` (benchmarks/wire/perturb) adds noise to the model at the silos and averages it. Times are those of
the ledger: from one round's commit to the next one's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.wire.local_federation import STUDY, LocalFederation, StudyShape, plugin_on_path
from semisilo.common import __version__
from semisilo.common.text.cli_errors import interrupt_on_termination
from semisilo.demo.processes import Processes, StepFailed

__all__ = ["measure"]

_NOTES = (
    "Real processes on localhost: one coordinator and K silos, two processes each, mutual TLS, durable ledger and files"
    " as always. No training, no evaluation. Each silo draws its noise before the second round; making a perturbation"
    " of it is one multiplication. Peaks are VmHWM of a side's two processes added up, mapped files included.")


def measure(shape: StudyShape, *, say: Callable[[str], None], keep: Path | None = None,
            seconds: float = 900.0) -> dict[str, Any]:
    """Runs one federation and returns what came out; no process is left behind.

    Args:
        keep: a folder that stays, for looking at logs; None for a temporary one.
        seconds: the study may take so long.
    Raises: StepFailed with the end of the log of what failed.
    """
    with tempfile.TemporaryDirectory(prefix="semisilo-rounds-") as temporary:
        folder = keep or Path(temporary)
        with plugin_on_path(folder), Processes(logs=folder / "logs") as processes:
            return _measure(shape, LocalFederation(folder, processes), say, seconds)


def _measure(shape: StudyShape, federation: LocalFederation, say: Callable[[str], None],
             seconds: float) -> dict[str, Any]:
    names = [f"silo-{number:03}" for number in range(shape.silos)]
    say(f"{shape.silos} silos, {shape.parameters:,} parameters, density {shape.density}, wire {shape.wire}")
    federation.start_coordinator()
    federation.enrol(names)
    for name in names:
        federation.permit(name, shape.parameters)
        federation.start_silo(name)
    federation.wait_until_joined(len(names))
    time.sleep(1.0)
    federation.look()
    imports = (federation.coordinator.peak_bytes, _largest(federation))
    say("all silos have joined; the study begins")
    federation.queue(shape)
    cpu: dict[int, dict[str, float]] = {}

    def note(number: int) -> None:
        cpu[number] = federation.cpu_seconds()

    federation.wait_until_complete(seconds=seconds, say=say, on_round=note)
    federation.look()
    first, last = min(number for number in cpu if number), max(cpu)
    used, now = cpu[first], cpu[last]
    facts: dict[str, Any] = {"system": "semisilo", "version": __version__, "silos": shape.silos,
                             "parameters": shape.parameters, "density": shape.density, "wire": shape.wire}
    facts |= _times(federation)
    facts |= _bytes(federation, shape.silos)
    return facts | {
        "coordinator_peak_bytes": federation.coordinator.peak_bytes,
        "coordinator_import_bytes": imports[0],
        "silo_peak_bytes": _largest(federation),
        "silo_import_bytes": imports[1],
        "cpu_seconds_per_round": {role: (now[role] - used[role]) / (last - first) for role in now} if last > first
        else {},
        "notes": _NOTES,
    }


def _largest(federation: LocalFederation) -> int:
    return max(silo.peak_bytes for silo in federation.silos.values())


def _times(federation: LocalFederation) -> dict[str, Any]:
    """Seconds of the rounds, and of their parts, the mean over all but the first round."""
    rows = federation.query(
        "SELECT round.number, round.opened_unix, phase.opened_unix, phase.closed_unix, round.closed_unix,"
        " (SELECT max(given_unix) FROM task WHERE task.study = round.study AND task.round = round.number),"
        " (SELECT min(declared_unix) FROM declared_update JOIN task USING (task_id)"
        "   WHERE task.study = round.study AND task.round = round.number),"
        " (SELECT max(declared_unix) FROM declared_update JOIN task USING (task_id)"
        "   WHERE task.study = round.study AND task.round = round.number),"
        " (SELECT max(accepted_unix) FROM declared_update JOIN task USING (task_id)"
        "   WHERE task.study = round.study AND task.round = round.number)"
        " FROM round JOIN phase ON phase.study = round.study AND phase.round = round.number"
        " WHERE round.study = ? AND round.number > 0 ORDER BY round.number", STUDY)
    committed = [row[4] for row in rows]
    names = ("last commit to round opened", "round opened to phase opened (tasks written)",
             "phase opened to last task given", "last task given to first update declared",
             "first to last update declared", "last update declared to last accepted",
             "last accepted to phase closed", "phase closed to round committed (fold, evaluate)")
    parts = []
    for before, row in zip(committed, rows[1:], strict=False):
        _, opened, phase_opened, phase_closed, closed, given, first, last, accepted = row
        marks = (before, opened, phase_opened, given, first, last, accepted, phase_closed, closed)
        parts.append([end - start for start, end in itertools.pairwise(marks)])
    return {
        "seconds_per_round": [after - before for before, after in itertools.pairwise(committed)],
        "first_round_seconds": committed[0] - rows[0][1],
        "phase_seconds": {name: statistics.mean(part[index] for part in parts) for index, name in enumerate(names)},
    }


def _bytes(federation: LocalFederation, silos: int) -> dict[str, Any]:
    """Per silo and round, the mean over all rounds but the first."""
    (rounds,), = federation.query("SELECT max(number) - 1 FROM round WHERE study = ?", STUDY)
    found: dict[str, Any] = {}
    for direction in ("up", "down"):
        for kind, name in (("wire", f"{direction}_bytes"), ("message", f"{direction}_message_bytes"),
                           ("payload", f"{direction}_payload_bytes")):
            (total,), = federation.query(
                "SELECT coalesce(sum(bytes), 0) FROM cost WHERE study = ? AND round > 1 AND direction = ? AND kind = ?"
                " AND silo <> ''", STUDY, direction, kind)
            found[name] = total / (silos * rounds)
    return found


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.semisilo_rounds",
                                     description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--silos", type=int, default=2, help="silos, K")
    parser.add_argument("--parameters", type=int, default=1_500_000, help="float32 parameters, P, at least 1000")
    parser.add_argument("--density", type=float, default=1.0, help="share of elements that a silo changes, 0 to 1")
    parser.add_argument("--rounds", type=int, default=10, help="rounds, the first of which is reported apart")
    parser.add_argument("--wire", default="raw", help="[wire] uplink and downlink of the study")
    parser.add_argument("--json", type=Path, default=None, help="where to write the result; standard output as well")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder that keeps the federation and its logs")
    parser.add_argument("--seconds", type=float, default=900.0, help="longest that the study may take")
    asked = parser.parse_args()
    if asked.silos < 1 or asked.rounds < 2 or asked.parameters < 1000:
        parser.error("at least 1 silo, 2 rounds and 1000 parameters")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    if asked.keep is not None:
        asked.keep.mkdir(parents=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    shape = StudyShape(silos=asked.silos, parameters=asked.parameters, density=asked.density, rounds=asked.rounds,
                       wire=asked.wire)
    try:
        with interrupt_on_termination():
            facts = measure(shape, say=say, keep=asked.keep and asked.keep.resolve(), seconds=asked.seconds)
    except StepFailed as error:
        print(f"{error.line()}\n{error.log_tail}", file=sys.stderr)
        return 1
    text = json.dumps(facts, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
