"""Watches other processes from outside: peak memory and the bytes of their TCP connections. Only the standard library.

Memory is VmHWM from /proc, read until a process ends. Bytes are what the kernel counted on each connection (TLS, HTTP
and all), read over the sock_diag socket as `ss -ti` does, and matched to processes by the socket's inode: no proxy is
in the way, and a scan of some sockets costs a fraction of a millisecond. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

__all__ = ["SILO", "Peak", "Processes", "Watch", "command_line", "free_port", "peak_bytes", "wait_for"]

SILO = "silo"
"""Names of silos' processes begin with this."""

_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_DUMP_REQUEST = 0x301
_ESTABLISHED_AND_CLOSING = 0xFFE & ~(1 << 10)  # all states but LISTEN
_PERIOD_SECONDS = 0.02
_GRACE_SECONDS = 2.0  # from being asked to end to being killed
_MEMORY_EVERY = 10  # scans


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, seconds: float, *, every: float = 0.05) -> None:
    """Returns when the condition holds.

    Raises: TimeoutError, which names what was waited for.
    """
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"Waited {seconds:.0f} s for {what}.")
        time.sleep(every)


def peak_bytes(pid: int) -> int:
    """VmHWM: the most that a process ever had in memory; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:")), 0)


def command_line(pid: int) -> str:
    """The words of a process's command, separated by spaces; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


class Processes:
    """Starts processes, and on leaving ends them and whatever they have started, however detached.

    Each carries a mark of this object in its environment, which children inherit: so what belongs to whom is known
    from /proc, and nothing else is ever touched. May be nested.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where each process's output goes, as <name>.log."""
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self._mark = f"SEMISILO_WIRE_{uuid.uuid4().hex}"

    def __enter__(self) -> Processes:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None,
              folder: Path | None = None) -> int:
        """Starts a process and returns its id."""
        marked = {**(os.environ if environment is None else environment), self._mark: name}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(list(command), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=marked, cwd=folder, start_new_session=True)
        self.started[name] = process
        return process.pid

    def owners(self) -> dict[int, str]:
        """Every running process that was started here or by those, with the name that it belongs to."""
        mark = f"\0{self._mark}=".encode()
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    _, marked, rest = (b"\0" + Path(f"/proc/{entry}/environ").read_bytes()).partition(mark)
                    if marked:
                        found[int(entry)] = rest.partition(b"\0")[0].decode()
        return found

    def running(self, *names: str) -> bool:
        """True; raises RuntimeError with the end of its log if one of these (all, without names) has ended."""
        for name in names or tuple(self.started):
            code = self.started[name].poll()
            if code is not None:
                raise RuntimeError(f"{name} ended with {code}: {self.tail(name)}")
        return True

    def find(self, name: str, pattern: str) -> str:
        """The first group of a regular expression's first match in a process's output; empty without a match."""
        found = re.search(pattern, (self.folder / f"{name}.log").read_text(errors="replace"))
        return found.group(1) if found else ""

    def tail(self, name: str, size_bytes: int = 1500) -> str:
        """The end of a process's output."""
        text = (self.folder / f"{name}.log").read_bytes()[-size_bytes:]
        return text.decode(errors="replace").strip()

    def stop(self) -> None:
        """Terminates, and after a while kills, everything that was started here."""
        for sent, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            for pid in self.owners():
                with contextlib.suppress(OSError):
                    os.kill(pid, sent)
            limit = time.monotonic() + seconds
            while time.monotonic() < limit:
                ended = [process.poll() is not None for process in self.started.values()]  # poll: leaves no zombies
                if all(ended) and not self.owners():
                    break
                time.sleep(0.05)
        self.started.clear()


@dataclass(frozen=True, slots=True)
class Peak:
    """How much memory one process took at most."""

    owner: str
    """The name under which it, or what started it, was started."""
    command: str
    peak_bytes: int


@dataclass
class _Connection:
    """What one connection has carried, seen from the side that made it."""

    up_bytes: int = 0
    down_bytes: int = 0


@dataclass
class Watch:
    """Samples processes and connections from a thread until stopped.

    Times are those of time.time(), so that they can be compared with what other processes write down.
    """

    server_port: int
    """Connections to this port are counted."""
    owners: Callable[[], Mapping[int, str]]
    """Process id -> the name it belongs to, for all processes that count; asked some times a second."""
    peaks: dict[int, Peak] = field(default_factory=dict)
    """Process id -> its peak memory, kept after the process has gone."""
    error: Exception | None = None
    """Why sampling ended early, if it did."""
    _connections: dict[tuple[int, int], _Connection] = field(default_factory=dict)
    _silos: list[int] = field(default_factory=list)
    _inodes: set[int] = field(default_factory=set)
    _strangers: dict[int, int] = field(default_factory=dict)
    _times: list[float] = field(default_factory=list)
    _totals: list[tuple[int, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def bytes_between(self, begin: float, end: float) -> tuple[int, int]:
        """Wire bytes (up, down) of all silos together between two moments, as of the last sample before each."""
        if self.error is not None:
            raise RuntimeError(f"Counting bytes failed: {self.error}") from self.error
        (first_up, first_down), (last_up, last_down) = self._total_at(begin), self._total_at(end)
        return last_up - first_up, last_down - first_down

    def silo_peak_bytes(self, together: Callable[[str], str] = lambda command: command) -> int:
        """The peak of the silo that took most memory: the sum over its processes.

        Args:
            together: gives the same word to commands of which only one runs at a time; the largest of those counts.
        """
        silos: dict[str, dict[str, int]] = {}
        for peak in self.peaks.values():
            if peak.owner.startswith(SILO):
                parts = silos.setdefault(peak.owner, {})
                word = together(peak.command)
                parts[word] = max(parts.get(word, 0), peak.peak_bytes)
        return max((sum(parts.values()) for parts in silos.values()), default=0)

    def _total_at(self, moment: float) -> tuple[int, int]:
        index = bisect_right(self._times, moment)
        return self._totals[index - 1] if index else (0, 0)

    def _run(self) -> None:
        scans = 0
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnostics:
                while not self._stop.wait(_PERIOD_SECONDS):
                    if scans % _MEMORY_EVERY == 0:
                        self._read_memory()
                    self._read_bytes(diagnostics)
                    scans += 1
        except Exception as error:  # reported by bytes_between, in the thread that asks
            self.error = error

    def _read_memory(self) -> None:
        owners = self.owners()
        self._silos = [pid for pid, name in owners.items() if name.startswith(SILO)]
        for pid, name in owners.items():
            if found := peak_bytes(pid):
                known = self.peaks.get(pid)
                words = known.command if known else command_line(pid)
                self.peaks[pid] = Peak(name, words, found)

    def _read_bytes(self, diagnostics: socket.socket) -> None:
        now = time.time()
        seen = list(_connections_to(diagnostics, self.server_port))
        unknown = {inode for inode, _, _, _ in seen if inode and inode not in self._inodes
                   and self._strangers.get(inode, 0) < 3}
        if unknown:
            mine = set(_socket_inodes(self._silos))
            self._inodes |= unknown & mine
            for inode in unknown - mine:  # another's, or so new that its owner was not listed yet: asked three times
                self._strangers[inode] = self._strangers.get(inode, 0) + 1
        for inode, cookie, up_bytes, down_bytes in seen:
            if (inode, cookie) in self._connections or inode in self._inodes:
                connection = self._connections.setdefault((inode, cookie), _Connection())
                connection.up_bytes, connection.down_bytes = up_bytes, down_bytes
        self._times.append(now)
        self._totals.append((sum(each.up_bytes for each in self._connections.values()),
                             sum(each.down_bytes for each in self._connections.values())))


def _socket_inodes(pids: Sequence[int]) -> Iterator[int]:
    for pid in pids:
        try:
            entries = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def _connections_to(diagnostics: socket.socket, port: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (inode, cookie, bytes sent without retransmissions, bytes received) of connections to a port.

    Layouts: linux/inet_diag.h (inet_diag_req_v2, inet_diag_msg) and linux/tcp.h (tcp_info: u64 bytes_received at 128,
    bytes_sent at 200, bytes_retrans at 208).
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        identity = struct.pack("!HH", 0, port) + bytes(32) + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0,
                              _ESTABLISHED_AND_CLOSING) + identity
        diagnostics.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 0, 0) + request)
        finished = False
        while not finished:
            data = diagnostics.recv(1 << 20)
            offset = 0
            while offset < len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind != _SOCK_DIAG_BY_FAMILY:
                    if kind != _NLMSG_DONE:
                        code = -struct.unpack_from("=i", data, offset + 16)[0]
                        raise OSError(code, f"sock_diag: {os.strerror(code)}")
                    finished = True
                    break
                found = _parse(data[offset + 16:offset + length], port)
                if found is not None:
                    yield found
                offset += (length + 3) & ~3


def _parse(message: bytes, port: int) -> tuple[int, int, int, int] | None:
    target = struct.unpack_from("!H", message, 6)[0]
    if target != port:
        return None
    cookie = struct.unpack_from("=Q", message, 44)[0]
    inode = struct.unpack_from("=I", message, 68)[0]
    offset = 72
    while offset + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, offset)
        if length < 4:
            break
        if kind == _INET_DIAG_INFO and length >= 4 + 216:
            info = message[offset + 4:offset + length]
            received = struct.unpack_from("=Q", info, 128)[0]
            sent, repeated = struct.unpack_from("=QQ", info, 200)
            return inode, cookie, sent - repeated, received
        offset += (length + 3) & ~3
    return None
