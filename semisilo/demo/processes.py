"""Child processes that never outlive us: each in a group of its own, with a log file, stopped together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from semisilo.common.errors import SemisiloError
from semisilo.common.text.logs import printable

__all__ = ["Processes", "StepFailed", "console_script"]

_TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1


class StepFailed(SemisiloError):
    """A process that we started has failed; the text ends with the last lines of its log."""

    code = "STEP_FAILED"

    def __init__(self, text: str, *, log_tail: str = "") -> None:
        super().__init__(text)
        self.log_tail = log_tail


def console_script(name: str) -> list[str]:
    """The command line of one of our console scripts, run by this interpreter.

    The script beside the interpreter where there is one; it never imports from the current folder.
    """
    script = Path(sys.executable).with_name(name)
    if script.is_file():
        return [str(script)]
    found = shutil.which(name, path=str(Path(sys.prefix) / "bin"))
    return [found] if found else [sys.executable, "-P", "-m", f"semisilo.{name}.cli.main"]


@dataclass(slots=True)
class _Started:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Processes:
    """A context: whatever was started in it has ended when it is left, however it is left."""

    def __init__(self, *, logs: Path, grace_seconds: float = 10.0) -> None:
        """`logs`: folder for one log file per name. `grace_seconds`: from a polite request to the kill."""
        self._logs = logs
        self._grace_seconds = grace_seconds
        self._started: list[_Started] = []

    def __enter__(self) -> Processes:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    def run(self, name: str, command: Sequence[str], *, text: str = "") -> str:
        """Runs a command to its end; `text` is its standard input. Returns its standard output.

        Raises: StepFailed when it does not end with status 0.
        """
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = self._spawn(name, log, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            output, _ = process.communicate(text.encode())
        if process.returncode != 0:
            raise self._failure(self._started[-1])
        self._started.pop()
        return output.decode(errors="replace")

    def start(self, name: str, command: Sequence[str]) -> int:
        """Starts a command that goes on in the background, its output in the log `name`.log; returns its process id."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = self._spawn(name, log, command, stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT)
        return process.pid

    def check(self) -> None:
        """Raises StepFailed for the first process that has ended with another status than 0."""
        for started in self._started:
            if started.process.poll() not in (None, 0):
                raise self._failure(started)

    def running(self) -> list[str]:
        """Names of the processes that have not ended."""
        return [started.name for started in self._started if started.process.poll() is None]

    def stop(self) -> None:
        """Asks all of them to end, waits, and kills whatever is left in their groups."""
        alive = [started.process for started in self._started if started.process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + self._grace_seconds
        try:
            while time.monotonic() < end and not all(map(_has_ended, alive)):
                time.sleep(0.02)
        finally:  # also when a second Ctrl-C ends the wait
            for process in alive:
                if process.returncode is None:  # not reaped: the group's number is still ours
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._started.clear()

    def _failure(self, started: _Started) -> StepFailed:
        status = started.process.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return StepFailed(f"'{started.name}' {how}.", log_tail=_tail(started.log))

    def _spawn(self, name: str, log: Path, command: Sequence[str], *, stdin: int, stdout: object,
               stderr: object) -> subprocess.Popen[bytes]:
        local = ",".join(part for part in (os.environ.get("no_proxy", ""), "127.0.0.1,localhost") if part)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "no_proxy": local, "NO_PROXY": local}
        with _uninterrupted():  # else a process that has just begun would be nobody's
            process = subprocess.Popen(list(command), stdin=stdin, stdout=stdout, stderr=stderr,  # type: ignore[call-overload]
                                       env=environment, start_new_session=True, preexec_fn=_end_with_parent())
            self._started.append(_Started(name, process, log))
        return process  # type: ignore[no-any-return]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts off Ctrl-C and requests to end until what is inside is done. Of the main thread, which alone gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    taken = {number: handler for number, handler in before.items() if callable(handler)}  # not those that are ignored
    for number in taken:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it, where the system can tell: its number, and so its group's, must not be given away yet."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end_with_parent() -> object:
    """What a child does before it runs its program: asks the kernel to end it when we die, even by kill -9 (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(printable(line, limit=300) for line in lines[-_TAIL_LINES:])
