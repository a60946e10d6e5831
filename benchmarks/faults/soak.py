"""Hours of a study among faults, and whether anything grows: `python -m benchmarks.faults.soak --help`.

Coordinator and the first silo live through all of it: they are frozen, cut off, short of disk and of files, and their
compute processes are killed; the second silo is killed and started again as well. After every fault the next round must
be committed; then memory, open files and threads of the processes that live on are read, and what lies on the disk.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.faults.faults import FAULTS, Fault, Site
from benchmarks.faults.results import write_soak
from semisilo.common.process.processors import usable_processors
from tests.processes import STUDY, federation_behind_a_proxy

HERE = Path(__file__).parent
LIVING = ("coordinator", "alpha")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What there was after a fault."""

    minutes: float
    round: int
    fault: str
    seconds: float
    """Until the next round was committed."""
    memory_bytes: dict[str, int]
    """Resident, of the light process of a side that lives on."""
    files: dict[str, int]
    threads: dict[str, int]
    folders: dict[str, tuple[int, int]]
    """Files and bytes of a side's folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs until the time is over, then writes the table."""
    parser = argparse.ArgumentParser(description="Hours of faults, and whether memory, files, threads or disk grow.")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1, help="draws the faults and their moments")
    parser.add_argument("--pause", type=float, default=15.0, help="seconds between faults, on average")
    chosen = parser.parse_args(arguments)
    draw, readings = random.Random(chosen.seed), list[Reading]()
    with tempfile.TemporaryDirectory() as folder, \
            federation_behind_a_proxy(Path(folder), study=STUDY.replace("rounds = 3", "rounds = 1000000")) as (
                processes, proxy):
        processes.start()
        site, began = Site(processes, proxy), time.monotonic()
        while (minutes := (time.monotonic() - began) / 60) < chosen.minutes:
            fault = draw.choice(_faults())
            time.sleep(draw.uniform(0.0, 2 * chosen.pause))
            fault.begin(site)
            time.sleep(fault.lasts_seconds)
            fault.end(site)
            ended, before = time.monotonic(), _committed(site)
            processes.wait_for(lambda before=before: _committed(site) > before)  # type: ignore[misc]
            readings.append(_read(site, fault, minutes=minutes, seconds=time.monotonic() - ended))
            print(_text(readings[-1]), flush=True)
    made = {"processors": usable_processors(), "minutes": chosen.minutes, "seed": chosen.seed,
            "readings": [asdict(reading) for reading in readings]}
    (HERE / "soak.json").write_text(json.dumps(made) + "\n")
    write_soak(HERE / "soak.json", HERE / "SOAK.md")


def _faults() -> list[Fault]:
    """Those that kill neither of the light processes that live on, and set no clock; seven seconds long at most."""
    return [*(replace(fault, name=fault.name.partition(" for ")[0], lasts_seconds=min(fault.lasts_seconds, 7.0))
              for fault in FAULTS
              if not fault.needs_faketime and "kill -9" not in fault.name),
            Fault(name="second silo: kill -9, started again", begin=lambda site: site.processes.kill("beta"),
                  end=lambda site: site.processes.join("beta"))]


def _committed(site: Site) -> int:
    (number,), = site.processes.query("SELECT coalesce(max(number), 0) FROM round WHERE state = 'completed'")
    assert isinstance(number, int)
    return number


def _read(site: Site, fault: Fault, *, minutes: float, seconds: float) -> Reading:
    pids = {name: site.pid(name) for name in LIVING}
    status = {name: dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
              for name, pid in pids.items()}
    return Reading(
        minutes=minutes, round=_committed(site), fault=fault.name, seconds=seconds,
        memory_bytes={name: 1024 * int(each["VmRSS"].split()[0]) for name, each in status.items()},
        files={name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
        threads={name: int(each["Threads"]) for name, each in status.items()},
        folders={name: _size(site.processes.folder / ("hub" if name == "coordinator" else name)) for name in LIVING})


def _size(folder: Path) -> tuple[int, int]:
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:  # removed meanwhile
            continue
    return len(sizes), sum(sizes)


def _text(reading: Reading) -> str:
    sides = "; ".join(
        f"{name}: {reading.memory_bytes[name] / 1e6:.0f} MB, {reading.files[name]} files,"
        f" {reading.threads[name]} threads, {reading.folders[name][0]} on disk of"
        f" {reading.folders[name][1] / 1e6:.1f} MB" for name in LIVING)
    return f"{reading.minutes:6.1f} min, round {reading.round}: {reading.fault}, {reading.seconds:.1f} s; {sides}"


if __name__ == "__main__":
    main()
