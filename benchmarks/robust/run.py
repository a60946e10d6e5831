"""What lying silos cost under each rule of [robust]: `python -m benchmarks.robust.run --help`.

Cell by cell in one process; what stands in results.jsonl is not run again, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.robust.attacks import TARGET, Attack, attacking, chosen_silos, patched
from benchmarks.robust.cells import METHODS, NETWORK, SEEDS, SILOS, Cell, cells, digest_of, study_of

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
_CLASSES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description="What lying silos cost under each rule of [robust].")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--method", choices=tuple(METHODS), default="SemiFL")
    parser.add_argument("--rules", default="", help="only these rules, such as 'judge,mean'")
    parser.add_argument("--attacks", default="", help="only these attacks, such as 'backdoor'; 'nobody' for none")
    parser.add_argument("--attackers", default="", help="only so many silos, such as '0,3'")
    parser.add_argument("--split", default="", help="only splits whose name holds this text")
    parser.add_argument("--minutes", type=float, default=0.0, help="begins no further study after so long; 0: no limit")
    parser.add_argument("--page", action="store_true", help="run nothing, write RESULTS.md only")
    options = parser.parse_args(arguments)
    jobs = [] if options.page else _missing(options)
    began = time.monotonic()
    for number, (cell, seed) in enumerate(jobs):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            break
        found = run_cell(cell, seed=seed)
        with RESULTS.open("a") as file:
            study = digest_of(study_of(cell, seed=seed))
            file.write(json.dumps({**asdict(cell), "seed": seed, "study": study, **found}) + "\n")
        print(f"[{number + 1}/{len(jobs)}] {cell.split}, {cell.attackers} {cell.attack}, {cell.rule}, seed {seed}:"
              f" {_said(found)}", file=sys.stderr, flush=True)
    from benchmarks.robust.results import write_page

    write_page(HERE)
    return 0


def lines() -> list[dict[str, Any]]:
    """What was run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run_cell(cell: Cell, *, seed: int) -> dict[str, Any]:
    """Runs one study. Returns accuracy after the last round, and how often the patch makes the target of an image of
    another class; or why the study could not end."""
    from semisilo.api.simulate import simulate
    from semisilo.common.errors import SemisiloError

    study = study_of(cell, seed=seed)
    names = tuple(f"silo-{index:03d}" for index in range(SILOS))
    attack = Attack(kind=cell.attack, silos=chosen_silos(names, cell.attackers, seed=seed), num_classes=_CLASSES)
    began, method = time.process_time(), study["method"]["name"]
    with tempfile.TemporaryDirectory() as folder, attacking(method, attack if cell.attackers else None):
        try:
            run = simulate(study, out=Path(folder) / "run", engine="process", device="cpu", progress=False)
        except SemisiloError as error:
            return {"failed": error.text}
        if run.state != "completed":
            return {"failed": run.state, "processor_seconds": round(time.process_time() - began, 1)}
        return {"accuracy": run.rounds[-1].metrics["accuracy"], "backdoor": _backdoor(run.folder, run.study),
                "curve": [round(each.metrics["accuracy"], 4) for each in run.rounds],
                "left_out": [each.metrics.get("updates_left_out", 0.0) for each in run.rounds[1:]],
                "cut": [each.metrics.get("updates_cut", 0.0) for each in run.rounds[1:]],
                "processor_seconds": round(time.process_time() - began, 1)}


def _backdoor(folder: Path, study: str) -> float:
    """Share of the test images of other classes that the model of the last round takes for the target, with the
    patch."""
    import numpy as np
    import torch

    from semisilo.common.learning.evaluation import logits_of
    from semisilo.common.models.exported import read_model

    home = folder / "studies" / study
    model, facts = read_model(home / "model.safetensors", allow_factories=(NETWORK,))
    with np.load(home / "data" / "test.npz") as file:
        images, labels_N = (torch.from_numpy(file[name]) for name in ("images", "labels"))
    images_NCHW = images.reshape(len(images), 1, *images.shape[1:3])[labels_N != TARGET]
    logits_NK = logits_of(model, patched(images_NCHW), facts.image)
    return float((logits_NK.argmax(dim=1) == TARGET).double().mean())


def _missing(options: argparse.Namespace) -> list[tuple[Cell, int]]:
    done = {(line["study"], line["attack"], line["attackers"]) for line in lines()}
    rules, attacks, attackers = (set(text.split(",")) if text else None
                                 for text in (options.rules, options.attacks, options.attackers))
    return [(cell, seed) for seed in SEEDS[:options.seeds] for cell in cells(options.method)
            if (digest_of(study_of(cell, seed=seed)), cell.attack, cell.attackers) not in done
            and (rules is None or cell.rule in rules) and (attacks is None or cell.attack in attacks)
            and (attackers is None or str(cell.attackers) in attackers) and options.split in cell.split]


def _said(found: dict[str, Any]) -> str:
    if "failed" in found:
        return str(found["failed"])
    return f"{100 * found['accuracy']:.1f}, backdoor {100 * found['backdoor']:.1f}, {found['processor_seconds']} s"


if __name__ == "__main__":
    raise SystemExit(main())
