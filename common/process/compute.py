"""The resident process that holds torch, and how it is asked; the same on both sides.

The light process sends requests of plain JSON types and file paths; the compute process runs one at a time. Messages
are lines of JSON on a socket pair of their own, never stdin or stdout, so that a print in a library cannot corrupt
them; what the process prints goes to the parent's log. `semisilo.common.process.messages` has what stands in a line. A
`Call` goes there; `Reply` after `Reply` comes back: at first that it is ready, then for every call progress, at most
about ten a second, and an answer or an error.

Abort is a kill: a process that is gone holds no lock, no device memory and no half-written file (files are renamed into
place). What an operation opened (a study) is opened again in the next process: `Request.reopening` says with what.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from semisilo.common.config import to_dict
from semisilo.common.errors import ComputeFailed, SemisiloError, by_code
from semisilo.common.process.child import Child, ComputeAborted, ComputeDied, StartChild, manner, spawn
from semisilo.common.process.compute_process import LIMIT_BYTES, OnProgress, ProgressThrottle, describe
from semisilo.common.process.messages import (
    Call,
    Failure,
    Handler,
    Operations,
    Request,
    answer_from_json,
    as_json,
    handlers_of,
    run_operation,
)
from semisilo.common.process.turns import at_torch

__all__ = ["Compute", "ComputeAborted", "ComputeCrashed", "ComputeDied", "InlineCompute", "OnProgress",
           "ProcessCompute"]

AnswerT = TypeVar("AnswerT")

_LOGGER = logging.getLogger("semisilo.compute")
_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}|Out of memory", re.ASCII)


class Compute(Protocol):
    """Answers requests one at a time, away from the event loop."""

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        """Has a request answered.

        Raises: the SemisiloError that the operation raised; ComputeFailed for anything else, also when the process
            died; ComputeAborted after `abort` or `close`.
        """

    async def abort(self) -> None:
        """Ends the running call, if there is one; it raises ComputeAborted."""

    async def close(self) -> None:
        """Ends for good; a running call raises ComputeAborted."""


class ComputeCrashed(ComputeFailed):
    """An error that nobody foresaw: its text is a library's and may hold anything, also names and contents of files."""

    @property
    def kind(self) -> str:
        """The class of the error, such as "ValueError", which says nothing of what was read."""
        name = self.text.partition(":")[0]
        return name if _NAME.fullmatch(name) else "an error"


class ProcessCompute:
    """Runs an Operations class in a process of its own, started at the first call or by `start`.

    The process is a session of its own that ignores Ctrl-C and SIGTERM (the light process shuts it down in order) and
    dies with its parent.
    """

    def __init__(self, target: str | StartChild, *, threads: int = 1) -> None:
        """
        Args:
            target: "package.module:Class", built as `Class(progress)`; or what starts such a process.
            threads: those of one CPU operation; with a `StartChild` it has been told already.
        """
        self._start = functools.partial(spawn, target, threads=threads) if isinstance(target, str) else target
        self._lock = asyncio.Lock()
        self._child: Child | None = None
        self._reopen: Request[Any] | None = None
        self._crashed: Request[Any] | None = None
        """The last request, where it ended with an error that nobody foresaw."""
        self._calls = 0
        self._running = False
        self._abort_wanted = False
        self._closed = False

    async def start(self) -> None:
        """Starts the process and waits until it is ready.

        Raises: ComputeFailed when it cannot, for example because torch cannot be imported.
        """
        async with self._lock:
            await self._ready_child("start")

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        """See `Compute.call`. Cancelling the call kills the process.

        The very request that has just ended with an error that nobody foresaw is tried again in a fresh process: a
        library may be in a state in which it fails for ever. Others go on with the old one, for to open a study again
        may take minutes, and what a silo sends must not bring that about.
        """
        async with self._lock:
            self._running, self._abort_wanted = True, False
            if request is self._crashed and self._child is not None:
                _LOGGER.warning("'%s' is tried again in a fresh compute process", request.operation())
                self._discard()
            self._crashed = None
            try:
                child = await self._ready_child(request.operation())
                if self._reopen is not None and not child.opened and type(self._reopen) is not type(request):
                    await self._exchange(child, self._reopen, on_progress)
                child.opened = True
                return await self._exchange(child, request, on_progress)
            except asyncio.CancelledError:
                self._discard()
                raise
            finally:
                self._running = False

    async def abort(self) -> None:
        """See `Compute.abort`. Kills the process of the running call; the next call starts a fresh one."""
        if self._running:
            self._abort_wanted = True
            child = self._discard(aborted=True)
            if child is not None:
                await child.gone()

    async def close(self) -> None:
        """See `Compute.close`. An idle process is asked to end, a busy one is killed."""
        self._closed = True
        if self._running:
            await self.abort()
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    @property
    def pid(self) -> int | None:
        """Process id of the running process, None while there is none."""
        return None if self._child is None else self._child.process.pid

    def _discard(self, *, aborted: bool = False) -> Child | None:
        child, self._child = self._child, None
        if child is not None:
            child.aborted = child.aborted or aborted
            child.kill()
        return child

    async def _ready_child(self, operation: str) -> Child:
        if self._closed:
            raise ComputeAborted(f"The compute process is closed; '{operation}' was not started.")
        if self._child is not None and self._child.process.returncode is not None:
            _LOGGER.warning("the compute process ended while idle (%s); a fresh one is started",
                            manner(self._child.process.returncode))
            self._child = None
        if self._child is None:
            self._child = child = await Child.start(self._start)
            if self._closed or self._abort_wanted:
                self._discard(aborted=True)
            try:
                reply = await child.receive("start")
            except BaseException:
                self._discard()
                raise
            if child.aborted:  # it was ready just before it was killed
                raise ComputeAborted(f"'{operation}' was aborted.")
            if reply.error is not None:
                self._discard()
                raise _rebuilt(reply.error, "start")
        return self._child

    async def _exchange(self, child: Child, request: Request[AnswerT], on_progress: OnProgress | None) -> AnswerT:
        self._calls += 1
        operation = request.operation()
        call = Call(id=self._calls, operation=operation, arguments=request)
        line = await asyncio.to_thread(_line, call) if request.is_long else _line(call)
        if len(line) > LIMIT_BYTES:
            raise ComputeFailed(f"The arguments of '{operation}' take {len(line)} bytes; the limit is {LIMIT_BYTES}.")
        try:
            await child.send(line)
            while True:
                reply = await child.receive(operation)
                assert reply.id == call.id, "answers follow requests one by one"
                if reply.progress is None:
                    break
                _tell(on_progress, reply.progress.fraction, reply.progress.text)
        except SemisiloError:
            self._discard()
            raise
        if reply.error is not None:
            if reply.exits:
                self._discard()
            error = _rebuilt(reply.error, operation)
            self._crashed = request if isinstance(error, ComputeCrashed) else None
            raise error
        answer = (await asyncio.to_thread(answer_from_json, request, reply.answer) if request.is_long
                  else answer_from_json(request, reply.answer))
        self._reopen = request.reopening(answer) or self._reopen
        return answer


def _line(call: Call) -> bytes:
    return json.dumps(to_dict(call)).encode() + b"\n"


class InlineCompute:
    """Runs an Operations class in this process, for simulations and tests.

    All InlineComputes of a process share one thread, in which each operation has a turn (`at_torch`): operations seed
    torch's global generator inside `fork_rng` and set torch's threads, so two at once would disturb each other.
    """

    def __init__(self, build: Callable[[OnProgress], Operations]) -> None:
        """`build` is the Operations class, or any function of the progress callable."""
        self._build = build
        self._handlers: dict[str, Handler] | None = None
        self._progress: OnProgress = lambda fraction, text: None
        self._lock = asyncio.Lock()
        self._stop: threading.Event | None = None
        self._closed = False

    async def call(self, request: Request[AnswerT], *, on_progress: OnProgress | None = None) -> AnswerT:
        """See `Compute.call`. An abort takes effect at the operation's next report of progress.

        Request and answer are converted as if they crossed to another process.
        """
        operation, arguments = request.operation(), as_json(request)
        async with self._lock:
            if self._closed:
                raise ComputeAborted(f"The compute thread is closed; '{operation}' was not started.")
            loop = asyncio.get_running_loop()
            stop = self._stop = threading.Event()

            def forward(fraction: float, text: str) -> None:
                if not stop.is_set():
                    with contextlib.suppress(RuntimeError):  # the loop was closed under a cancelled call
                        loop.call_soon_threadsafe(_tell, on_progress, fraction, text)

            throttled = ProgressThrottle(forward)

            def progress(fraction: float, text: str = "") -> None:
                if stop.is_set():
                    raise ComputeAborted(f"'{operation}' was aborted.")
                throttled(fraction, text)

            def work() -> AnswerT:
                self._progress = progress
                if self._handlers is None:
                    self._handlers = handlers_of(self._build(self._forward))
                answer = run_operation(self._handlers, operation, arguments)
                return answer_from_json(request, as_json(answer))

            def in_turn() -> AnswerT:
                with at_torch():
                    return work()

            try:
                return await loop.run_in_executor(_inline_thread(), in_turn)
            except asyncio.CancelledError:
                stop.set()
                raise
            except SemisiloError:
                raise
            except Exception as error:
                _LOGGER.error("'%s' failed:\n%s", operation, traceback.format_exc())
                raise _rebuilt(describe(error), operation) from error
            finally:
                self._stop = None

    def _forward(self, fraction: float, text: str = "") -> None:
        self._progress(fraction, text)

    async def abort(self) -> None:
        """See `Compute.abort`."""
        if self._stop is not None:
            self._stop.set()

    async def close(self) -> None:
        """See `Compute.close`."""
        self._closed = True
        await self.abort()


_inline: ThreadPoolExecutor | None = None


def _inline_thread() -> ThreadPoolExecutor:
    global _inline
    if _inline is None:
        _inline = ThreadPoolExecutor(max_workers=1, thread_name_prefix="semisilo-compute")
    return _inline


def _tell(on_progress: OnProgress | None, fraction: float, text: str) -> None:
    if on_progress is not None:
        try:
            on_progress(fraction, text)
        except Exception:
            _LOGGER.exception("a listener of progress failed")


def _rebuilt(failure: Failure, operation: str) -> SemisiloError:
    """The exception that `failure` stands for; its details go to the log."""
    if failure.details:
        _LOGGER.error("'%s' failed in the compute process:\n%s", operation, failure.details)
        return ComputeCrashed(failure.text, remedy=failure.remedy)
    error = by_code(failure.code)(failure.text, remedy=failure.remedy)
    error.words_of_others = failure.words_of_others
    return error
