"""Accuracy against uplink bytes of every lossy form: `python -m benchmarks.lossy.run --help`.

Each study is SemiFL with one form of the uplink, all else equal: same seed, same images, same order. What was computed
once is kept in the folder of measurements and not computed again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.lossy.results import Measured, write_results
from benchmarks.lossy.simulation import NUM_SILOS, Setting, bloodcells, digits, simulated

HERE = Path(__file__).parent
NOTES = HERE / "notes.md"
"""What a person read out of the tables; the last part of RESULTS.md."""
Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True, slots=True)
class Form:
    """One line of the table."""

    uplink: str
    rounding: Rounding = "nearest"
    """Only int8 and int4 look at it."""
    error_feedback: bool = True


FORMS = (
    Form("smallest"),
    *(Form("bf16", error_feedback=feedback) for feedback in (True, False)),
    *(Form(uplink, rounding, feedback) for uplink in ("int8", "int4") for rounding in ("stochastic", "nearest")
      for feedback in (True, False)),
    *(Form(uplink, error_feedback=feedback) for uplink in ("top-k 10%", "top-k 1%") for feedback in (True, False)),
    *(Form("top-k 1% int8", rounding, feedback) for rounding in ("stochastic", "nearest")
      for feedback in (True, False)),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing, then writes table and figure."""
    parser = argparse.ArgumentParser(description="Accuracy against uplink bytes of every lossy form.")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a study")
    parser.add_argument("--seeds", type=int, default=3, help="studies of each form, with seeds 1, 2, ...")
    parser.add_argument("--bloodcells", type=Path, help="an .npz of blood cells in MedMNIST's layout; default: digits")
    parser.add_argument("--only", default="", help="only forms whose name begins with this, for example top-k")
    parser.add_argument("--measurements", type=Path, default=Path("build/lossy"), help="folder of what was computed")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md and figure from all measurements")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    name = "bloodcells" if chosen.bloodcells else "digits"
    make: Callable[..., Setting] = partial(bloodcells, chosen.bloodcells) if chosen.bloodcells else digits
    for seed in range(1, chosen.seeds + 1):
        for form in FORMS:
            if form.uplink.startswith(chosen.only):
                _measure(chosen.measurements / f"{name}-{chosen.rounds}", make, form, seed=seed, rounds=chosen.rounds)
    if chosen.write:
        order = [(form.uplink, form.rounding, form.error_feedback) for form in FORMS]
        write_results(HERE, [Measured(**json.loads(path.read_text()))
                             for path in sorted(chosen.measurements.rglob("*.json"))], order, NOTES.read_text())


def _measure(folder: Path, make: Callable[..., Setting], form: Form, *, seed: int, rounds: int) -> None:
    words = [form.uplink.replace(" ", "-").replace("%", ""), form.rounding,
             "feedback" if form.error_feedback else "alone", str(seed)]
    path = folder / f"{'_'.join(words)}.json"
    if path.exists():
        return
    setting = make(seed, rounds=rounds)
    started = time.monotonic()
    course = simulated(setting, form.uplink, rounding=form.rounding, error_feedback=form.error_feedback)
    found: dict[str, Any] = {**asdict(form), "data": setting.name, "seed": seed, "rounds": rounds,
                             "dense_bytes": course.dense_bytes, "num_silos": NUM_SILOS,
                             "accuracies": course.accuracies, "uplink_bytes": course.uplink_bytes}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found) + "\n")
    print(f"{setting.name} seed {seed}: {form.uplink}, {form.rounding}, "
          f"{'with' if form.error_feedback else 'without'} error feedback: {100 * course.accuracies[-1]:.1f} %, "
          f"{sum(course.uplink_bytes)} bytes, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
