"""Times simulations: how soon they begin, how long many silos take, and what they do beside training.

    python -m benchmarks.scale.simulation [--json FILE] [--only start,many,again,engines,beside]

Every figure is taken in processes of its own, started for it; wall time means something on an idle machine alone, so
processor time stands beside it. Images are scikit-learn's digits; for ten thousand silos there are too few of them, and
made-up ones take their place.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["again", "beside", "engines", "many", "start"]

_RUN = """
import json, resource, sys, time
began = time.perf_counter()
from pathlib import Path
from semisilo.simulation import run
from semisilo.simulation.silos import SimulatedSilo
tables, out, options = json.loads(sys.argv[1])
first, original = [], SimulatedSilo.prepare
def prepare(self, *arguments, **named):
    first.append(time.perf_counter() - began)
    return original(self, *arguments, **named)
SimulatedSilo.prepare = prepare
work = []
if options.pop("beside", False):
    import semisilo.coordinator.compute.operations as coordinator
    from semisilo.coordinator.strategies import load_strategy
    from semisilo.silo.trainers import load_trainer
    def timed(owner, name):
        original = getattr(owner, name)
        def call(*arguments, **named):
            at = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                work.append(time.perf_counter() - at)
        setattr(owner, name, call)
    timed(load_trainer(tables["method"]["name"]), "train")
    timed(load_strategy(tables["method"]["name"]), "finish")
    timed(coordinator, "measure_model")
result = run(tables, out=Path(out), device="cpu", **options)
wall = time.perf_counter() - began
used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "wall_seconds": wall, "processor_seconds": sum(each.ru_utime + each.ru_stime for each in used),
    "first_training_seconds": first[0] if first else None, "digest": result.digest, "work_seconds": sum(work),
    "round_seconds": sum(each.seconds or 0.0 for each in result.rounds if each.round)}))
"""


def _study(silos: int, rounds: int, asked: int, *, data: str = "digits", **method: object) -> dict[str, Any]:
    """The tables of a study file of SemiFL."""
    return {"study": {"rounds": rounds, "seed": 1, "labelled_only_baseline": False},
            "data": {"image": {"size": 8, "channels": 1}}, "model": {"name": "small_cnn"},
            "method": {"name": "semifl", "coordinator_epochs": 1, **method},
            "participation": {"silos_per_round": asked},
            "simulation": {"data": data, "split": {"name": "iid", "silos": silos, "num_labelled": 100}}}


def _run(tables: dict[str, Any], out: Path, **options: object) -> dict[str, Any]:
    """One simulation in a process of its own."""
    done = subprocess.run([sys.executable, "-P", "-c", _RUN, json.dumps([tables, str(out), options])],
                          stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def start(folder: Path) -> dict[str, float]:
    """From the start of Python to the first training of ten thousand silos, 10 of whom are asked."""
    generator = np.random.default_rng(1)
    labels_N = generator.integers(0, 10, 20_000)
    np.savez(folder / "made-up.npz", train_images=generator.integers(0, 256, (20_000, 8, 8), dtype=np.uint8),
             train_labels=labels_N, test_images=np.zeros((100, 8, 8), dtype=np.uint8), test_labels=labels_N[:100])
    found = _run(_study(10_000, 1, 10, data=str(folder / "made-up.npz")), folder / "start")
    return {"first_training_seconds": found["first_training_seconds"], "processor_seconds": found["processor_seconds"],
            "files_and_folders": sum(1 for _ in (folder / "start").rglob("*"))}


def many(folder: Path) -> dict[str, float]:
    """1,000 silos, 10 rounds, 10 silos in each."""
    found = _run(_study(1_000, 10, 10), folder / "many")
    return {key: found[key] for key in ("wall_seconds", "processor_seconds")}


def again(folder: Path) -> dict[str, float]:
    """A finished simulation by its command, asked for again: until the result stands there."""
    import time

    import tomli_w

    (folder / "study.toml").write_text(tomli_w.dumps(_study(100, 3, 10)), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "semisilo.cli.main", "simulate", str(folder / "study.toml"), "--quiet",
               "--device", "cpu", "--out", str(folder / "again")]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
    return {"first_seconds": seconds[0], "again_seconds": seconds[1]}


def engines(folder: Path) -> dict[str, float]:
    """The same simulation in one process and in several, in turns; the least time of two each."""
    tables = _study(10, 6, 10, local_epochs=5, confidence_threshold=0.2)
    found: dict[str, list[float]] = {"process": [], "processes": []}
    digests = set()
    for number in range(2):
        for engine, seconds in found.items():
            one = _run(tables, folder / f"{engine}-{number}", engine=engine)
            seconds.append(one["round_seconds"])
            digests.add(one["digest"])
    assert len(digests) == 1, "other bits"
    return {"process_seconds": min(found["process"]), "processes_seconds": min(found["processes"]),
            "ratio": min(found["process"]) / min(found["processes"])}


def beside(folder: Path) -> dict[str, float]:
    """What rounds of 10 silos take beside training, fine-tuning and evaluation, as a share of these; one process."""
    found = _run(_study(10, 6, 10, confidence_threshold=0.2), folder / "beside", engine="process", beside=True)
    return {"round_seconds": found["round_seconds"], "work_seconds": found["work_seconds"],
            "share": found["round_seconds"] / found["work_seconds"] - 1}


def _main() -> None:
    figures: dict[str, Callable[[Path], dict[str, float]]] = {
        each.__name__: each for each in (start, many, again, engines, beside)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(figures))
    chosen = parser.parse_args()
    results = {}
    for name in chosen.only.split(","):
        with tempfile.TemporaryDirectory(prefix="semisilo-") as folder:
            results[name] = figures[name](Path(folder))
        print(name, json.dumps(results[name]))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
