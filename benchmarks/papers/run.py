"""The papers' central comparisons at a small scale: `python -m benchmarks.papers.run --help`.

Each study is run by `semisilo.simulation.run`: the coordinator's engine, the codec and every silo, in one process. What
was run once lies in the folder of runs and is not run again; a run that was stopped goes on where it was. With --keep
rows of the committed results whose study is as it was are taken as they are, so that only the others are run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.comparison import Comparison, Variant, load_comparison, merged, study_digest

HERE = Path(__file__).parent
SMALL = HERE / "small"
FULL = HERE / "full"
RESULTS = HERE / "results"


@dataclass(frozen=True, slots=True)
class Job:
    """One study with one seed."""

    comparison: Comparison
    variant: Variant
    seed: int
    folder: Path

    @property
    def tables(self) -> dict[str, Any]:
        """The study file."""
        return merged(self.variant.tables, {"study": {"seed": self.seed}})

    @property
    def digest(self) -> str:
        """Changes when the study does."""
        return study_digest(self.variant, self.seed)

    @property
    def result(self) -> Path:
        """What came out, in short; there when the study has been run."""
        return self.folder / f"{self.digest}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the results."""
    parser = argparse.ArgumentParser(description="The papers' central comparisons at a small scale.")
    parser.add_argument("papers", nargs="*",
                        help=f"some of: {', '.join(_files())}; default: {', '.join(_names(SMALL))}")
    parser.add_argument("--data", type=Path, default=Path("build/data"), help="folder of mnist.npz, ...")
    parser.add_argument("--runs", type=Path, default=Path("build/papers"), help="folder of what was run")
    parser.add_argument("--jobs", type=int, default=1, help="studies at a time, one processor each")
    parser.add_argument("--only", default="", help="only variants whose group and name hold this text")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--keep", action="store_true",
                        help="run only what the committed results do not have; others' rows are kept")
    parser.add_argument("--job", nargs=2, metavar=("STUDY", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        _run_job(Path(options.job[0]), Path(options.job[1]))
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    wanted = options.papers or _names(SMALL)
    unknown = sorted(set(wanted) - set(_files()))
    if unknown:
        parser.error(f"there is no comparison '{unknown[0]}'; there are: {', '.join(_files())}")
    if not options.data.is_dir():
        parser.error(f"{options.data} is not a folder: it must hold mnist.npz, in MedMNIST's layout (keys train_images,"
                     " train_labels, test_images, test_labels)")
    comparisons = [load_comparison(_files()[name], data=options.data.absolute()) for name in wanted]
    jobs = [Job(comparison, variant, seed, options.runs / comparison.name)
            for comparison in comparisons for variant in comparison.variants for seed in variant.seeds]
    kept = {comparison.name: _kept(comparison) if options.keep else {} for comparison in comparisons}
    missing = [job for job in jobs if not job.result.exists() and job.digest not in kept[job.comparison.name]
               and options.only in f"{job.variant.group} {job.variant.name}" and options.seed in (None, job.seed)]
    failed = _run_all(list({job.digest: job for job in missing}.values()), options.jobs)
    from benchmarks.papers.results import write_results

    for comparison in comparisons:
        rows = [_row(job, kept[comparison.name]) for job in jobs if job.comparison is comparison
                and (job.result.exists() or job.digest in kept[comparison.name])]
        if rows and (options.keep or not (options.only or options.seed)):
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{comparison.name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_results(HERE)
    return 1 if failed else 0


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def _files() -> dict[str, Path]:
    """Comparison files by name, the small ones first."""
    return {name: folder / f"{name}.toml" for folder in (SMALL, FULL) for name in _names(folder)}


def _kept(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Rows of the committed results by the digest of their study."""
    path = RESULTS / f"{comparison.name}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    return {row["study"]: row for row in rows if "study" in row}


def _row(job: Job, kept: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What came out, run here or kept, under the name that the comparison file gives it now."""
    found = json.loads(job.result.read_text()) if job.result.exists() else kept[job.digest]
    named = {"variant": job.variant.name, "group": job.variant.group, "published": job.variant.published,
             "chosen": job.variant.chosen, "seed": job.seed, "study": job.digest}
    return {**named, **{name: value for name, value in found.items() if name not in named}}


def _revision() -> str:
    """The last commit of this checkout that changed the program, "1a2b3c4"; empty where there is no checkout."""
    folders = [str(HERE.parents[1] / name) for name in ("common", "coordinator", "silo", "semisilo", "protos")]
    found = subprocess.run(["git", "log", "-1", "--format=%h", "--abbrev=7", "--", *folders], cwd=HERE,
                           capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _run_all(jobs: list[Job], at_a_time: int) -> int:
    """Runs the jobs in processes of their own; returns how many failed."""
    if not jobs:
        print("everything has been run before", file=sys.stderr)
    running: list[tuple[Job, subprocess.Popen[bytes], float]] = []
    waiting, done, failed, begun = list(jobs), 0, 0, time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job = waiting.pop(0)
                running.append((job, _start(job), time.monotonic()))
            time.sleep(0.2)
            for entry in [entry for entry in running if entry[1].poll() is not None]:
                running.remove(entry)
                job, process, since = entry
                done += 1
                failed += process.returncode != 0
                left = (time.monotonic() - begun) / done * (len(jobs) - done)
                print(f"[{done}/{len(jobs)}] {job.comparison.name}: {job.variant.group} {job.variant.name}, seed "
                      f"{job.seed}: {_said(job, process.returncode)}, {time.monotonic() - since:.0f} s; some "
                      f"{left / 60:.0f} minutes left", file=sys.stderr, flush=True)
    finally:
        for _, process, _ in running:
            process.kill()
            process.wait()
    return failed


def _start(job: Job) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    study = job.folder / f"{job.digest}.study.json"
    study.write_text(json.dumps(job.tables))
    log = open(job.folder / f"{job.digest}.log", "ab")  # noqa: SIM115 - the child has it
    with log:
        return subprocess.Popen([sys.executable, "-m", "benchmarks.papers.run", "--job", str(study), str(job.result)],
                                stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _said(job: Job, status: int) -> str:
    if status:
        return f"FAILED with {status}, see {job.folder / f'{job.digest}.log'}"
    return f"{100 * (json.loads(job.result.read_text())['accuracy'] or 0):.1f} %"


def _run_job(study: Path, result: Path) -> None:
    from semisilo.simulation import run

    folder = result.with_suffix("")
    found = run(json.loads(study.read_text()), out=folder)
    asked = {"label_ratio", "pseudo_label_accuracy", "threshold_accuracy"}
    silos: dict[int, dict[str, list[float]]] = {}
    for each in found.silos:
        for name in asked & each.metrics.keys():
            silos.setdefault(each.round, {}).setdefault(name, []).append(each.metrics[name])
    rounds = [{"round": each.round, "up": each.payload_up, "down": each.payload_down,
               **{name: value for name, value in each.metrics.items() if not re.match(r"recall/|.*/silo-", name)},
               **{name: sum(values) / len(values) for name, values in silos.get(each.round, {}).items()}}
              for each in found.rounds]
    updates = sum(each.state == "updated" and "train" in each.phase for each in found.silos)
    content = {"accuracy": found.accuracy, "labelled_only": found.labelled_only_accuracy, "digest": found.digest,
               "dense_bytes": found.dense_bytes, "up_bytes": sum(each.payload_up for each in found.rounds),
               "down_bytes": sum(each.payload_down for each in found.rounds), "updates": updates,
               "seconds": round(found.seconds, 1), "revision": _revision(), "rounds": rounds}
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(result)
    shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(main())
