"""Silos of a round in parallel: as many processes of this machine as it has processors, with the bits of one process.

Requests and answers are messages of a few hundred bytes that name files, as for every other compute process
(`semisilo.common.process.compute`). torch and images are there once: the processes are copies of a nursery
(`semisilo.common.process.nursery`) that has imported the one and reads the others from memory which this process has
filled (`semisilo.simulation.engines.shared_images`). Where a system cannot copy processes, each is started by itself.

A simulation of a few seconds is over before a second process has imported torch. So silos train in this process at
first; others are started when that has gone on for a while, and take over when they are ready.

Tests: tests/semisilo/simulation/engines/test_processes.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections import deque
from pathlib import Path

from semisilo.common.data.room import free_bytes
from semisilo.common.errors import ComputeFailed
from semisilo.common.process.child import ChildProcess, ComputeDied, StartChild, spawn
from semisilo.common.process.compute import Compute, ComputeCrashed, InlineCompute, OnProgress, ProcessCompute
from semisilo.common.process.compute_process import OUT_OF_MEMORY
from semisilo.common.process.nursery import Nursery, can_copy
from semisilo.common.process.processors import usable_processors
from semisilo.silo.compute.messages import Train, Trained
from semisilo.simulation.dealing import SilosImages
from semisilo.simulation.engines.one_process import SimulatedOperations
from semisilo.simulation.engines.shared_images import SharedImages

__all__ = ["ProcessesWorkplace", "most_processes"]

_LOG = logging.getLogger("semisilo.simulation")
_TARGET = "semisilo.simulation.engines.worker:prepared"
_WORTH_SECONDS = 2.0
"""What a process takes to import torch, roughly: shorter work is done before."""
_ATTEMPTS = 3
_SHORT_OF_MEMORY = "Give it fewer processes (--workers), a smaller batch, or a machine with more memory."


def most_processes(threads: int) -> int:
    """How many processes of so many threads each this machine has processors for; at least 1."""
    return max(1, usable_processors() // max(1, threads))


class ProcessesWorkplace:
    """Several processes of this machine, one silo at a time in each. To be used from one event loop."""

    def __init__(self, images: SilosImages, shared: SharedImages, *, threads: int,
                 workers: int | None = None) -> None:
        """
        Args:
            images: of each silo.
            shared: the same, where other processes read them.
            threads: of one process.
            workers: how many processes; they are started at once, and nothing trains in this one. None: as many as
                there are processors and memory for, once they are worth it.
        """
        self._chosen = workers is not None
        self._most = workers or most_processes(threads)
        handing = [shared.descriptor]
        self._nursery = Nursery(_TARGET, handing=handing, threads=threads) if can_copy() else None
        self._alone: StartChild = functools.partial(spawn, _TARGET, threads=threads, handing=handing)
        self._here: Compute = InlineCompute(
            lambda progress: SimulatedOperations(progress, images.__getitem__, device="cpu"))
        self._beginning: asyncio.Task[None] | None = None
        self._is_open = False
        self._processes: list[ProcessCompute] = []
        self._largest_bytes = 0
        """What a process has taken for itself, at most."""
        self._idle: deque[Compute] = deque() if self._chosen else deque([self._here])
        self._waiting: deque[asyncio.Future[Compute]] = deque()

    @property
    def room(self) -> int:
        """See `Workplace.room`. One more than there are processes: its task is ready when the first of them is free."""
        return self._most + 1

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that train at the moment, or are ready to."""
        return tuple(each.pid for each in self._processes if each.pid is not None)

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        """See `Workplace.train`. A process that dies is replaced, and its task is done again: it gives the same bits.

        Raises: ComputeFailed when that happens again and again.
        """
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
        for _ in range(_ATTEMPTS):
            compute = await self._next_free()
            try:
                trained = await compute.call(request, on_progress=on_progress)
            except ComputeDied as error:
                await self._dismiss(compute)
                _LOG.warning("%s: %s", request.task.silo, error.line())
                last: ComputeFailed = error
            except ComputeCrashed as error:
                if not (isinstance(compute, ProcessCompute) and error.kind == "Out of memory"):
                    self._give_back(compute)
                    raise error from error.__cause__ or RuntimeError(error.text)  # a mistake, not the silo's refusal
                await self._dismiss(compute)
                last = error
            except BaseException:
                self._give_back(compute)
                raise
            else:
                self._measure(compute)
                self._give_back(compute)
                return trained
        remedy = _SHORT_OF_MEMORY if last.remedy == OUT_OF_MEMORY else last.remedy
        raise ComputeFailed(f"{_ATTEMPTS} processes in a row have died while they trained {request.task.silo}:"
                            f" {last.text}", remedy=remedy) from RuntimeError(last.text)

    async def close(self) -> None:
        """See `Workplace.close`."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        for each in (self._here, *self._processes):
            await each.close()
        if self._nursery is not None:
            await self._nursery.close()

    # Who is free ------------------------------------------------------------------------------------------------------

    async def _next_free(self) -> Compute:
        if self._idle:
            return self._idle.popleft()
        waiting: asyncio.Future[Compute] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._hire()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._give_back(waiting.result())
            raise

    def _give_back(self, compute: Compute) -> None:
        if compute is not self._here or not self._is_open:
            self._free_now(compute)
        self._hire()

    def _free_now(self, compute: Compute) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(compute)
                return
        self._idle.append(compute)

    # Processes --------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Starts the nursery once it is worth it, and from then on trains in other processes alone."""
        if not self._chosen:
            await asyncio.sleep(_WORTH_SECONDS)
        if self._nursery is not None:
            try:
                await self._nursery.open()
            except (ComputeFailed, OSError) as error:
                _LOG.warning("processes share neither torch nor images: %s", error)
                await self._nursery.close()
                self._nursery = None
        self._is_open = True
        self._add()
        with contextlib.suppress(ValueError):
            self._idle.remove(self._here)
        self._hire()

    def _hire(self) -> None:
        """Another process for every task that waits, while there is room."""
        if not self._is_open:
            return
        while len(self._processes) < self._most and any(not each.done() for each in self._waiting):
            if not self._fits_another():
                return
            self._add()

    def _add(self) -> None:
        self._processes.append(ProcessCompute(self._start))
        self._free_now(self._processes[-1])

    def _fits_another(self) -> bool:
        """Whether memory holds one more: what the largest of them has taken so far must be free once more."""
        if self._chosen or not self._processes:
            return True
        free = free_bytes()
        return free is None or 0 < self._largest_bytes <= free

    def _measure(self, compute: Compute) -> None:
        if isinstance(compute, ProcessCompute) and compute.pid is not None and len(self._processes) < self._most:
            self._largest_bytes = max(self._largest_bytes, _own_bytes(compute.pid))

    async def _dismiss(self, compute: Compute) -> None:
        """A process has died; the next one is started when a task waits and memory holds it."""
        if isinstance(compute, ProcessCompute):
            self._processes.remove(compute)
            await compute.close()
            if not self._processes:
                self._largest_bytes = 0

    async def _start(self, theirs: socket.socket, output: int) -> ChildProcess:
        """See `StartChild`. Raises: ComputeDied when there can be none."""
        try:
            return await (self._alone if self._nursery is None else self._nursery.start_child)(theirs, output)
        except ComputeFailed as error:
            raise ComputeDied(error.text, remedy=error.remedy) from None


def _own_bytes(pid: int) -> int:
    """The most memory that a process has had, without what it shares with others now; 1 where nobody knows."""
    try:
        peak = _kilobytes(Path(f"/proc/{pid}/status"), "VmHWM")
        there = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Rss")
        own = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Private_Dirty", "Private_Clean")
    except OSError:
        return 1
    return max(1, peak - there + own) * 1024


def _kilobytes(file: Path, *names: str) -> int:
    found = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return sum(int(found[name].split()[0]) for name in names if name in found)
