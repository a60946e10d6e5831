"""RESULTS.md of the faults."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trial", "write_results"]

_HEAD = """# Faults: what a running study survives, and how soon it goes on

Written by `make bench-faults`, on {processors} cores. A coordinator and two silos, each two real processes over mutual
TLS, train SemiFL on scikit-learn's digits for six rounds of {round_seconds:.1f} s. Each fault meets a federation of its
own {turns} times, at a moment of the third round drawn from a seed. *Survived*: the study ended by itself, without a
hand on anything but what the fault says. *Same bits*: its last state has the digest of a study to which nothing
happened. *Goes on after*: from the end of the fault to the next committed round; median and longest. A process that is
started again needs two to three seconds of it to load PyTorch.

| fault | survived | same bits | goes on after, s |
|---|---|---|---|
"""


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
    lines = [_HEAD.format(processors=made["processors"], round_seconds=made["round_seconds"], turns=made["turns"])]
    for fault, tried in trials.items():
        seconds = [trial.seconds for trial in tried if trial.survived]
        took = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else ""
        lines.append(f"| {fault} | {sum(trial.survived for trial in tried)} of {len(tried)} |"
                     f" {sum(trial.same_bits for trial in tried)} of {len(tried)} | {took} |\n")
    page.write_text("".join(lines))
