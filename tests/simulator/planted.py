"""Bugs that this program has had, that its mutants stand for, or that others' programs have had, put back one at a
time: `python -m tests.simulator.planted` looks for each with seed after seed until one finds it.

A bug is a change of the source as it is imported; nothing is written to the disk.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

__all__ = ["FILE_ERROR_BUGS", "PLANTED", "PlantedBug", "plant"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One wrong change of one place."""

    name: str
    """Says what goes wrong; unique."""
    source: str
    """Where it has happened: a commit, a decision or a mutant of this repository, or somebody else's thread."""
    file: str
    """Relative to the root of the repository."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    also: tuple[tuple[str, str, str], ...] = ()
    """(file, old, new) of other places, where a mistake was mended in each and one mend would hide it."""

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """(file, old, new) of all."""
        return ((self.file, self.old, self.new), *self.also)


PLANTED = (
    PlantedBug("memory-counts-though-nothing-was-folded", "mutant of the same kind; decision 0004",
               "silo/site/memory.py",
               "if pending is not None and pending.round == last_folded_round:",
               "if pending is not None and pending.task_id != task_id:"),
    PlantedBug("memory-of-a-refused-update-stays", "commit 66bd88e", "silo/agent/agent.py",
               "if not outcome.wanted:", "if False:"),
    PlantedBug("a-round-commits-what-a-silo-missed", "mutant", "coordinator/ledger/ledger.py",
               "(study, study, round, TaskState.EXPIRED, TaskState.REFUSED, TaskState.CANCELLED))",
               "(study, study, round, TaskState.REFUSED, TaskState.REFUSED, TaskState.REFUSED))"),
    PlantedBug("updates-are-folded-as-they-arrive", "mutant of the same kind", "coordinator/ledger/ledger.py",
               "return sorted((task_row(row) for row in rows), key=lambda task: task.silo.encode())",
               "return sorted((task_row(row) for row in rows), key=lambda task: task.closed_unix or 0.0)"),
    PlantedBug("a-later-phase-forgets-the-earlier-one", "decision 0004", "coordinator/ledger/ledger.py",
               'pending = row["pending_kept_digest"] if round and row["pending_round"] == round else None',
               "pending = None"),
    PlantedBug("a-closed-phase-takes-late-updates", "mutant of the same kind", "coordinator/ledger/ledger.py",
               'self.close_task(task_row(row), TaskState.EXPIRED, reason="no answer before the phase closed")', "pass"),
    PlantedBug("a-phase-closes-below-its-quorum", "mutant", "coordinator/rounds/engine.py",
               "if now >= phase.deadline_unix and answered >= phase.quorum:", "if now >= phase.deadline_unix:"),
    PlantedBug("the-first-commit-is-two-transactions", "the rule of decision 0004: one transaction",
               "coordinator/rounds/engine.py",
               "        with self._ledger.transaction():\n            self._ledger.set_round_state(study.name, 0,",
               "        if True:\n            self._ledger.set_round_state(study.name, 0,"),
    PlantedBug("an-acceptance-and-its-bytes-are-two-transactions", "as commit 223a874 before it was whole",
               "coordinator/tasks/update_service.py",
               "        with self._ledger.transaction():\n            return self._write_answer(found)",
               "        if True:\n            return self._write_answer(found)"),
    PlantedBug("a-commit-is-not-on-the-disk", "mutant ledger-never-syncs", "coordinator/ledger/ledger.py",
               "        with self.transaction() as db:\n"
               "            self.set_round_state(study, round, RoundState.COMPLETED",
               "        with self.transaction(lasting=False) as db:\n"
               "            self.set_round_state(study, round, RoundState.COMPLETED"),
    PlantedBug("files-go-before-the-commit", "the order of docs/architecture.md", "coordinator/rounds/engine.py",
               "        self._ledger.commit_round(study.name, row.number, metrics=metrics, ",
               "        await asyncio.to_thread(self._spool.collect, set())\n"
               "        self._ledger.commit_round(study.name, row.number, metrics=metrics, "),
    PlantedBug("an-update-is-known-so-it-is-here", "OpenFL pull request 465: results lost with the connection",
               "coordinator/tasks/update_service.py", "if known is not None and task.update_id == update_id:",
               "if known is not None:"),
    PlantedBug("a-silo-that-lost-tensors-is-told-nothing", "decision 0006", "coordinator/tasks/task_service.py",
               "spec = task.spec if _can_read(task.spec, held) else await self._written_anew(task, held)",
               "spec = task.spec"),
    PlantedBug("a-task-written-anew-is-not-on-the-disk", "found by a schedule; decision 0063",
               "coordinator/ledger/ledger.py",
               "        spec = replace(task.spec, payloads=tuple(payloads))\n        with self.transaction() as db:",
               "        spec = replace(task.spec, payloads=tuple(payloads))\n"
               "        with self.transaction(lasting=False) as db:",
               (("common/errors.py", '"PAYLOAD_NOT_SERVED", "NOT_FOUND", True',
                 '"PAYLOAD_NOT_SERVED", "NOT_FOUND", False'),)),
    PlantedBug("a-late-update-stays-in-the-spool", "found by a schedule; decision 0063",
               "coordinator/tasks/update_service.py",
               "if not self._ledger.may_be_folded(update.digest):", "if False:"),
    PlantedBug("a-file-is-renamed-before-it-is-on-the-disk", "NodeDB issue 78", "common/storage/durable.py",
               "            sync_file(file.fileno())\n", "            pass\n"),
    PlantedBug("a-name-is-not-on-the-disk", "ClickHouse issue 111339", "common/storage/durable.py",
               "        raise\n    sync_folder(path.parent)\n", "        raise\n"),
    PlantedBug("an-accepted-update-is-not-on-the-disk", "NodeDB issue 78", "common/storage/store.py",
               "                if self.durable:\n                    sync_file(handle)",
               "                if False:\n                    sync_file(handle)"),
    PlantedBug("a-resumed-update-is-not-on-the-disk", "NodeDB issue 78", "common/storage/store.py",
               "                    if self._store.durable:\n                        self._sync()",
               "                    if False:\n                        self._sync()"),
    PlantedBug("an-accepted-updates-name-is-not-on-the-disk", "ClickHouse issue 111339", "common/storage/store.py",
               "            self._name(name, digest)\n", "            os.replace(name, final)\n"),
    PlantedBug("a-name-that-a-killed-process-has-left-is-believed", "found by a schedule; decision 0066",
               "common/storage/store.py",
               "        if self.durable:\n            sync_folder(self.folder)\n        kept", "        kept"),
    PlantedBug("memory-that-a-killed-process-has-left-is-believed", "the same mistake; decision 0066",
               "silo/site/memory.py",
               "        sync_found(path)  # an answer", "        # an answer"),
    PlantedBug("a-states-name-is-not-on-the-disk", "ClickHouse issue 111339", "common/storage/state_files.py",
               "            sync_folder(self.folder)\n", "            pass\n"),
    PlantedBug("what-is-in-the-cache-is-believed", "decision 0006", "silo/agent/network_steps.py",
               "            await asyncio.to_thread(self._cache.verify, reference.digest)\n", "            pass\n"),
    PlantedBug("a-damaged-answer-is-sent-again", "mutant a-damaged-payload-is-sent-again", "silo/site/memory.py",
               "broken = [path for path, digest in self._files(pending) if _digest(path) != digest]",
               "broken = [path for path, digest in self._files(pending) if not path.exists()]"),
    PlantedBug("a-download-waits-for-ever", "FedML issue 121: stuck when a line is lost", "silo/link/transfers.py",
               "async with asyncio.timeout(self._calls.settings.stall_seconds) as patience, contextlib",
               "async with asyncio.timeout(1e9) as patience, contextlib"),
    PlantedBug("an-upload-waits-for-ever", "FedML issue 121: stuck when a line is lost", "silo/link/transfers.py",
               "            async with asyncio.timeout(answer_seconds):\n                await self._write(",
               "            async with asyncio.timeout(1e9):\n                await self._write("),
    PlantedBug("messages-are-counted-again", "mutant what-was-taken-is-counted-again", "common/rpc/meter.py",
               "self._taken[key] = list(total)", "self._taken.setdefault(key, list(total))"),
    PlantedBug("a-commit-removes-what-another-study-is-about-to-fold",
               "found by a reader; schedules had one study until then", "coordinator/ledger/cleanup.py",
               "= there[0] - updates_to_keep(self._ledger), there[1] - payloads_to_keep(self._ledger)", "= there"),
    PlantedBug("a-stopped-round-is-open-again", "found by a reader", "coordinator/ledger/ledger.py",
               "            if last is not None and last.state not in ENDED_ROUND:\n"
               "                self.cancel_round(last)\n", ""),
    PlantedBug("a-study-that-was-stopped-in-round-0-cannot-begin-anew", "found by a reader",
               "coordinator/ledger/ledger.py",
               '                db.execute("DELETE FROM round WHERE study = ?", (name,))\n', ""),
    PlantedBug("a-dead-compute-process-ends-the-study", "ATTEMPTS of coordinator/rounds/compute_client.py",
               "coordinator/rounds/compute_client.py", "                if attempt == attempts or isinstance",
               "                if True or isinstance"),
)

FILE_ERROR_BUGS = (
    PlantedBug("memory-that-cannot-be-read-is-lost-memory", "as it was before decision 0038", "silo/site/memory.py",
               '    except FileNotFoundError:\n        return ""', '    except OSError:\n        return ""'),
    PlantedBug("an-error-of-the-system-ends-the-silo", "as it was before decision 0038", "silo/agent/task_runner.py",
               "(trouble := explained(error)) is None", "(trouble := explained(error)) is not None"),
    PlantedBug("an-error-of-the-system-is-answered-with-a-traceback", "as it was before decision 0038",
               "common/rpc/grpc_errors.py", "    error = explained(error) or error\n", ""),
)
"""Found by `--fail-every-operation`; schedules drawn from seeds have no such errors."""


def plant(name: str) -> None:
    """From now on the bug is in what is imported. Raises: AssertionError when its place is not there."""
    bug = next(each for each in (*PLANTED, *FILE_ERROR_BUGS) if each.name == name)
    places = {(_ROOT / file).resolve(): (file, old, new) for file, old, new in bug.places}
    load: Any = SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> Any:
        path = Path(loader.path).resolve()
        if path not in places:
            return load(loader, fullname)
        file, old, new = places[path]
        source = path.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{file} has {source.count(old)} times {old!r}"
        return compile(source.replace(old, new), loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def _run(seeds: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.simulator.run", seeds, *options], cwd=_ROOT, text=True,
                          capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"})


def _look_for(bug: PlantedBug, first: int, most: int) -> tuple[PlantedBug, int | None, str, float]:
    """How many seeds it took, None for too many; what was broken; minutes. What is broken without the bug as well does
    not count."""
    began, seed = time.monotonic(), first
    while seed < first + most:
        done = _run(f"{seed}-{first + most - 1}", "--planted", bug.name)
        found = re.search(r"^seed (\d+):", done.stdout, re.MULTILINE)
        if found is None:
            assert not done.returncode, done.stderr
            break
        if not _run(found[1]).returncode:
            broken = next(line.strip()[2:150] for line in done.stdout.splitlines() if line.startswith("    ! "))
            return bug, int(found[1]) - first + 1, broken, (time.monotonic() - began) / 60
        seed = int(found[1]) + 1
    return bug, None, "", (time.monotonic() - began) / 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="of bugs; all when left out")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--most", type=int, default=10_000, help="seeds for each")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    wanted = [bug for bug in PLANTED if not options.names or bug.name in options.names]
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        searches = [pool.submit(_look_for, bug, options.first, options.most) for bug in wanted]
        for bug, seeds, broken, minutes in (each.result() for each in as_completed(searches)):
            missed += seeds is None
            told = "not found" if seeds is None else f"seed {seeds}"
            print(f"| {bug.name} | {bug.source} | {told} | {broken} | {minutes:.1f} min |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
