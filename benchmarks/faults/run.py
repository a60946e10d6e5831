"""Puts a federation of real processes through one fault after the other: `python -m benchmarks.faults.run --help`.

Each fault meets a federation of its own, at a moment of a round drawn from a seed. Measured: whether its study ends by
itself with the bits of an undisturbed one, and how long after the end of the fault the next round is committed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.faults.faults import FAULTS, Fault, Site
from benchmarks.faults.results import Trial, write_results
from semisilo.common.process.processors import usable_processors
from tests.processes import STUDY, FederationOfProcesses, federation_behind_a_proxy
from tests.shifted_clocks import LIBFAKETIME, give_clocks

HERE = Path(__file__).parent
ROUNDS = 6
BEFORE = 2
"""Rounds that are committed before a fault."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A study to which nothing happens."""

    digest: str
    round_seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Tries every fault, then writes the table."""
    parser = argparse.ArgumentParser(description="Faults, the bits after them, and how soon a study goes on.")
    parser.add_argument("--turns", type=int, default=3, help="trials of every fault, at other moments")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments")
    parser.add_argument("--only", default="", help="only faults whose name contains this; writes no table")
    chosen = parser.parse_args(arguments)
    trials, load = list[Trial](), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = _undisturbed(Path(folder) / "undisturbed")
        print(f"undisturbed: {undisturbed.round_seconds:.1f} s a round", flush=True)
        for fault in FAULTS:
            if chosen.only not in fault.name or (fault.needs_faketime and LIBFAKETIME is None):
                continue
            for turn in range(chosen.turns):
                draw = random.Random(f"{chosen.seed} {fault.name} {turn}")
                trials.append(_tried(Path(folder) / f"{len(trials)}", fault, undisturbed,
                                     after_seconds=draw.random() * undisturbed.round_seconds))
                print(f"{fault.name}: {trials[-1].text()}", flush=True)
    if not chosen.only:
        made = {"processors": usable_processors(), "load": load, "round_seconds": undisturbed.round_seconds,
                "turns": chosen.turns, "trials": [asdict(trial) for trial in trials]}
        (HERE / "results.json").write_text(json.dumps(made, indent=1) + "\n")
        write_results(HERE / "results.json", HERE / "RESULTS.md")


def _undisturbed(folder: Path) -> Undisturbed:
    folder.mkdir()
    with federation_behind_a_proxy(folder, study=STUDY.replace("rounds = 3", f"rounds = {ROUNDS}")) as (processes, _):
        processes.start()
        digest = processes.finish()
        ends = [float(str(unix)) for unix, in processes.query(
            "SELECT closed_unix FROM round WHERE number > 0 ORDER BY number")]
    return Undisturbed(digest, statistics.median(late - early for early, late in itertools.pairwise(ends)))


def _tried(folder: Path, fault: Fault, undisturbed: Undisturbed, *, after_seconds: float) -> Trial:
    """One fault, `after_seconds` into a round."""
    folder.mkdir()
    with federation_behind_a_proxy(folder, study=STUDY.replace("rounds = 3", f"rounds = {ROUNDS}")) as (
            processes, proxy):
        if fault.needs_faketime:
            give_clocks(processes)
        processes.start()
        processes.wait_for(lambda: _committed(processes) >= BEFORE)
        time.sleep(after_seconds)
        site = Site(processes, proxy)
        fault.begin(site)
        time.sleep(fault.lasts_seconds)
        fault.end(site)
        ended, before = time.monotonic(), _committed(processes)
        try:
            processes.wait_for(lambda: _committed(processes) > before)
            seconds = time.monotonic() - ended
            digest = processes.finish()
        except (AssertionError, OSError) as error:
            return Trial(fault=fault.name, survived=False, same_bits=False, seconds=0.0, problem=str(error)[:2000])
        return Trial(fault=fault.name, survived=True, same_bits=digest == undisturbed.digest, seconds=seconds)


def _committed(processes: FederationOfProcesses) -> int:
    (number,), = processes.query("SELECT coalesce(max(number), 0) FROM round WHERE state = 'completed'")
    assert isinstance(number, int)
    return number


if __name__ == "__main__":
    main()
