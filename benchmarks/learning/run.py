"""Our method against labels alone and the papers' methods: `python -m benchmarks.learning.run --help`.

One study is one process; what stands in results.jsonl is not run again, so it may be stopped at any time and goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning.cells import (
    ABLATION_CELLS,
    ABLATIONS,
    BOTH_CELLS,
    CELLS,
    SILO_CELLS,
    Cell,
    digest_of,
    methods_of,
    study_of,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
ABLATION_SEED = 101
"""The first one of the ablation, whose draws are not those of the table: settings were chosen on them."""
_KEPT = ("accuracy", "balanced_accuracy", "auroc", "calibration_error")


@dataclass(frozen=True, slots=True)
class Job:
    """One study."""

    cell: Cell
    method: str
    seed: int
    study: dict[str, Any]

    @property
    def key(self) -> str:
        """Changes when the study does."""
        return digest_of(self.study)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, seed by seed, then writes the page."""
    parser = argparse.ArgumentParser(description="Our method against labels alone and the papers' methods.")
    parser.add_argument("--data", type=Path, default=Path("build/data"),
                        help="folder of bloodcells.npz, fashion_mnist.npz and cifar10.npz")
    parser.add_argument("--jobs", type=int, default=1, help="studies at a time, one processor each")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--cells", default="", help="only cells whose name holds this text, such as 'digits, even'")
    parser.add_argument("--methods", default="", help="only methods whose name holds this text")
    parser.add_argument("--ablation", action="store_true",
                        help="instead self-training with one thing changed, on draws of its own")
    parser.add_argument("--page", action="store_true", help="run nothing, write RESULTS.md only")
    parser.add_argument("--job", nargs=1, metavar="STUDY", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        print(json.dumps(run_job(json.loads(Path(options.job[0]).read_text()))))
        return 0
    failed = 0 if options.page else _run_all(_missing(options), options.jobs)
    from benchmarks.learning.results import write_page

    write_page(HERE)
    return 1 if failed else 0


def lines() -> list[dict[str, Any]]:
    """What was run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run_job(study: dict[str, Any]) -> dict[str, Any]:
    """Runs one study. The numbers are of the last round, and of labels alone where they were asked for."""
    from semisilo.api.simulate import simulate
    from semisilo.coordinator.ledger.ledger import Ledger
    from semisilo.simulation.folder import SimulationFolder

    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = simulate(study, out=Path(folder) / "run", engine="process", progress=False)
        ledger = Ledger(SimulationFolder(run.folder).ledger)
        try:
            baseline = ledger.study(run.study).baseline
        finally:
            ledger.close()
        last = run.rounds[-1]
        found: dict[str, Any] = {"curve": [round(each.metrics["balanced_accuracy"], 4) for each in run.rounds
                                           if "balanced_accuracy" in each.metrics],
                                 "payload_up": sum(each.payload_up for each in run.rounds),
                                 "payload_down": sum(each.payload_down for each in run.rounds),
                                 "dense_bytes": sum(each.dense_bytes for each in run.rounds),
                                 "label_ratio": last.label_ratio,
                                 "processor_seconds": round(time.process_time() - began, 1)}
        found |= {name: last.metrics[name] for name in _KEPT}
        handed = run.chosen.metrics if run.chosen is not None else last.metrics
        if baseline is not None:
            found["labels_alone"] = {name: baseline.metrics[name] for name in _KEPT}
            handed = baseline.metrics if run.choice.labels_alone else handed
        found["handed_over"] = {name: handed[name] for name in _KEPT}
        return found


def _missing(options: argparse.Namespace) -> list[Job]:
    done = {(line["method"], line["study"]) for line in lines()}
    wanted = [(seed + ABLATION_SEED - 1, cell, method) for seed in range(1, options.seeds + 1)
              for cell in ABLATION_CELLS for method in ABLATIONS] if options.ablation else \
        [(seed, cell, method) for seed in range(1, options.seeds + 1) for cell in (*CELLS, *SILO_CELLS, *BOTH_CELLS)
         for method in methods_of(cell)]
    jobs = [Job(cell, method, seed, study_of(cell, method, seed=seed, folder=options.data.absolute()))
            for seed, cell, method in wanted if options.cells in cell.name and options.methods in method]
    return [job for job in jobs if (job.method, job.key) not in done]


def _run_all(jobs: list[Job], at_a_time: int) -> int:
    """Runs the jobs in processes of their own; returns how many failed."""
    running: list[tuple[Job, subprocess.Popen[str]]] = []
    waiting, ended, failed, began = list(jobs), 0, 0, time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                running.append((job := waiting.pop(0), _start(job)))
            time.sleep(0.2)
            for job, process in [each for each in running if each[1].poll() is not None]:
                running.remove((job, process))
                out, error = process.communicate()
                ended += 1
                failed += process.returncode != 0
                left = (time.monotonic() - began) / ended * (len(jobs) - ended) / 60
                said = _record(job, json.loads(out.splitlines()[-1])) if process.returncode == 0 else error[-2000:]
                print(f"[{ended}/{len(jobs)}] {job.cell.name}, {job.method}, seed {job.seed}: {said}; some"
                      f" {left:.0f} minutes left", file=sys.stderr, flush=True)
    finally:
        for _, process in running:
            process.kill()
            process.wait()
    return failed


def _start(job: Job) -> subprocess.Popen[str]:
    handle, name = tempfile.mkstemp(suffix=".json")
    with os.fdopen(handle, "w") as file:
        json.dump(job.study, file)
    return subprocess.Popen([sys.executable, "-m", "benchmarks.learning.run", "--job", name], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _record(job: Job, found: dict[str, Any]) -> str:
    with RESULTS.open("a") as file:
        file.write(json.dumps({**asdict(job.cell), "method": job.method, "seed": job.seed, "study": job.key, **found})
                   + "\n")
    alone = found.get("labels_alone") if job.study["study"]["labelled_only_baseline"] else None
    against = f", labels alone {100 * alone['balanced_accuracy']:.1f}" if alone else ""
    return f"{100 * found['balanced_accuracy']:.1f}{against}"


if __name__ == "__main__":
    raise SystemExit(main())
