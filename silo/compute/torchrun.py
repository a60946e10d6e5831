"""What `silo join` is under torchrun: process 0 is the silo, the others compute with it.

`torchrun --nproc-per-node 2 --no-python silo join` starts the same command twice. Process 0 goes on as ever, with a
compute process that shares its training (`semisilo.silo.compute.leader`); every other one only looks after a compute
process that follows (`semisilo.silo.compute.follower`), has no connection to the coordinator and writes nothing into
the silo's folder. So the wire, the folder and the coordinator see one silo. The processes know each other by a token, a
file of that folder.

Tests: tests/silo/compute/test_torchrun.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from typing import TypeVar

from semisilo.common.errors import BadConfiguration, ComputeFailed, ProcessGroupLost, SemisiloError
from semisilo.common.page.token import page_token
from semisilo.common.process.child import ComputeDied, manner, numerics_of, python_command
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.compute_process import OUT_OF_MEMORY, SEE_LOG, OnProgress
from semisilo.common.process.messages import Request
from semisilo.common.process.torchrun import TOKEN, Place
from semisilo.silo.compute.messages import Dismiss
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import has_identity

__all__ = ["LeadingCompute", "find_token", "look_after_follower"]

AnswerT = TypeVar("AnswerT")

_LOG = logging.getLogger("semisilo.compute")
_DISMISS_SECONDS = 20.0
_PAUSE_SECONDS = 1.0
_TOKEN_SECONDS = 60.0
"""How long others wait for process 0 to make the token, which it does as soon as it has the folder's lock."""
_LOOK_SECONDS = 0.05
_FEWEST_CHARACTERS = 16
_QUICK_SECONDS = 30.0
_MOST_LOSSES = 5
_QUICK_ENDS = 5
"""Ends that come one soon after the other, after which nothing is to be hoped for from another start."""


def find_token(home: SiloHome, *, makes: bool) -> None:
    """Puts the token that the processes of this silo know each other by into the environment, for the compute process:
    that of the silo's folder, unless the environment has one already.

    Args:
        makes: makes one where there is none, for process 0, which has the folder's lock; the others wait for that.
    Raises: BadConfiguration where there is none or it cannot be one; SemisiloError when it cannot be read.
    """
    if given := os.environ.get(TOKEN):
        if len(given) < _FEWEST_CHARACTERS:
            raise BadConfiguration(f"${TOKEN} has fewer than {_FEWEST_CHARACTERS} characters.",
                                   remedy="Whoever guesses it can act as a process of this silo: openssl rand -hex 32"
                                          " prints one.")
        return
    path, until = home.torchrun_token, time.monotonic() + _TOKEN_SECONDS
    while not makes and not path.exists():
        if not has_identity(home.folder):
            raise BadConfiguration(f"{socket.gethostname()} has no {path}, by which the processes of this silo know"
                                   " each other.", remedy="Copy that file here from process 0's machine, which makes it"
                                                          f" when it starts, or set ${TOKEN} to the same text on all"
                                                          " machines.")
        if time.monotonic() > until:
            raise BadConfiguration(f"Process 0 has not made {path} within {_TOKEN_SECONDS:.0f} s.",
                                   remedy="Does it use the same folder? Its log says why it has not begun.")
        time.sleep(_LOOK_SECONDS)
    os.environ[TOKEN] = page_token(path)  # a file like that of the page: made, checked and refused in the same way


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


def look_after_follower(place: Place, home: SiloHome) -> int:
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
            child = subprocess.Popen(python_command("semisilo.silo.compute.follower", str(os.getpid()),
                                                    str(home.folder)),
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
