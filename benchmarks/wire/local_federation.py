"""A federation of real processes on this machine, for measuring: coordinator and silos over mutual TLS on localhost.

The method is the plug-in in `perturb/`, found through an entry point as an installed one would be.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.wire.process_use import ProcessUse
from semisilo.demo.processes import Processes, StepFailed, console_script

__all__ = ["STUDY", "LocalFederation", "StudyShape", "plugin_on_path"]

STUDY = "measured"
_FEDERATION = "measuring"
_PLUGIN = Path(__file__).parent / "perturb"
_START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyShape:
    """What is measured."""

    silos: int
    parameters: int
    density: float = 1.0
    rounds: int = 10
    wire: str = "raw"
    """[wire] uplink and downlink of the study file."""
    round_timeout: str = "10m"

    def toml(self) -> str:
        """The study file."""
        return f"""\
[study]
seed = 1
rounds = {self.rounds}
start_with = {self.silos}
labelled_only_baseline = false
[model]
name = "semisilo_perturb.network:parameters_{self.parameters}"
normalisation = "none"
[data]
labelled = "labelled.npz"
image = {{ size = 8, channels = 1, mean = [0.5], std = [0.5] }}
[method]
name = "perturb"
density = {self.density}
[participation]
quorum = {self.silos}
round_timeout = "{self.round_timeout}"
[wire]
uplink = "{self.wire}"
downlink = "{self.wire}"
"""


class LocalFederation:
    """The processes of one federation in a folder; `processes` ends them."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self.hub = folder / "hub"
        self.homes = folder / "silos"
        self._processes = processes
        self.coordinator = ProcessUse()
        self.silos: dict[str, ProcessUse] = {}

    # Setting up -------------------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Makes the federation, without a study, and serves it; returns when its compute process is ready too."""
        port, enrollment_port = _free_ports(2)
        self._coordinator("init", "init", _FEDERATION, "--address", f"127.0.0.1:{port}", "--folder", str(self.hub))
        (self.hub / "federation.toml").write_text(
            f'[federation]\nname = "{_FEDERATION}"\n\n[address]\npublic = "127.0.0.1:{port}"\n'
            f'enrollment = "127.0.0.1:{enrollment_port}"\nlisten = "127.0.0.1"\n', encoding="utf-8")
        for study in self.hub.glob("studies/*/study.toml"):
            study.unlink()
        self.coordinator = ProcessUse(self._processes.start(
            "coordinator", [*console_script("coordinator"), "serve", "--folder", str(self.hub)]))
        self._wait(lambda: _listens(port), "the coordinator to listen")
        self.coordinator.look()

    def enrol(self, names: Sequence[str]) -> None:
        """Gives each silo an identity and a silo.toml that permits the plug-in and its network."""
        self._processes.run("enrol", [sys.executable, "-m", "benchmarks.wire.enrol_silos", str(self.hub),
                                      str(self.homes), *names])

    def register(self, names: Sequence[str]) -> None:
        """Adds members that never call: they have joined once, and are away by their own policy for a year."""
        now = time.time()
        with contextlib.closing(sqlite3.connect(self.hub / "ledger.sqlite", timeout=30)) as ledger, ledger:
            ledger.executemany(
                "INSERT INTO silo (name, enrolled_unix, joined_unix, seen_unix, version, away_reason, away_until_unix)"
                " VALUES (?, ?, ?, ?, '', 'outside working hours', ?)",
                [(name, now, now, now, now + 365 * 86400) for name in names])
            ledger.executemany("INSERT INTO certificate VALUES (?, ?, ?, ?, NULL)",
                               [(str(10**40 + number), name, now, now + 90 * 86400)
                                for number, name in enumerate(names)])

    def permit(self, name: str, parameters: int) -> None:
        """Writes the silo.toml of an enrolled silo."""
        (self.homes / name / "silo.toml").write_text(
            f'[permit]\nmethods = ["perturb"]\n'
            f'factories = ["semisilo_perturb.network:parameters_{parameters}"]\n', encoding="utf-8")

    def start_silo(self, name: str) -> None:
        """Starts `silo join` with a few images."""
        images = self.homes / name / "images.npz"
        np.savez(images, train_images=np.zeros((4, 8, 8), np.uint8))
        self.silos[name] = ProcessUse(self._processes.start(
            name, [*console_script("silo"), "join", "--data", str(images), "--home", str(self.homes / name)]))

    def wait_until_joined(self, count: int) -> None:
        """Until so many silos wait for a task."""
        self._wait(lambda: int(self.query("SELECT count(*) FROM silo WHERE joined_unix IS NOT NULL")[0][0]) >= count,
                   f"{count} silos to join", seconds=_START_SECONDS + 2.0 * count)

    def queue(self, shape: StudyShape) -> None:
        """Writes the study and puts it into the queue; the coordinator starts it within a second."""
        folder = self.hub / "studies" / STUDY
        folder.mkdir(parents=True)
        (folder / "study.toml").write_text(shape.toml(), encoding="utf-8")
        np.savez(folder / "labelled.npz", train_images=np.zeros((4, 8, 8), np.uint8),
                 train_labels=np.array([0, 1, 0, 1]))
        self._coordinator("queue", "queue", STUDY, "--folder", str(self.hub))

    # Running ----------------------------------------------------------------------------------------------------------

    def wait_until_complete(self, *, seconds: float, say: Callable[[str], None],
                            on_round: Callable[[int], None] = lambda number: None) -> None:
        """Until the study is over, looking at processes and rounds meanwhile.

        Raises: StepFailed when it does not end well in time.
        """
        told, end = -1, time.monotonic() + seconds
        while True:
            self.look()
            self._processes.check()
            rows = self.query("SELECT state, reason FROM study WHERE name = ?", STUDY)
            done = self.query("SELECT max(number) FROM round WHERE study = ? AND state = 'completed'", STUDY)[0][0]
            if done is not None and done != told:
                told = int(done)
                say(f"round {told} is committed")
                on_round(told)
            if rows and rows[0][0] == "completed":
                return
            if rows and rows[0][0] in ("failed", "stopped"):
                raise StepFailed(f"The study {rows[0][0]}: {rows[0][1]}")
            if time.monotonic() > end:
                raise StepFailed(f"The study did not end within {seconds:.0f} s.")
            time.sleep(0.1)

    def look(self) -> None:
        """Notes what all processes have used so far."""
        self.coordinator.look()
        for silo in self.silos.values():
            silo.look()

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time by role at the last look, of all silos together."""
        return {"coordinator": self.coordinator.own_cpu_seconds,
                "coordinator compute": self.coordinator.child_cpu_seconds,
                "silos": sum(silo.own_cpu_seconds for silo in self.silos.values()),
                "silos compute": sum(silo.child_cpu_seconds for silo in self.silos.values())}

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of the ledger, read from outside."""
        path = self.hub / "ledger.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as ledger:
            return ledger.execute(sql, values).fetchall()

    def _wait(self, condition: Callable[[], bool], what: str, *, seconds: float = _START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self._processes.check()
            if time.monotonic() > end:
                raise StepFailed(f"Waited {seconds:.0f} s in vain for {what}.")
            time.sleep(0.05)

    def _coordinator(self, name: str, *words: str) -> str:
        return self._processes.run(name, [*console_script("coordinator"), *words])


@contextlib.contextmanager
def plugin_on_path(folder: Path) -> Iterator[None]:
    """Lets processes that are started meanwhile find the plug-in: its folder, and its entry points as an installer
    would write them, stand on their module path."""
    project = tomllib.loads((_PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = folder / "site"
    facts = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\n"
                                    f"Version: {project['version']}\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()), encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), str(_PLUGIN), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
