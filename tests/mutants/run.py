"""Applies each mutant of the table to a copy of the sources and runs the tests that should notice: `make mutants`.

    python -m tests.mutants.run                      all of them
    python -m tests.mutants.run --area codec         those of an area
    python -m tests.mutants.run --only "resumed-*"   those of a name

The checkout is never changed: a run that is killed leaves a folder among the temporary ones and nothing else. First the
named tests run on the copy as it is; a test that fails there says nothing about mutants. Exit 1 when one survives.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants import origin, worker
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

__all__ = ["Report", "Verdict", "main", "run_mutants"]

ROOT = Path(__file__).resolve().parents[2]
_NOT_COPIED = (".*", "build", "dist", "demo-run", "__pycache__", "*.egg-info", "node_modules")
_PLUGIN, _WORKER = "mutants_origin", "mutants_worker"
_UNCHANGED_SECONDS = 3600.0
"""For all named tests together, without any mutant; minutes on a quiet machine."""
_MTIME_STEP_SECONDS = 10
"""Python tells a changed file by its whole seconds and size; a mutant of equal length must look changed, also from the
one before it in the same file."""

Verdict = Literal["killed", "survived", "broken"]
"""broken: no test has run to its end with it, because the program cannot be imported or no test was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What became of a mutant."""

    mutant: Mutant
    verdict: Verdict
    text: str
    """The test that failed, or what pytest said."""
    seconds: float


class _Copy:
    """A copy of the sources that may be changed, with a process that runs tests in it."""

    def __init__(self, root: Path, folder: Path, *, time_limit_seconds: float, libraries: Sequence[str]) -> None:
        """Args:
            root: the checkout.
            folder: made here; the copy and what it needs go into it.
        """
        self.folder = folder / "sources"
        self._output = folder / "output"
        self._time_limit_seconds = time_limit_seconds
        self._judged = 0
        shutil.copytree(root, self.folder, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        (folder / "plugin").mkdir()
        for module, name in ((origin, _PLUGIN), (worker, _WORKER)):
            shutil.copyfile(Path(module.__file__), folder / "plugin" / f"{name}.py")
        path = os.pathsep.join([str(self.folder), str(folder / "plugin")])
        environment = {**os.environ, "PYTHONPATH": path, origin.CHECKOUT: str(root),
                       "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none is needed, and loading them takes a second
        self._worker = subprocess.Popen([sys.executable, "-P", "-m", _WORKER, *libraries], cwd=self.folder, text=True,
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """Ends the process."""
        self._worker.kill()
        self._worker.communicate()

    def pytest(self, tests: Iterable[str], *options: str, time_limit_seconds: float = 0.0) -> tuple[int, str]:
        """(exit status, output); the status of a run that was cut off is -1."""
        arguments = ["-q", "-rfE", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", _PLUGIN, *options,
                     *tests]
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"arguments": arguments, "output": str(self._output),
                                             "seconds": time_limit_seconds or self._time_limit_seconds}) + "\n")
        self._worker.stdin.flush()
        status = int(self._worker.stdout.readline())
        return status, self._output.read_text(encoding="utf-8", errors="replace")

    def judge(self, mutant: Mutant) -> Report:
        """Applies a mutant, runs its tests and takes it back."""
        path, started = self.folder / mutant.file, time.monotonic()
        self._judged += 1
        before, about = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
        os.utime(path, (about.st_atime, about.st_mtime + _MTIME_STEP_SECONDS * self._judged))
        try:
            status, output = self.pytest(mutant.tests, "-x")
        finally:
            path.write_text(before, encoding="utf-8")
            os.utime(path, (about.st_atime, about.st_mtime))
        verdict: Verdict = {0: "survived", 1: "killed", -1: "killed"}.get(status, "broken")  # type: ignore[assignment]
        failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
        text = failed[1] if verdict == "killed" and failed else output.strip()[-2000:]
        return Report(mutant=mutant, verdict=verdict, text=text, seconds=time.monotonic() - started)


def run_mutants(mutants: Sequence[Mutant], *, root: Path = ROOT, jobs: int = 1, time_limit_seconds: float = 300.0,
                checked: bool = True, libraries: Sequence[str] = worker.LIBRARIES) -> list[Report]:
    """Tries every mutant that is not an equivalent, and tells on standard output how it goes.

    Args:
        root: the checkout; stays as it is.
        jobs: how many to try at a time, each in a copy of its own.
        time_limit_seconds: for the tests of one mutant; a mutant that runs on counts as killed.
        checked: whether the tests run without any mutant first.
        libraries: loaded once, before the first test.
    Raises: RuntimeError when a mutant's text is not where the table says, or a test fails without any mutant.
    """
    for mutant in mutants:
        if (count := (root / mutant.file).read_text(encoding="utf-8").count(mutant.old)) != 1:
            raise RuntimeError(f"{mutant.name}: its text occurs {count} times in {mutant.file}, not once.")
    tried = [mutant for mutant in mutants if not mutant.equivalent]
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ExitStack() as held:
        copies = [held.enter_context(closing(_Copy(root, Path(temporary) / str(number),
                                                   time_limit_seconds=time_limit_seconds, libraries=libraries)))
                  for number in range(jobs)]
        if checked:
            _check_unchanged(copies[0], tried)
        free: queue.SimpleQueue[_Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def judged(mutant: Mutant) -> Report:
            copy = free.get()
            try:
                return copy.judge(mutant)
            finally:
                free.put(copy)

        reports = []
        with ThreadPoolExecutor(jobs) as pool:
            for number, report in enumerate(pool.map(judged, tried), start=1):
                print(f"[{number:3}/{len(tried)}] {report.verdict:8} {report.mutant.name} ({report.seconds:.1f} s)"
                      + (f" by {report.text}" if report.verdict == "killed" else ""), flush=True)
                reports.append(report)
    return reports


def _check_unchanged(copy: _Copy, mutants: Sequence[Mutant]) -> None:
    """The named tests pass on the unchanged copy."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if not tests:
        return
    print(f"{len(tests)} tests without any mutant:", flush=True)
    status, output = copy.pytest(tests, time_limit_seconds=_UNCHANGED_SECONDS)
    print(output.strip().splitlines()[-1] if output.strip() else "", flush=True)
    if status:
        raise RuntimeError(f"the tests fail without any mutant (pytest ended with {status}):\n{output[-4000:]}")


def _chosen(only: Sequence[str], areas: Sequence[str]) -> list[Mutant]:
    return [mutant for mutant in MUTANTS
            if (not areas or mutant.area in areas)
            and (not only or any(fnmatch.fnmatchcase(mutant.name, pattern) for pattern in only))]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="a mutant, or a pattern such as 'codec-*'")
    parser.add_argument("--area", action="append", default=[], choices=sorted({mutant.area for mutant in MUTANTS}))
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many to try at a time (default: 1)")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS", help="for each (default: 300)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without any mutant first")
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    options = parser.parse_args(arguments)
    mutants = _chosen(options.only, options.area)
    if not mutants:
        parser.error("no mutant has that name and area; --list names them all")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.area:12} {mutant.name:50} {mutant.file}")
        return 0
    try:
        reports = run_mutants(mutants, jobs=options.jobs, time_limit_seconds=options.time_limit,
                              checked=not options.unchecked)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _concluded(mutants, reports)


def _concluded(mutants: Sequence[Mutant], reports: Sequence[Report]) -> int:
    for mutant in mutants:
        if mutant.equivalent:
            print(f"equivalent: {mutant.name}: {mutant.equivalent}")
    bad = [report for report in reports if report.verdict != "killed"]
    for report in bad:
        print(f"\n{report.verdict}: {report.mutant.name} ({report.mutant.file}): {report.mutant.old!r}"
              f" -> {report.mutant.new!r}")
        if report.verdict == "broken":
            print(report.text)
    print(f"\n{len(reports) - len(bad)} of {len(reports)} mutants killed"
          + (f"; {len(bad)} not: a test is missing" if bad else "")
          + f"; {len(mutants) - len(reports)} equivalent")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
