"""A federation of real processes on localhost for tests: `coordinator serve` and `silo join` over mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semisilo.common.text.cli_errors import run_cli
from tests import preloaded
from tests.proxy import Proxy

PATIENCE_SECONDS = 300.0
"""After which a test gives up waiting for what must come. Nobody waits that long unless something is broken: it leaves
room for a machine ten times slower, or one that does ten other things."""

CRASHING = Path(__file__).parent / "crashing"

STUDY = """
[study]
seed = 3
rounds = 3
start_with = 2
labelled_only_baseline = false
[model]
name = "wide_network:wide"
[data]
labelled = "labelled.npz"
test = "test.npz"
image = {{ size = 8, channels = 1 }}
[numerics]
threads = 1
[augmentation]
policy = "small"
without = ["Invert", "Solarize"]
[method]
name = "semifl"
confidence_threshold = 0.3
local_epochs = 1
coordinator_epochs = 2
unlabelled_batch = 20
lr = 0.05
[participation]
round_timeout = "{timeout}"
"""


def free_ports() -> int:
    """A port that is free together with the next one.

    Below those that systems give to outgoing connections: one of another test would take it before it is listened on.
    """
    for _ in range(100):
        port = secrets.randbelow(8_000) * 2 + 16_000
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two free ports in a row")


def run_command(module: str, *words: str) -> tuple[int, str, str]:
    """Runs a command line such as ("semisilo.silo.cli.main", "status") in this process, which costs no start of an
    interpreter.

    In a thread of its own where the caller is in an event loop, as with a browser: a command may run one.

    Returns: exit status, what it printed, and what it said on standard error.
    """
    program = module.removesuffix(".cli.main").rpartition(".")[2]  # "silo", as in its console script

    def run() -> int:
        return run_cli(importlib.import_module(module).app, words, name=program)

    try:
        asyncio.get_running_loop()
        looping = True
    except RuntimeError:
        looping = False
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err, \
            ThreadPoolExecutor(1) as thread:
        status = thread.submit(run).result() if looping else run()
    return status, out.getvalue(), err.getvalue()


class FederationOfProcesses:
    """Starts, kills and restarts the processes of one federation in a folder."""

    def __init__(self, folder: Path, *, silos: tuple[str, ...] = ("alpha", "beta"), timeout: str = "5m",
                 study: str = STUDY, images: int = 60, public_port: int = 0,
                 page: bool = False, copies: bool = True) -> None:
        """`copies`: whether processes may begin as copies of one that has imported what they need
        (`tests/preloaded.py`); tests of how they start, and of what the system refuses them, need fresh ones.
        """
        self.folder = folder
        self.hub = folder / "hub"
        self.silos = silos
        self.port = free_ports()
        self.factory = "wide_network:wide"
        """What the silos permit."""
        self.sources = {silo: folder / f"{silo}.npz" for silo in silos}
        """Where each silo's images are."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.surroundings: dict[str, dict[str, str]] = {}
        """Process -> variables that its environment has besides."""
        self.copies = copies
        self._command("semisilo.coordinator.cli.main", "init", "testing", "--address", f"127.0.0.1:{self.port}",
                      "--folder", str(self.hub))
        configuration = self.hub / "federation.toml"
        text = configuration.read_text().replace('listen = "[::]"', f'listen = "127.0.0.1:{self.port}"')
        if public_port:
            text = text.replace(f'public = "127.0.0.1:{self.port}"', f'public = "127.0.0.1:{public_port}"'
                                f'\nenrollment = "127.0.0.1:{self.port + 1}"')
        configuration.write_text(text.replace('listen = "127.0.0.1:8080"', 'listen = "127.0.0.1:0"' if page
                                              else 'listen = ""'))
        first = self.hub / "studies" / "first"
        (first / "study.toml").write_text(study.format(timeout=timeout))
        from sklearn.datasets import load_digits  # takes a second that others need not wait

        digits = load_digits()
        pixels, labels = np.round(digits.images * 255 / 16).astype(np.uint8), digits.target
        np.savez(first / "labelled.npz", train_images=pixels[:80], train_labels=labels[:80], val_images=pixels[80:100],
                 val_labels=labels[80:100])
        np.savez(first / "test.npz", test_images=pixels[-300:], test_labels=labels[-300:])
        for number, silo in enumerate(silos):
            start = 100 + images * number
            np.savez(self.sources[silo], train_images=pixels[start:start + images])

    # Commands ---------------------------------------------------------------------------------------------------------

    def _command(self, module: str, *words: str) -> str:
        status, out, err = run_command(module, *words)
        assert status == 0, f"{module} {words}: {err}"
        return out

    def _environment(self, crash: str, lie: str = "") -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(CRASHING), os.environ.get("PYTHONPATH"))))
        environment = dict(os.environ, PYTHONPATH=path, PYTHONUNBUFFERED="1", GRPC_ENABLE_FORK_SUPPORT="0")
        for variable, value in (("SEMISILO_TEST_CRASH", crash), ("SEMISILO_TEST_LIE", lie)):
            environment.pop(variable, None)
            if value:
                environment[variable] = value
        return environment

    def _start(self, name: str, module: str, *words: str, crash: str, lie: str = "") -> None:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - the process keeps it
        environment = self._environment(crash, lie) | self.surroundings.get(name, {})
        if not self.copies:
            environment[preloaded.OFF] = "1"
        self.running[name] = preloaded.Popen([sys.executable, "-P", "-m", module, *words], stdout=log, stderr=log,
                                             stdin=subprocess.DEVNULL, start_new_session=True, env=environment)

    def coordinator(self, *words: str) -> str:
        """Runs a coordinator command; returns what it prints."""
        return self._command("semisilo.coordinator.cli.main", *words, "--folder", str(self.hub))

    def serve(self, *, crash: str = "") -> None:
        """Starts `coordinator serve`."""
        self._start("coordinator", "semisilo.coordinator.cli.main", "serve", "--exit-when-finished", "--folder",
                    str(self.hub), crash=crash)

    def enroll(self, silo: str) -> None:
        """Invites and enrolls a silo, and permits the test's network there."""
        line = self.coordinator("invite", silo).strip()
        home = self.folder / silo
        end = time.monotonic() + PATIENCE_SECONDS
        while True:  # until the coordinator has opened its port for it
            status, _, err = run_command("semisilo.silo.cli.main", "enroll", line, "--home", str(home))
            if status == 0:
                break
            assert time.monotonic() < end, err
            time.sleep(0.1)
        policy = home / "silo.toml"
        policy.write_text(policy.read_text().replace("\nfactories = []", f'\nfactories = ["{self.factory}"]'))
        assert self.factory in policy.read_text()

    def join(self, silo: str, *, crash: str = "", lie: str = "",
             words: tuple[str, ...] = ("--exit-when-finished",), processes: int = 1) -> None:
        """Starts `silo join`; under torchrun as several processes."""
        words = "semisilo.silo.cli.main", "join", "--data", str(self.sources[silo]), "--home", \
            str(self.folder / silo), *words
        if processes > 1:
            words = "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--max-restarts", \
                "3", "--module", *words
        self._start(silo, *words, crash=crash, lie=lie)

    def start(self, *, hub_crash: str = "", silo_crash: str = "") -> None:
        """Starts the coordinator and, once all are enrolled, the silos; with crash points in it and in the first silo.
        """
        self.serve(crash=hub_crash)
        for name in self.silos:
            self.enroll(name)
        for name in self.silos:
            self.join(name, crash=silo_crash if name == self.silos[0] else "")

    # Life and death ---------------------------------------------------------------------------------------------------

    def died(self, name: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for a process to be killed by its own crash point."""
        status = self.running.pop(name).wait(seconds)
        assert status == -signal.SIGKILL, f"{name} ended with {status}:\n{self.log(name)}"

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait(PATIENCE_SECONDS)

    def finish(self, *, seconds: float = PATIENCE_SECONDS) -> str:
        """Waits for the study to end by itself; returns the digest of the final state."""
        for name in ("coordinator", *self.silos):
            if name in self.running:
                status = self.running.pop(name).wait(seconds)
                assert status == 0, f"{name} ended with {status}:\n{self.log(name)}"
        (state,), = self.query("SELECT state FROM study WHERE name = 'first'")
        assert state == "completed", self.log("coordinator")
        return str(self.query("SELECT state_digest FROM round ORDER BY number DESC LIMIT 1")[0][0])

    def stop(self) -> None:
        """Kills whatever still runs."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        self.running.clear()

    # Looking ----------------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of the ledger, read from outside."""
        with contextlib.closing(sqlite3.connect(f"file:{self.hub / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(sql).fetchall()

    def wait_for(self, condition: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS) -> None:
        """Polls until something is true."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in ("coordinator", *self.silos))
                raise AssertionError(f"the condition never came true\n{logs}")
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """The end of a process's output."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""


@contextlib.contextmanager
def federation(folder: Path, **options: object) -> Iterator[FederationOfProcesses]:
    """A federation that leaves no process behind."""
    processes = FederationOfProcesses(folder, **options)  # type: ignore[arg-type]
    try:
        yield processes
    finally:
        processes.stop()


@contextlib.contextmanager
def federation_behind_a_proxy(folder: Path, **options: object) -> Iterator[tuple[FederationOfProcesses, Proxy]]:
    """Silos reach the coordinator's work port only through the proxy; enrollment is direct."""
    public = free_ports()
    with federation(folder, public_port=public, **options) as processes, \
            Proxy("127.0.0.1", processes.port, listen_port=public) as proxy:
        yield processes, proxy


@dataclass(frozen=True)
class Undisturbed:
    """A federation of processes whose study has run to its end while nothing happened to it; its ledger may be read."""

    processes: FederationOfProcesses
    proxy: Proxy
    """What stood between the silos and the coordinator; it has counted every byte."""
    digest: str
    """Of the final state."""


@contextlib.contextmanager
def undisturbed_federation(folder: Path) -> Iterator[Undisturbed]:
    """Runs `STUDY` to its end."""
    with federation_behind_a_proxy(folder) as (processes, proxy):
        processes.start()
        digest = processes.finish()
        proxy.wait_until_closed(PATIENCE_SECONDS)
        yield Undisturbed(processes, proxy, digest)
