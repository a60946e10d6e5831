"""The nursery itself: imports what is heavy, once, and is copied for every compute process that is asked for.

`semisilo.common.process.nursery` starts this module and documents what it is for. A process may be copied safely only
while it has a single thread: a lock that another thread holds would stay locked for ever in the copy. So this one
computes nothing, waits in one `select` for requests and for children that have ended, and refuses to begin when
something that it has imported has started a thread.

Tests: tests/common/process/test_nursery.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass
from typing import NoReturn

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import ComputeFailed
from semisilo.common.process.compute_process import Build, describe_start, die_with_parent, load_build, serve
from semisilo.common.process.messages import Failure
from semisilo.common.text.logs import set_up_child_logging

__all__ = ["MESSAGE_BYTES", "Asked", "Said"]

MESSAGE_BYTES = 64 * 1024
"""Largest message, either way."""
_TASKS = "/proc/self/task"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a nursery is asked, a packet of JSON: another process or the end of one."""

    fork: bool = False
    """Two descriptors come with it: the socket that the process is to serve, and what it prints to."""
    kill: int = 0
    """Process id of what is to be killed, with all that it has started; one that has ended is passed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a nursery says, a packet of JSON."""

    ready: bool = False
    born: int = 0
    """Process id of the process that was asked for; those who ask are answered in turn."""
    ended: int = 0
    """Process id of a process that is gone, with all that it had started."""
    status: int = 0
    """Its exit status, or the signal that ended it, negative."""
    error: Failure | None = None
    """Why there is none, or why this nursery cannot begin."""


class _Nursery:
    def __init__(self, control: socket.socket, build: Build) -> None:
        self._control = control
        self._build = build
        self._children: set[int] = set()
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it only has to end the waiting

    def work(self) -> None:
        """Until whoever has started this process closes its end; then nothing is left of it."""
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._bury()
            if self._control.fileno() in ready:
                message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 2)
                if not message:
                    break
                self._do(from_dict(Asked, json.loads(message)), descriptors)
        for child in self._children:
            _kill(child)

    def _do(self, asked: Asked, descriptors: list[int]) -> None:
        if asked.fork:
            try:
                self.say(Said(born=self._copy(*descriptors)))
            except OSError as error:
                self.say(Said(error=Failure(code=ComputeFailed.code,
                                            text=f"The compute process cannot be started: {error}.")))
            finally:
                for each in descriptors:
                    os.close(each)
        if asked.kill in self._children:
            _kill(asked.kill)

    def _copy(self, end: int, output: int) -> int:
        """Process id of the copy, which serves `end` and prints to `output`."""
        here = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            self._children.add(child)
            return child
        try:
            self._serve(end, output, here)
        finally:
            os._exit(1)  # never back into the parent's loop

    def _serve(self, end: int, output: int, parent: int) -> NoReturn:
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for each in (self._wake, self._woken):
            os.close(each)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        serve(socket.socket(fileno=end), lambda: self._build)

    def _bury(self) -> None:
        """Tells of the children that have ended."""
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                return
            _kill(ended.si_pid)  # what it had started; its number is nobody else's as long as it was not waited for
            _, status = os.waitpid(ended.si_pid, 0)
            self._children.discard(ended.si_pid)
            self.say(Said(ended=ended.si_pid, status=os.waitstatus_to_exitcode(status)))

    def say(self, said: Said) -> None:
        """Tells whoever has started this process; if that is gone, this one soon is as well."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(to_dict(said)).encode())


def _kill(child: int) -> None:
    for kill in (os.kill, os.killpg):  # a copy that has just begun has no group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)


def _check_single() -> None:
    """Raises: ComputeFailed when this process has more than one thread."""
    with contextlib.suppress(FileNotFoundError):
        threads = os.listdir(_TASKS)
        if len(threads) != 1:
            raise ComputeFailed(f"A process of {len(threads)} threads cannot be copied.",
                                remedy="An imported module starts threads.")


def _main(target: str, descriptor: str, parent: str, *handed: str) -> None:
    die_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):  # as for every compute process
        signal.signal(number, signal.SIG_IGN)
    set_up_child_logging()
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    try:
        build = load_build(target, [int(each) for each in handed])
        _check_single()
    except Exception as error:
        control.send(json.dumps(to_dict(Said(error=describe_start(error)))).encode()[:MESSAGE_BYTES])
        return
    gc.collect()
    gc.freeze()  # what the collector writes to is copied for every process
    nursery = _Nursery(control, build)
    nursery.say(Said(ready=True))
    nursery.work()
    os._exit(0)  # nothing is to be tidied up, and torch would take its time


if __name__ == "__main__":
    _main(*sys.argv[1:])
