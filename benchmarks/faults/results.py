"""RESULTS.md of the faults."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trial", "write_results", "write_soak"]

_HEAD = """# Faults: what a running study survives, and how soon it goes on

Written by `make bench-faults`, on {processors} cores with a load average of {load:.1f} before it began: with other
work on the machine trust the columns without seconds. A coordinator and two silos, each two real processes over mutual
TLS, train SemiFL on scikit-learn's digits for six rounds of {round_seconds:.1f} s. Each fault meets a federation of its
own {turns} times, at a moment of the third round drawn from a seed. *Survived*: the study ended by itself, without a
hand on anything but what the fault says. *Same bits*: its last state has the digest of a study to which nothing
happened. *Goes on after*: from the end of the fault to the next committed round; median and longest. A process that is
started again needs two to three seconds of it to load PyTorch.

| fault | survived | same bits | goes on after, s |
|---|---|---|---|
"""


_SOAK_HEAD = """# Soak: {minutes:.0f} minutes of faults

Written by `make soak`, on {processors} cores, seed {seed}. {faults} faults met a study of {rounds} rounds; after each
of them the next round was committed, {median:.1f} s after the fault's end in the median and {longest:.1f} s at most.
The coordinator and the first silo lived through all of it. Each row is the median of the readings of a part of the
time: of each process memory in MB, open files and threads; of each folder files and MB. What grows by design: the
ledger, by every round and event, and the states of rounds that are kept, every fiftieth.

| minutes | round | coordinator: MB, files, threads | its folder | silo: MB, files, threads | its folder |
|---|---|---|---|---|---|
"""
_PARTS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came of a fault."""

    fault: str
    survived: bool
    same_bits: bool
    seconds: float
    """From the end of the fault to the next committed round."""
    problem: str = ""

    def text(self) -> str:
        """For the terminal."""
        if not self.survived:
            return f"NOT survived: {self.problem}"
        return f"goes on after {self.seconds:.1f} s, {'the same' if self.same_bits else 'OTHER'} bits"


def write_results(measured: Path, page: Path) -> None:
    """Writes the table from the file of what was measured."""
    made = json.loads(measured.read_text())
    trials: dict[str, list[Trial]] = {}
    for row in made["trials"]:
        trials.setdefault(row["fault"], []).append(Trial(**row))
    lines = [_HEAD.format(processors=made["processors"], load=made["load"],
                          round_seconds=made["round_seconds"], turns=made["turns"])]
    for fault, tried in trials.items():
        seconds = [trial.seconds for trial in tried if trial.survived]
        took = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else ""
        lines.append(f"| {fault} | {sum(trial.survived for trial in tried)} of {len(tried)} |"
                     f" {sum(trial.same_bits for trial in tried)} of {len(tried)} | {took} |\n")
    page.write_text("".join(lines))


def write_soak(measured: Path, page: Path) -> None:
    """Writes the table of a soak from the file of what was read."""
    made = json.loads(measured.read_text())
    readings = made["readings"]
    seconds = [each["seconds"] for each in readings]
    lines = [_SOAK_HEAD.format(minutes=made["minutes"], processors=made["processors"], seed=made["seed"],
                               faults=len(readings), rounds=readings[-1]["round"], median=statistics.median(seconds),
                               longest=max(seconds))]
    for part in range(_PARTS):
        rows = readings[part * len(readings) // _PARTS:(part + 1) * len(readings) // _PARTS]
        if not rows:
            continue
        cells = [f"{rows[0]['minutes']:.0f} to {rows[-1]['minutes']:.0f}", str(rows[-1]["round"])]
        for side in ("coordinator", "alpha"):
            memory = statistics.median(row["memory_bytes"][side] for row in rows) / 1e6
            files, threads = (statistics.median(row[what][side] for row in rows) for what in ("files", "threads"))
            number, size = (statistics.median(row["folders"][side][index] for row in rows) for index in (0, 1))
            cells += [f"{memory:.0f}, {files:.0f}, {threads:.0f}", f"{number:.0f}, {size / 1e6:.1f}"]
        lines.append(f"| {' | '.join(cells)} |\n")
    page.write_text("".join(lines))
