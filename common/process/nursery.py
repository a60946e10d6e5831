"""Compute processes that share what is heavy: copies of one process that has imported and read it already.

A copy (`fork`) takes milliseconds where a fresh process takes seconds, and shares torch and images with the others
until it writes to them. The process that asks cannot be copied itself: it may have threads, an event loop or a
notebook around it. So a small one of a single thread is started for it, the nursery
(`semisilo.common.process.nursery_process`). Sockets are handed to it, so that a call goes straight to the copy; the
nursery says when one has ended. It dies with this process, and all copies die with it.

Linux alone: elsewhere a copy of a process that has loaded the system's own libraries for arithmetic is not safe.

Tests: tests/common/process/test_nursery.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import ComputeFailed, by_code
from semisilo.common.process.child import ChildProcess, ComputeDied, log_lines, manner, numerics_of, python_command
from semisilo.common.process.nursery_process import MESSAGE_BYTES, Asked, Said

__all__ = ["Nursery", "can_copy"]


def can_copy() -> bool:
    """Whether this system has nurseries."""
    return sys.platform == "linux"


class Nursery:
    """Starts compute processes as copies of one that it keeps. To be used from one event loop."""

    def __init__(self, target: str, *, handing: Sequence[int] = (), threads: int = 1) -> None:
        """
        Args:
            target: "package.module:name": what is built in each process, as of `semisilo.common.process.child.spawn`.
                What its module imports, and what the call with the descriptors reads, is there only once.
            handing: descriptors that the target is called with; they stay open here, for another nursery.
            threads: of one CPU operation.
        """
        self._target = target
        self._handing = tuple(handing)
        self._threads = threads
        self._lock = asyncio.Lock()
        self._kept: _Kept | None = None

    async def open(self) -> None:
        """Starts the nursery and waits until all is imported and read; the first copy would do so itself.

        Raises: ComputeFailed when it cannot.
        """
        async with self._lock:
            if self._kept is None or self._kept.is_gone:
                self._kept = await _Kept.started(self._target, self._handing, threads=self._threads)

    async def start_child(self, theirs: socket.socket, output: int) -> ChildProcess:
        """See `semisilo.common.process.child.StartChild`."""
        await self.open()
        assert self._kept is not None
        return await self._kept.copy(theirs.fileno(), output)

    async def close(self) -> None:
        """Ends the nursery; what it has started and is still there is killed."""
        async with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None:
                await kept.end()


class _Copy:
    """A process that the nursery has started."""

    def __init__(self, kept: _Kept, pid: int) -> None:
        self._kept = kept
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            self._kept.ask(Asked(kill=self.pid))

    def note_end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)


class _Kept:
    """The parent's view of a nursery that runs."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket,
                 output: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        self._process = process
        self._control = control
        self._log = asyncio.ensure_future(log_lines(output))
        self._ready: asyncio.Future[None] = loop.create_future()
        self._births: deque[asyncio.Future[_Copy]] = deque()
        self._copies: dict[int, _Copy] = {}
        self.is_gone = False
        control.setblocking(False)
        loop.add_reader(control.fileno(), self._hear)

    @classmethod
    async def started(cls, target: str, handing: Sequence[int], *, threads: int) -> _Kept:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output_read, output_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *python_command("semisilo.common.process.nursery_process", target, str(theirs.fileno()),
                                str(os.getpid()), *map(str, handing)),
                stdin=subprocess.DEVNULL, stdout=output_write, stderr=output_write,
                pass_fds=(theirs.fileno(), *handing), env={**os.environ, **numerics_of(threads)},
                start_new_session=True)
        except OSError as error:
            ours.close()
            os.close(output_read)
            raise ComputeFailed(f"The compute process cannot be started: {error}.") from error
        finally:
            theirs.close()
            os.close(output_write)
        output = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(output_read, "rb", 0))
        kept = cls(process, ours, output)
        try:
            await kept._ready
        except BaseException:
            await kept.end()
            raise
        return kept

    async def copy(self, end: int, output: int) -> _Copy:
        birth: asyncio.Future[_Copy] = asyncio.get_running_loop().create_future()
        if not self.is_gone:
            self._births.append(birth)
            self.ask(Asked(fork=True), [end, output])
        else:
            birth.set_exception(ComputeDied("The process that starts the others has ended."))
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            birth.add_done_callback(_unwanted)
            raise

    def ask(self, asked: Asked, descriptors: Sequence[int] = ()) -> None:
        # A nursery that is gone is noticed by `_hear`.
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(to_dict(asked)).encode()], descriptors)

    async def end(self) -> None:
        self._forget()
        if self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), _END_SECONDS)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        await self._log

    def _hear(self) -> None:
        try:
            message = self._control.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._forget()
            return
        said = from_dict(Said, json.loads(message))
        if said.ready:
            self._ready.set_result(None)
        elif said.error is not None:
            error = by_code(said.error.code)(said.error.text, remedy=said.error.remedy)
            if self._ready.done():
                self._births.popleft().set_exception(error)
            else:
                self._ready.set_exception(error)
        elif said.born:
            self._copies[said.born] = _Copy(self, said.born)
            self._births.popleft().set_result(self._copies[said.born])
        elif said.ended in self._copies:
            self._copies.pop(said.ended).note_end(said.status)

    def _forget(self) -> None:
        """The nursery has ended, or shall end: the system kills what it had started."""
        if self.is_gone:
            return
        self.is_gone = True
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        how = "" if self._process.returncode is None else f": it {manner(self._process.returncode)}"
        error = ComputeDied(f"The process that starts the others has ended{how}.")
        if not self._ready.done():
            self._ready.set_exception(error)
        for birth in self._births:
            birth.set_exception(error)
        for copy in self._copies.values():
            copy.note_end(-signal.SIGKILL)
        self._births.clear()
        self._copies.clear()


_END_SECONDS = 5.0


def _unwanted(birth: asyncio.Future[_Copy]) -> None:
    """A copy that nobody waits for any more."""
    if not birth.cancelled() and birth.exception() is None:
        birth.result().kill()
