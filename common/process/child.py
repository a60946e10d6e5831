"""The parent's end of a compute process: how it is started, what crosses its socket, and how it ended.

A process comes from `spawn`, which starts a fresh interpreter, or from a nursery that has imported what is heavy
(`semisilo.common.process.nursery`). Both serve a socket with the lines of `semisilo.common.process.messages`, and what
they print goes to this process's log.

Tests: tests/common/process/test_compute.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from semisilo.common.config import from_dict
from semisilo.common.errors import ComputeFailed, ProcessGroupLost
from semisilo.common.process.compute_process import LIMIT_BYTES, LOST_PEER, OUT_OF_MEMORY, SEE_LOG
from semisilo.common.process.messages import Reply
from semisilo.common.system_errors import SYSTEM_ERRORS, explained

__all__ = ["Child", "ChildProcess", "ComputeAborted", "ComputeDied", "StartChild", "log_lines", "manner", "numerics_of",
           "python_command", "spawn"]

_LOGGER = logging.getLogger("semisilo.compute")
_CLOSE_SECONDS = 5.0


class ComputeAborted(ComputeFailed):
    """The call was ended on this side's own wish."""


class ComputeDied(ComputeFailed):
    """The process has ended in the middle of a call: killed, out of memory, or by a fault of a library."""


class ChildProcess(Protocol):
    """A process that this one has started, or had started."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, or the signal that ended it, negative; None while it runs."""

    async def wait(self) -> int:
        """Waits until it has ended; what it had started is gone then as well. Returns: `returncode`."""

    def kill(self) -> None:
        """Kills it and all that it has started; nothing when it has ended."""


StartChild = Callable[[socket.socket, int], Awaitable[ChildProcess]]
"""Starts a process that serves the socket, and prints to the descriptor. Both stay the caller's, who closes them when
this returns. Raises: ComputeFailed."""


class _Spawned:
    """A session of its own, so that it can be killed with all that it has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        status = await self._process.wait()
        # What it started (data loaders) would keep the socket open, and with it a caller waiting.
        self._kill_group()
        return status

    def kill(self) -> None:
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs a module of ours. -P keeps the current folder off sys.path, so that a stray common.py in it does no harm."""
    return [sys.executable, "-P", "-m", module, *arguments]


def numerics_of(threads: int) -> dict[str, str]:
    """Environment variables that libraries read once, when they are loaded.

    Args:
        threads: of one CPU operation.
    """
    count = str(threads)
    return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count,
            # cuBLAS is deterministic only with this, and reads it once.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # torch then asks the system for large pages: models are made and dropped in every round.
            "THP_MEM_ALLOC_ENABLE": "1"}


async def spawn(target: str, theirs: socket.socket, output: int, *, threads: int = 1,
                handing: Sequence[int] = ()) -> ChildProcess:
    """A `StartChild` once target and threads are filled in: a fresh interpreter.

    Args:
        target: "package.module:Class", built as `Class(progress)`.
        handing: descriptors that it gets too; then the target is called with them, and what it returns is built.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *python_command("semisilo.common.process.compute_process", target, str(theirs.fileno()), str(os.getpid()),
                            *map(str, handing)),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(theirs.fileno(), *handing),
            env={**os.environ, **numerics_of(threads)}, start_new_session=True)
    except SYSTEM_ERRORS as error:
        raise explained(error) or ComputeFailed(f"The compute process cannot be started: {error}.") from error
    return _Spawned(process)


class Child:
    """The parent's view of one compute process."""

    def __init__(self, process: ChildProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                 output: asyncio.StreamReader) -> None:
        self.process = process
        self.opened = False
        self.aborted = False
        self._reader = reader
        self._writer = writer
        self._tasks = [asyncio.ensure_future(self._reap()), asyncio.ensure_future(log_lines(output))]

    @classmethod
    async def start(cls, start: StartChild) -> Child:
        """Starts a process. Raises: ComputeFailed."""
        ours, theirs = socket.socketpair()
        output_read, output_write = os.pipe()
        try:
            process = await start(theirs, output_write)
        except BaseException:
            ours.close()
            os.close(output_read)
            raise
        finally:
            theirs.close()
            os.close(output_write)
        reader, writer = await asyncio.open_connection(sock=ours, limit=LIMIT_BYTES)
        output = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(output_read, "rb", 0))
        return cls(process, reader, writer, output)

    async def send(self, line: bytes) -> None:
        """Sends a request."""
        # A process that is gone is noticed by `receive`, which knows how it ended.
        with contextlib.suppress(OSError):
            self._writer.write(line)
            await self._writer.drain()

    async def receive(self, operation: str) -> Reply:
        """The next reply. Raises: ComputeDied naming how the process ended, ComputeAborted if we ended it,
        ProcessGroupLost when it has ended because of another one."""
        try:
            line = await self._reader.readline()
        except ValueError:
            self.kill()
            raise ComputeFailed(f"The result of '{operation}' is above {LIMIT_BYTES} bytes.") from None
        except OSError:
            line = b""
        if line.endswith(b"\n"):
            return from_dict(Reply, json.loads(line))
        self._writer.close()
        await self.gone()
        if self.aborted:
            raise ComputeAborted(f"'{operation}' was aborted.")
        status = self.process.returncode
        assert status is not None
        if status == LOST_PEER:
            raise ProcessGroupLost(f"Another process that trains with this one has ended or does not answer, during"
                                   f" '{operation}'.", remedy="The task is done again.")
        memory = status == -signal.SIGKILL
        raise ComputeDied(f"The compute process {manner(status)} during '{operation}'.",
                          remedy=OUT_OF_MEMORY if memory else SEE_LOG)

    def kill(self) -> None:
        """Kills the process."""
        self.process.kill()

    async def gone(self) -> None:
        """Waits until the process has ended; kills it when it lingers after closing its end."""
        try:
            await asyncio.wait_for(asyncio.shield(self._tasks[0]), _CLOSE_SECONDS)
        except TimeoutError:
            self.kill()
            await self._tasks[0]

    async def end(self) -> None:
        """Has the process end, and waits for that."""
        self._writer.close()
        await self.gone()
        await asyncio.gather(*self._tasks)

    async def _reap(self) -> None:
        await self.process.wait()
        # The socket is closed from this side only later: the last message may not have been read yet.
        asyncio.get_running_loop().call_later(1.0, self._writer.close)


async def log_lines(output: asyncio.StreamReader) -> None:
    """What a process prints goes to this one's log, line by line."""
    rest = b""
    while block := await output.read(65536):
        *lines, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line.strip():
                _LOGGER.info("%s", line.decode("utf-8", "replace").rstrip())
        rest = rest[-65536:]
    if rest.strip():
        _LOGGER.info("%s", rest.decode("utf-8", "replace").rstrip())


def manner(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    guess = ", out of memory?" if name == "SIGKILL" else ""
    return f"was killed by signal {-status} ({name}{guess})"
