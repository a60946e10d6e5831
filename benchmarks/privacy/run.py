"""What differential privacy of single images costs in accuracy: `python -m benchmarks.privacy.run --help`.

Study by study in one process; what stands in results.jsonl is not run again, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisilo import simulate

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
SEEDS = (1, 2, 3)
EPSILONS = (1.0, 3.0, 8.0, 0.0)
"""0 stands for training without differential privacy."""
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class ImageSetOf:
    """A set, dealt to three silos that have all labels."""

    source: str
    size: int
    channels: int
    fraction: float
    num_test: int
    batch: int
    """Images that a silo expects in a step; without privacy `plain_batch`."""
    plain_batch: int
    rounds: int
    local_epochs: int


SETS = {
    "digits": ImageSetOf(source="digits", size=8, channels=1, fraction=1.0, num_test=300, batch=250, plain_batch=50,
                         rounds=20, local_epochs=1),
    "blood cells": ImageSetOf(source="bloodcells.npz", size=28, channels=3, fraction=0.5, num_test=1000, batch=400,
                              plain_batch=50, rounds=12, local_epochs=1),
}

TEN = "digits at ten silos: "
SHARED_ROUNDS = 20
SHARED: dict[str, dict[str, Any]] = {
    "each silo's own noise": {"noise_multiplier": 5.5},
    "shared by 4 of a threshold of 7": {"noise_multiplier": 5.5, "honest_silos": 4},
    "shared by 7 of a threshold of 7": {"noise_multiplier": 5.5, "honest_silos": 7},
    "whole silos with noise at the coordinator": {"unit": "silo", "noise_multiplier": 1.0},
    "whole silos shared by 4 of a threshold of 7": {"unit": "silo", "noise_multiplier": 1.0},
}
"""Table [privacy.dp] of studies with ten silos and one step a round."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description="What differential privacy of single images costs in accuracy.")
    parser.add_argument("--data", type=Path, default=Path("build/data"), help="folder of bloodcells.npz")
    parser.add_argument("--sets", default="", help="only these sets, such as 'digits'")
    parser.add_argument("--minutes", type=float, default=0.0, help="begins no further study after so long; 0: no limit")
    parser.add_argument("--page", action="store_true", help="run nothing, write RESULTS.md only")
    parser.add_argument("--probe", action="store_true",
                        help="measure instead what an update gives away (probe.py has its own --help); writes PROBE.md")
    options, others = parser.parse_known_args(arguments)
    if options.probe:
        from benchmarks.privacy.probe import main as probe

        return probe([*others, *(["--page"] if options.page else [])])
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    began = time.monotonic()
    for name, epsilon, seed in [] if options.page else _missing(options):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            break
        found = run(name, epsilon, seed, folder=options.data)
        with RESULTS.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{name}, epsilon {epsilon or 'none'}, seed {seed}: {found['accuracy']:.1%}", file=sys.stderr, flush=True)
    (HERE / "RESULTS.md").write_text(page(lines()))
    return 0


def lines() -> list[dict[str, Any]]:
    """What was run so far, of studies as they are now."""
    found = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return [line for line in found if line["study"] == digest_of(line["set"], line["epsilon"], line["seed"])]


def study_of(name: str, epsilon: float, seed: int, *, folder: Path = Path()) -> dict[str, Any]:
    """The tables of a study."""
    if name.startswith(TEN):
        return _shared_study(name.removeprefix(TEN), seed)
    of = SETS[name]
    batch, momentum = (of.batch, 0.9) if epsilon else (of.plain_batch, 0.0)
    source = str(folder / of.source) + "#train" if of.source.endswith(".npz") else of.source
    study: dict[str, Any] = {
        "study": {"seed": seed, "rounds": of.rounds, "labelled_only_baseline": False},
        "model": {"name": "small_cnn", "normalisation": "group"},
        "data": {"image": {"size": of.size, "channels": of.channels, "mean": [0.5] * of.channels,
                           "std": [0.3] * of.channels}},
        "augmentation": {"policy": "none"},
        "method": {"name": "fedavg", "objective": "sl", "scenario": "labels-at-silo", "lr": 0.2, "lambda_s": 1.0,
                   "local_epochs": of.local_epochs, "labelled_batch": batch, "momentum": momentum,
                   "persist_local_momentum": momentum > 0, "weak_view": "none"},
        "simulation": {"data": source, "split": {"name": "iid", "silos": 3, "all_labelled": True,
                                                 "num_test": of.num_test, "fraction": of.fraction}},
    }
    if epsilon:
        study["privacy"] = {"dp": {"target_epsilon": epsilon, "clip_norm": 0.5, "delta": DELTA}}
    return study


def _shared_study(name: str, seed: int) -> dict[str, Any]:
    """Ten silos with 114 images each; a step expects 100 of them, and is a round."""
    masked = {} if "coordinator" in name else {"secure_aggregation": True, "threshold": 7}
    return {
        "study": {"seed": seed, "rounds": SHARED_ROUNDS, "labelled_only_baseline": False},
        "model": {"name": "small_cnn", "normalisation": "group"},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.3]}}, "augmentation": {"policy": "none"},
        "method": {"name": "fedavg", "objective": "sl", "scenario": "labels-at-silo", "lr": 0.2, "lambda_s": 1.0,
                   "labelled_batch": 100, "weighting": "uniform", "global_momentum": 0.9, "weak_view": "none"},
        "privacy": {**masked, "dp": {"clip_norm": 0.5, "delta": DELTA, **SHARED[name]}},
        "simulation": {"data": "digits", "split": {"name": "iid", "silos": 10, "all_labelled": True, "num_test": 300}},
    }


def digest_of(name: str, epsilon: float, seed: int) -> str:
    """Tells one study from another, wherever its images lie."""
    return hashlib.sha256(json.dumps(study_of(name, epsilon, seed), sort_keys=True).encode()).hexdigest()[:16]


def run(name: str, epsilon: float, seed: int, *, folder: Path) -> dict[str, Any]:
    """One study, with what every silo has spent by its own ledger."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        found = simulate(study_of(name, epsilon, seed, folder=folder.resolve()), out=Path(out) / "run",
                         engine="process", device="cpu", progress=False)
        ledgers = [[json.loads(line) for line in path.read_text().splitlines()]
                   for path in sorted((Path(out) / "run").rglob("privacy/spent.jsonl"))]
    return {"set": name, "epsilon": epsilon, "seed": seed, "study": digest_of(name, epsilon, seed),
            "accuracy": found.accuracy, "spent": max((each[-1]["epsilon"] for each in ledgers), default=0.0),
            "noise_multiplier": max((each[-1]["noise_multiplier"] for each in ledgers), default=0.0),
            "steps": max((sum(line["steps"] for line in each) for each in ledgers), default=0),
            "images": max((each[-1]["images"] for each in ledgers), default=0),
            "seconds": round(time.monotonic() - began, 1)}


def page(found: list[dict[str, Any]]) -> str:
    """RESULTS.md."""
    text = ["# Accuracy against epsilon\n\n",
            "Three silos with equal parts of a set, all images labelled; FedAvg, `small_cnn` with group normalisation.",
            " Every silo clips\nthe gradient of each image at 0.5 and works out its own noise for the epsilon of all",
            f" rounds at delta {DELTA:g}. Mean over the\nseeds, with the smallest and the largest. The line `none` is",
            " the same study without differential privacy, with batches\nthat suit it.\n\n",
            "Written by `make bench-privacy`.\n"]
    for name, of in SETS.items():
        text.append(f"\n## {name}\n\n| epsilon | accuracy | seeds | spent by the ledger | noise multiplier | steps | "
                    "images of a silo |\n|---:|---|---:|---:|---:|---:|---:|\n")
        for epsilon in EPSILONS:
            rows = [line for line in found if (line["set"], line["epsilon"]) == (name, epsilon)]
            if not rows:
                continue
            accuracies = [line["accuracy"] for line in rows]
            last = rows[-1]
            spent = max(line["spent"] for line in rows)
            private = (f"{spent:.3f} | {last['noise_multiplier']:.2f} | {last['steps']} | {last['images']}" if epsilon
                       else "- | - | - | -")
            text.append(f"| {f'{epsilon:g}' if epsilon else 'none'} | {statistics.mean(accuracies):.1%} "
                        f"({min(accuracies):.1%} to {max(accuracies):.1%}) | {len(rows)} | {private} |\n")
        text.append(f"\n{of.rounds} rounds of {of.local_epochs} local epoch; a step expects {of.batch} images"
                    f" ({of.plain_batch} without privacy).\n")
    text.append(_shared_table(found))
    notes = HERE / "notes.md"
    return "".join([*text, "\n", notes.read_text() if notes.exists() else ""])


def _shared_table(found: list[dict[str, Any]]) -> str:
    text = ["\n## Noise that silos share\n\n",
            "Ten silos with 114 images of the digits each, all labelled; one step a round, of 100 expected images;",
            " momentum at the\ncoordinator. The noise of the mean is in units of clip / (images of a step), or of the",
            " clip where whole silos are\nhidden: sigma sqrt(10 / shares) / 10.\n\n",
            "| noise | accuracy | seeds | noise of the mean | epsilon by the sites' ledgers |\n",
            "|---|---|---:|---:|---:|\n"]
    for name, dp in SHARED.items():
        rows = [line for line in found if line["set"] == TEN + name]
        if not rows:
            continue
        accuracies = [line["accuracy"] for line in rows]
        shares = dp.get("honest_silos") or (4 if "shared" in name else 10 if "coordinator" in name else 1)
        spent = max(line["spent"] for line in rows)
        text.append(f"| {name} | {statistics.mean(accuracies):.1%} ({min(accuracies):.1%} to {max(accuracies):.1%}) |"
                    f" {len(rows)} | {dp['noise_multiplier'] * (10 / shares) ** 0.5 / 10:.2f} |"
                    f" {f'{spent:.2f}' if spent else '-'} |\n")
    text.append(f"\n{SHARED_ROUNDS} rounds.\n")
    return "".join(text)


def _missing(options: argparse.Namespace) -> list[tuple[str, float, int]]:
    done = {(line["set"], line["epsilon"], line["seed"]) for line in lines()}
    wanted = [(name, epsilon) for name in SETS for epsilon in EPSILONS] + [(TEN + name, 0.0) for name in SHARED]
    return [(name, epsilon, seed) for seed in SEEDS for name, epsilon in wanted
            if (name, epsilon, seed) not in done and (not options.sets or name in options.sets.split(","))]


if __name__ == "__main__":
    sys.exit(main())
