"""What stands between a silo and the coordinator in hospitals, for tests: Debian's own programs, started on free ports.

Needs the Debian packages tinyproxy and haproxy (apt-get install tinyproxy haproxy); whoever uses one without skips.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE_SECONDS, free_ports

__all__ = ["Balancer", "HttpProxy", "balancer", "http_proxy"]

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class _Program:
    """A program that listens on one port and may be stopped and started again there."""

    def __init__(self, folder: Path, name: str, port: int) -> None:
        found = shutil.which(name, path=_PLACES)
        if found is None:
            pytest.skip(f"{name} (Debian package {name}) is not installed")
        self.port = port
        self._program = found
        self._settings = folder / f"{name}.conf"
        self._log = folder / f"{name}.log"
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Starts it; returns when it listens."""
        self._settings.write_text(self._configuration())
        with open(self._log, "ab") as log:
            self._running = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            assert self._running.poll() is None, self.log
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
                return
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    def stop(self) -> None:
        """Kills it: all connections through it are reset or closed."""
        running, self._running = self._running, None
        if running is not None:
            running.send_signal(signal.SIGKILL)
            running.wait(PATIENCE_SECONDS)

    def _configuration(self) -> str:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError


class HttpProxy(_Program):
    """tinyproxy: a proxy of HTTP that wants a user name and a password."""

    def __init__(self, folder: Path, password: str) -> None:
        super().__init__(folder, "tinyproxy", free_ports())
        self.password = password
        """May be changed before it is started again."""

    def _configuration(self) -> str:
        return (f"Port {self.port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\nAllow 127.0.0.1\n"
                f"BasicAuth silo {self.password}\nLogLevel Connect\n")

    def _command(self) -> list[str]:
        return [self._program, "-d", "-c", str(self._settings)]


class Balancer(_Program):
    """HAProxy as docs/operations.md sets it up: reads the name that a silo asks for (SNI), passes TLS through, opens
    nothing. It listens on two ports in a row, for work and for enrolment, and passes them to two in a row."""

    def __init__(self, folder: Path, name: str, port: int, target_port: int) -> None:
        super().__init__(folder, "haproxy", port)
        self._name = name
        self._target = target_port

    def _configuration(self) -> str:
        (settings,) = re.findall(r"```\n(defaults\n.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert "timeout client 50s" in settings, "as in the haproxy.cfg that Debian installs"
        for written, here in ((":8443\n", f"127.0.0.1:{self.port}\n"), (":8444\n", f"127.0.0.1:{self.port + 1}\n")):
            settings = settings.replace(f"bind {written}", f"bind {here}")
        for number in (0, 1):
            settings = settings.replace(f"10.0.0.7:{8443 + number}", f"127.0.0.1:{self._target + number}")
        settings = settings.replace("coordinator.lung-federation.semisilo", self._name)
        return "global\n    log stdout format raw local0\n" + settings.replace(
            "defaults\n", "defaults\n    log global\n    option tcplog\n")

    def _command(self) -> list[str]:
        return [self._program, "-db", "-f", str(self._settings)]


@contextlib.contextmanager
def http_proxy(folder: Path, *, password: str) -> Iterator[HttpProxy]:
    """A proxy for the user "silo" that ends with the test; skips the test where there is no tinyproxy."""
    proxy = HttpProxy(folder, password)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()


@contextlib.contextmanager
def balancer(folder: Path, *, name: str, port: int, target_port: int) -> Iterator[Balancer]:
    """A balancer on one port of this machine before another; skips the test where there is no haproxy.

    Args:
        name: that TLS must ask for.
    """
    program = Balancer(folder, name, port, target_port)
    try:
        program.start()
        yield program
    finally:
        program.stop()
