"""What commands take with a long record: `python -m benchmarks.scale.commands`, part of `make bench-scale`.

A federation of a few silos runs a few rounds over the network. Then the rows that one silo left in one round are copied
in the ledger until it looks as after a study of 1,000 silos and 500 rounds, and the operator's commands are run on it,
in processes of their own, several times. Beside each run an interpreter is started that does nothing, so that the
machine's speed can be told from the command's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_now
from benchmarks.scale.results import write_results
from benchmarks.wire import many_silos
from benchmarks.wire.local_federation import STUDY
from semisilo.common.process.compute import ProcessCompute
from semisilo.demo.processes import Processes, console_script

__all__ = ["grow", "measure"]

HERE = Path(__file__).parent
_SILOS, _ROUNDS = 1000, 500
_FEW_SILOS, _FEW_ROUNDS = 4, 3
_ROUND = 2
"""Whose rows are copied: in the first one silos have joined, after the last one the study ends."""
_SECONDS_A_ROUND = 60.0
_REPEATS = 7
_PAGE = ("/api/federation", f"/api/studies/{STUDY}")
"""What the operator page asks for when somebody opens it and looks at the study."""
_TARGETS = {"coordinator": "semisilo.coordinator.compute.operations:Operations",
            "silo": "semisilo.silo.compute.operations:Operations"}


def measure(*, silos: int = _SILOS, rounds: int = _ROUNDS, repeats: int = _REPEATS,
            say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of each command: of the clock and of the processor, with those of an interpreter that does nothing.

    Raises: StepFailed when the federation fails; CalledProcessError when a command does.
    """
    machine = machine_now()
    with tempfile.TemporaryDirectory(prefix="semisilo-commands-") as temporary:
        folder = Path(temporary) / "federation"
        many_silos.measure(_FEW_SILOS, parameters=1000, rounds=_FEW_ROUNDS, say=say, keep=folder)
        hub = folder / "hub"
        began = time.monotonic()
        rows = grow(hub / "ledger.sqlite", silos=silos, rounds=rounds)
        size = (hub / "ledger.sqlite").stat().st_size
        say(f"a ledger of {silos:,} silos and {rounds:,} rounds, {size / 1e6:,.0f} MB, made in"
            f" {time.monotonic() - began:.0f} s")
        found: dict[str, Any] = {"machine": machine, "silos": silos, "rounds": rounds, "repeats": repeats,
                                 "rows": rows, "bytes": size, "commands": {}}
        coordinator, here = console_script("coordinator"), ("--folder", str(hub))
        for name, words in {"coordinator models": ("models",), "coordinator status": ("status", *here),
                            "coordinator status --json": ("status", "--json", *here)}.items():
            found["commands"][name] = _timed([*coordinator, *words], repeats)
            say(f"{name}: {found['commands'][name]['seconds']:.2f} s")
        found["commands"]["the page's first look at the study"] = _page(hub, folder, repeats)
        found["commands"] |= {f"a compute process of the {side} until it is ready": _compute(target, repeats)
                              for side, target in _TARGETS.items()}
        return found


def grow(ledger: Path, *, silos: int, rounds: int) -> dict[str, int]:
    """Copies rows until the study has so many silos and rounds; the ledger's own triggers keep its sums.

    Returns: rows of its largest tables.
    """
    with contextlib.closing(sqlite3.connect(ledger, timeout=30, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -500000")
        db.execute("BEGIN IMMEDIATE")
        model = "silo-0000"
        names = [f"silo-{number:04}" for number in range(silos)]
        db.execute("CREATE TEMP TABLE members (name TEXT)")
        db.executemany("INSERT INTO members VALUES (?)", [(name,) for name in names])
        _copy(db, "silo", f"FROM silo JOIN members ON members.name NOT IN (SELECT name FROM silo) WHERE silo.name ="
              f" '{model}'", name="members.name")
        last, = db.execute("SELECT max(number) FROM round WHERE study = ?", (STUDY,)).fetchone()
        for number in range(last + 1, rounds + 1):
            _copy_round(db, number, model)
        config = json.loads(db.execute("SELECT config_json FROM study WHERE name = ?", (STUDY,)).fetchone()[0])
        config["study"]["rounds"] = rounds
        db.execute("UPDATE study SET config_json = ?, ended_unix = started_unix + ? WHERE name = ?",
                   (json.dumps(config, sort_keys=True, separators=(",", ":")), _SECONDS_A_ROUND * rounds, STUDY))
        db.execute("COMMIT")  # and no ANALYZE: a ledger in use has no statistics, by which SQLite plans otherwise
        return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("task", "declared_update", "cost", "round")}


def _copy_round(db: sqlite3.Connection, number: int, model: str) -> None:
    """Round `_ROUND` once more, with what one silo did in it done by all."""
    later = _SECONDS_A_ROUND * (number - _ROUND)
    times = {name: f"{name} + {later}" for name in ("opened_unix", "closed_unix", "deadline_unix", "limit_unix")}
    where = f"WHERE study = '{STUDY}' AND round = {_ROUND}"
    _copy(db, "round", f"FROM round WHERE study = '{STUDY}' AND number = {_ROUND}", number=str(number),
          opened_unix=times["opened_unix"], closed_unix="NULL",
          sample_json="(SELECT json_group_array(name) FROM members)")
    _copy(db, "phase", f"FROM phase {where}", round=str(number), opened_unix=times["opened_unix"],
          closed_unix=times["closed_unix"], deadline_unix=times["deadline_unix"], limit_unix=times["limit_unix"])
    of_all = f"JOIN members {where} AND silo = '{model}'"
    _copy(db, "task", f"FROM task {of_all}", round=str(number), silo="members.name",
          task_id=f"task_id || '-{number}-' || members.name", update_id=f"update_id || '-{number}-' || members.name",
          opened_unix=times["opened_unix"], closed_unix=times["closed_unix"])
    _copy(db, "declared_update", "FROM declared_update JOIN (SELECT update_id AS accepted FROM task"
          f" {where} AND silo = '{model}') ON accepted = declared_update.update_id JOIN members",
          update_id=f"update_id || '-{number}-' || members.name", task_id=f"task_id || '-{number}-' || members.name")
    _copy(db, "cost", f"FROM cost {of_all}", round=str(number), silo="members.name")
    db.execute(f"UPDATE round SET closed_unix = opened_unix + {_SECONDS_A_ROUND} WHERE study = '{STUDY}'"
               f" AND number = {number}")


def _copy(db: sqlite3.Connection, table: str, origin: str, **changed: str) -> None:
    """Rows of a table once more, with other values in some columns."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(changed.get(column, f"{table}.{column}") for column in columns)
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} {origin}")


def _timed(command: list[str], repeats: int) -> dict[str, float]:
    """Medians over the runs; the first one, which finds nothing in memory, does not count."""
    runs = [(_run(command), _run([sys.executable, "-P", "-c", "pass"])) for _ in range(repeats + 1)][1:]
    return {"seconds": statistics.median(of[0] for of, _ in runs),
            "processor_seconds": statistics.median(of[1] for of, _ in runs),
            "interpreter_seconds": statistics.median(bare[0] for _, bare in runs)}


def _run(command: list[str]) -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _page(hub: Path, folder: Path, repeats: int) -> dict[str, float]:
    """Seconds until all that the page asks for has come, each time from a coordinator that has just started."""
    looks = []
    for number in range(repeats):
        with _served(hub, folder / f"page-logs-{number}") as address:
            began = time.perf_counter()
            for path in _PAGE:
                with urllib.request.urlopen(address + path, timeout=60) as answer:
                    answer.read()
            looks.append(time.perf_counter() - began)
    return {"seconds": statistics.median(looks)}


@contextlib.contextmanager
def _served(hub: Path, logs: Path) -> Iterator[str]:
    """Address of the operator page of a coordinator that serves the folder meanwhile."""
    with Processes(logs=logs) as processes:
        processes.start("coordinator", [*console_script("coordinator"), "serve", "--folder", str(hub)])
        end = time.monotonic() + 60
        while not (found := re.search(r"http://[\d.]+:\d+", (logs / "coordinator.log").read_text(errors="replace"))):
            processes.check()
            if time.monotonic() > end:
                raise TimeoutError("the coordinator has not told the address of its page")
            time.sleep(0.05)
        yield found[0]


def _compute(target: str, repeats: int) -> dict[str, float]:
    """Seconds until a compute process has imported what it needs, and those of an interpreter that imports torch."""

    async def start() -> float:
        compute, began = ProcessCompute(target), time.perf_counter()
        try:
            await compute.start()
            return time.perf_counter() - began
        finally:
            await compute.close()

    async def in_turn() -> list[tuple[float, float]]:
        return [(await start(), _run([sys.executable, "-P", "-c", "import torch"])[0]) for _ in range(repeats + 1)][1:]

    runs = asyncio.run(in_turn())
    return {"seconds": statistics.median(own for own, _ in runs),
            "torch_seconds": statistics.median(torch for _, torch in runs)}


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.commands", description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--silos", type=int, default=_SILOS)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--repeats", type=int, default=_REPEATS)
    parser.add_argument("--write", action="store_true", help="puts what was found into results.json and RESULTS.md")
    asked = parser.parse_args()
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    found = measure(silos=asked.silos, rounds=asked.rounds, repeats=asked.repeats, say=say)
    print(json.dumps(found["commands"], indent=1))
    if asked.write:
        results = HERE / "results.json"
        everything = json.loads(results.read_text()) | {"commands": found}
        results.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        write_results(everything, HERE / "RESULTS.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
