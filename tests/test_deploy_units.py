"""The command lines of the systemd units are run: with their environment, and /opt and /var mapped into a folder."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.processes import free_ports, run_command

UNITS = Path(__file__).resolve().parents[1] / "deploy" / "systemd"


class Machine:
    """A folder that stands for a machine: units' paths are mapped into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "var" / "lib" / "semisilo"
        (root / "var" / "backups" / "semisilo").mkdir(parents=True)
        (root / "scans").mkdir()
        self.state.mkdir(parents=True, mode=0o700)
        self.running: list[subprocess.Popen[str]] = []

    def command(self, unit: str, *, replacing: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
        """ExecStart and the environment of a unit."""
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(UNITS / f"{unit}.service", encoding="utf-8")
        program, *words = shlex.split(parser["Service"]["ExecStart"])
        assert program.startswith("/opt/semisilo/bin/")
        words = [f"{self.root}{word}" if word.startswith("/var/") else word for word in words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMISILO")}
        variables = dict(pair.split("=", 1) for pair in shlex.split(parser["Service"]["Environment"]))
        environment |= {name: (replacing or {}).get(value, value) for name, value in variables.items()}
        return [sys.executable, "-P", "-m", f"semisilo.{Path(program).name}.cli.main", *words], environment

    def start(self, unit: str, *, log: Path, replacing: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a unit's command, as systemd would: in a session of its own, with the unit's umask."""
        command, environment = self.command(unit, replacing=replacing)
        with log.open("ab") as file:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                       start_new_session=True, umask=0o077, text=True)
        self.running.append(process)
        return process

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as a person would beside the services."""
        program, *rest = words
        return subprocess.CompletedProcess(words, *run_command(f"semisilo.{program}.cli.main", *rest))

    def stop(self) -> None:
        """Kills what is left."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(300)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        made = Machine(tmp_path / "machine")
        stack.callback(made.stop)
        yield made


def _wait(process: subprocess.Popen[str], log: Path, machine: Machine, *words: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while (done := machine.run(*words)).returncode != 0:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, f"{words}: {done.stdout}{done.stderr}\n{log.read_text()}"
        time.sleep(0.2)


def _end(process: subprocess.Popen[str], log: Path) -> None:
    """As `systemctl stop`: SIGTERM to the main process, which ends the others, within TimeoutStopSec."""
    process.terminate()
    assert process.wait(300) == 0, log.read_text()


@pytest.mark.slow
def test_the_services_of_a_hub_and_a_silo_start_answer_and_stop(machine: Machine, tmp_path: Path) -> None:
    port, hub, silo = free_ports(), str(machine.state / "federation"), str(machine.state / "silo")
    made = machine.run("coordinator", "init", "lung", "--address", f"127.0.0.1:{port}", "--folder", hub)
    assert made.returncode == 0, made.stderr
    configuration = Path(hub) / "federation.toml"
    configuration.write_text(configuration.read_text().replace('listen = "[::]"', 'listen = "127.0.0.1"')
                             .replace('listen = "127.0.0.1:8080"', 'listen = "127.0.0.1:0"'))
    assert machine.run("coordinator", "status", "--folder", hub, "--check").returncode == 1
    log = tmp_path / "hub.log"
    coordinator = machine.start("semisilo-coordinator", log=log)
    _wait(coordinator, log, machine, "coordinator", "status", "--folder", hub, "--check")
    status = json.loads(machine.run("coordinator", "status", "--folder", hub, "--json").stdout)
    assert status["running"] is True

    line = machine.run("coordinator", "invite", "hospital-a", "--folder", hub).stdout.strip()
    _wait(coordinator, log, machine, "silo", "enroll", line, "--home", silo)
    assert (machine.state / "silo" / "identity").exists()
    assert machine.run("silo", "status", "--home", silo, "--check").returncode == 1
    silo_log, images = tmp_path / "silo.log", machine.root / "scans" / "images.npz"
    np.savez(images, train_images=np.zeros((4, 8, 8), np.uint8))
    agent = machine.start("semisilo-silo", log=silo_log, replacing={"/scans": str(images)})
    _wait(agent, silo_log, machine, "silo", "status", "--home", silo, "--check")

    backup, environment = machine.command("semisilo-backup")
    done = subprocess.run(backup, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (archive,) = (machine.root / "var" / "backups" / "semisilo").iterdir()
    assert archive.stat().st_mode & 0o777 == 0o600

    _end(agent, silo_log)
    _end(coordinator, log)
    assert machine.run("coordinator", "status", "--folder", hub, "--check").returncode == 1
    assert machine.run("silo", "status", "--home", silo, "--check").returncode == 1
    readable = [path for path in machine.state.rglob("*") if path.is_file() and path.stat().st_mode & 0o007
                and path.name in ("ca.key", "coordinator.key", "page.token", "live.json", "status.json")]
    assert readable == []


@pytest.mark.slow
def test_a_coordinator_without_a_federation_ends_with_the_status_that_is_not_tried_again(
        machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "hub.log"
    assert machine.start("semisilo-coordinator", log=log).wait(300) == 2
    assert "is not a federation folder" in log.read_text()


def test_init_for_scripts_makes_a_federation_once(machine: Machine) -> None:
    folder = str(machine.state / "federation")
    words = ("coordinator", "init", "lung", "--address", "hub.example:8443", "--folder", folder, "--if-missing")
    assert machine.run(*words).returncode == 0
    key = (Path(folder) / "authority" / "ca.key").read_bytes()
    again = machine.run(*words)
    assert (again.returncode, again.stdout.strip()) == (0, f"Federation lung is in {folder} already.")
    assert (Path(folder) / "authority" / "ca.key").read_bytes() == key
    other = machine.run("coordinator", "init", "heart", *words[3:])
    assert other.returncode == 2
    assert machine.run(*words[:-1]).returncode == 2  # the control: without the option it is refused
