"""An event loop whose time is a number: it runs what is ready and then jumps to the next timer.

What asyncio promises is kept: callbacks of one turn run in the order in which they were put there. What it does not
promise is drawn from the seed: how late a timer comes, and how long work in a thread takes. Work in a thread runs in
one piece at the moment drawn for it, in this thread.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.machine import Life

__all__ = ["BEGINNING", "BEGINNING_UNIX", "LIFE", "Killed", "SeededLoop", "TooLong"]

LIFE: ContextVar[Life | None] = ContextVar("simulated_life", default=None)
"""The process that runs: of a callback, a task and work in a thread it is the one that made them."""
BEGINNING_UNIX = 1_800_000_000.0
"""When schedules begin, for their wall clocks."""
BEGINNING = 1000.0
"""Virtual time of a new loop, seconds."""
_LATE_SECONDS = 0.002
_THREAD_SECONDS = 0.004


class Killed(BaseException):
    """Stands for kill -9: no more of a process runs. What its `finally` blocks try to do has no effect."""


class TooLong(AssertionError):
    """A schedule does not come to its end: something waits for ever, or spins."""


class Handle:
    """`asyncio.Handle` and `asyncio.TimerHandle`, as far as anybody uses them: some thousands make one schedule."""

    __slots__ = ("args", "callback", "context", "due")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context | None,
                 due: float = 0.0) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.due = due

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


class SeededLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the product uses."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._now = BEGINNING
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = 0
        self.turns = 0
        """Callbacks that were run."""
        self.complaints: list[str] = []
        """Errors that nobody has handled."""

    # Time -------------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                  context: Context | None = None) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                   context: Context | None = None) -> Handle:
        when = self._now + delay if delay > 0.0 else self._now
        handle = Handle(callback, args, context, when)
        self._order += 1
        heapq.heappush(self._timers, (when + self._draw.random() * _LATE_SECONDS, self._order, handle))
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                context: Context | None = None) -> Handle:
        handle = Handle(callback, args, context, when)
        self._order += 1
        heapq.heappush(self._timers, (when + self._draw.random() * _LATE_SECONDS, self._order, handle))
        return handle

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, seconds: float, turns: int) -> None:
        """Runs until the condition holds.

        Raises: TooLong when virtual time or the number of callbacks exceeds its bound, or nothing is left to run.
        """
        end, last = self._now + seconds, self.turns + turns
        ready, timers = self._ready, self._timers
        asyncio._set_running_loop(self)
        try:
            while not until():
                if self._now > end:
                    raise TooLong(f"not done after {seconds:.0f} s of virtual time")
                if self.turns > last:
                    raise TooLong(f"not done after {turns} callbacks")
                if ready:
                    handle = ready.popleft()
                else:  # goes on to the next moment at which something is to be run
                    if not timers:
                        raise TooLong("nothing is left to run")
                    when, _, handle = heapq.heappop(timers)
                    if handle.callback is None:
                        continue
                    if when > self._now:
                        self._now = when
                if handle.callback is None:
                    continue
                life = handle.context.get(LIFE)
                if life is not None:
                    if life.alive and not life.machine.deaths:
                        life.machine.counted["callback"] += 1  # most of them, without a call for each
                    elif not life.may_run():
                        continue  # of a process that is dead
                self.turns += 1
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in {handle.callback}", "exception": error})
        finally:
            asyncio._set_running_loop(None)

    # What is made on a loop -------------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None,  # type: ignore[override]
                    context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            life.keep(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._draw.random() * _THREAD_SECONDS, work)
        return future

    # The rest ---------------------------------------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, (Killed, asyncio.CancelledError)):
            self.complaints.append(f"{context.get('message')}: {error!r}")
