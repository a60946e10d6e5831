"""What `silo join` is under torchrun: process 0 is the silo, the others compute with it.

`torchrun --nproc-per-node 2 --no-python silo join` starts the same command twice. Process 0 goes on as ever, with a
compute process that shares its training (`semisilo.silo.compute.leader`); every other one only looks after a compute
process that follows (`semisilo.silo.compute.follower`), and opens no file of the silo and no connection to the
coordinator. So the wire, the home folder and the coordinator see one silo.

Tests: tests/silo/compute/test_torchrun.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from typing import TypeVar

from semisilo.common.errors import ComputeFailed, ProcessGroupLost, SemisiloError
from semisilo.common.process.child import ComputeDied, manner, numerics_of, python_command
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.compute_process import OUT_OF_MEMORY, SEE_LOG, OnProgress
from semisilo.common.process.messages import Request
from semisilo.common.process.torchrun import Place
from semisilo.silo.compute.messages import Dismiss

__all__ = ["LeadingCompute", "look_after_follower"]

AnswerT = TypeVar("AnswerT")

_LOG = logging.getLogger("semisilo.compute")
_DISMISS_SECONDS = 20.0
_PAUSE_SECONDS = 1.0
_QUICK_SECONDS = 30.0
_MOST_LOSSES = 5
_QUICK_ENDS = 5
"""Ends that come one soon after the other, after which nothing is to be hoped for from another start."""


class LeadingCompute(ProcessCompute):
    """The compute process of process 0.

    When it is killed, or another one is, what it was asked for is put off instead of refused: it is a machine or a
    process more that may be gone for a while. What ends them again and again, such as too little memory, is refused.
    """

    def __init__(self) -> None:
        super().__init__("semisilo.silo.compute.leader:LeadingOperations")
        self._losses = 0
        """One after the other."""

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        """See `semisilo.common.process.compute.Compute.call`. Raises: ProcessGroupLost as well."""
        try:
            answer = await super().call(request, on_progress=on_progress)
        except (ComputeDied, ProcessGroupLost) as error:
            self._losses += 1
            if self._losses >= _MOST_LOSSES:
                self._losses = 0
                raise ComputeFailed(f"{error.text} That was {_MOST_LOSSES} times in a row.",
                                    remedy=f"{OUT_OF_MEMORY} {SEE_LOG}") from error
            if isinstance(error, ProcessGroupLost):
                raise
            raise ProcessGroupLost(error.text, remedy="The task is done again.") from error
        self._losses = 0
        return answer

    async def dismiss(self) -> None:
        """Tells the other processes that it is over: they end, and with them torchrun. Not for a process that is
        stopped: who stops torchrun stops all, and what torchrun itself stops it may be about to start anew."""
        try:
            async with asyncio.timeout(_DISMISS_SECONDS):
                await self.call(Dismiss())
        except (SemisiloError, TimeoutError) as error:
            _LOG.warning("the other processes could not be told that it is over: %s", error)


def look_after_follower(place: Place) -> int:
    """Keeps a compute process that follows process 0, for as long as that does not dismiss it; what `silo join` does in
    every other process of a torchrun.

    Returns: exit status: 0 when it was dismissed, and after SIGTERM; 130 after SIGINT.
    Raises: ComputeFailed when it cannot stay alive.
    """
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        _kill(child)

    child: subprocess.Popen[bytes] | None = None
    before = [signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)]
    quick = 0
    try:
        while not stopped:
            began = time.monotonic()
            child = subprocess.Popen(python_command("semisilo.silo.compute.follower", str(os.getpid())),
                                     stdin=subprocess.DEVNULL, env={**os.environ, **numerics_of(1)},
                                     start_new_session=True)
            if stopped:  # while it was being started
                _kill(child)
            status = child.wait()
            _kill(child)  # what it had started
            if status == 0:
                return 0
            if stopped:
                break
            quick = quick + 1 if time.monotonic() - began < _QUICK_SECONDS else 0
            text = f"The compute process of process {place.rank} of this silo {manner(status)}"
            if quick >= _QUICK_ENDS:
                raise ComputeFailed(f"{text}, {quick} times in a row.", remedy="The log above says why.")
            _LOG.warning("%s; a fresh one is started", text)
            time.sleep(_PAUSE_SECONDS)
    finally:
        _kill(child)
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    return 130 if stopped[0] == signal.SIGINT else 0


def _kill(child: subprocess.Popen[bytes] | None) -> None:
    if child is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
