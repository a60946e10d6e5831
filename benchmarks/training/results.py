"""What was measured of training, as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Measured", "ratios", "shares_of_limit", "write_results"]

_LIMITS = {"semisilo fp32": "arithmetic alone fp32", "semisilo bf16": "arithmetic alone bf16"}
"""What a way of training cannot be quicker than: the same passes with images in memory, and nothing else."""

_BASE = ("plain", "plain, 2 loading processes")
"""The quicker of the two is what the others are compared with, turn by turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One way of training in one turn."""

    network: str
    size: int
    batch: int
    variant: str
    turn: int
    images_per_second: float
    """Images that were trained on, of the time for labelling and training."""
    threads: int = 0
    """That were measured or set; 0 for the plain loop."""


def ratios(measured: Sequence[Measured], variant: str) -> list[float]:
    """Of each turn: images per second over those of the quicker plain loop."""
    found = []
    for turn in sorted({each.turn for each in measured}):
        rates = {each.variant: each.images_per_second for each in measured if each.turn == turn}
        found.append(rates[variant] / max(rates[name] for name in _BASE))
    return found


def shares_of_limit(measured: Sequence[Measured], variant: str) -> list[float]:
    """Of each turn: images per second over those of its arithmetic alone; empty where that was not measured."""
    found = []
    for turn in sorted({each.turn for each in measured}):
        rates = {each.variant: each.images_per_second for each in measured if each.turn == turn}
        if _LIMITS.get(variant) in rates:
            found.append(rates[variant] / rates[_LIMITS[variant]])
    return found


def write_results(path: Path, measurements: Path) -> None:
    """Writes the page from the file of measurements; what a person read out of it is in notes.md."""
    data = json.loads(measurements.read_text())
    measured = [Measured(**each) for each in data["measured"]]
    machine = data["machine"]
    lines = [
        "# Training: a silo's round of SemiFL against a plain PyTorch loop", "",
        f"Made by `make bench-training` on {machine['processors']} cores of {machine['processor']}"
        f" ({machine['cpu_capability']}), torch {machine['torch']}, {machine['device']}; {data['turns']} turns of every"
        " way, each in a process of its own. The plain loop (`plain_semifl.py`) has torchvision's transforms in a"
        " DataLoader, torch's SGD and all threads. Images per second: those trained on, labelling included; the median,"
        " and the ratio to the quicker plain loop of the same turn: median (lowest to highest). Arithmetic alone"
        " (`bare_step.py`) is the same passes with images in memory, without augmentation, clipping and decay: the"
        " limit of what a loop around torch's operations reaches; the column says how much of it ours does.", ""]
    for case in dict.fromkeys((each.network, each.size, each.batch) for each in measured):
        of = [each for each in measured if (each.network, each.size, each.batch) == case]
        lines += [f"## {case[0]}, {case[1]} pixels, batch {case[2]}", "",
                  "| way | images/s | ratio | of arithmetic alone | threads |", "|---|---|---|---|---|"]
        for variant in dict.fromkeys(each.variant for each in of):
            rates = [each.images_per_second for each in of if each.variant == variant]
            threads = {each.threads for each in of if each.variant == variant}
            found = ratios(of, variant)
            reached = shares_of_limit(of, variant)
            lines.append(f"| {variant} | {statistics.median(rates):.0f} | {statistics.median(found):.2f}"
                         f" ({min(found):.2f} to {max(found):.2f}) |"
                         f" {f'{statistics.median(reached):.0%}' if reached else '–'} |"
                         f" {', '.join(map(str, sorted(threads))) if threads != {0} else 'all'} |")
        lines.append("")
    notes = path.parent / "notes.md"
    if notes.exists():
        lines.append(notes.read_text().rstrip())
    path.write_text("\n".join(lines).rstrip() + "\n")
