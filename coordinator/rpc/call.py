"""One RPC in flight: who calls, and its end when the caller is revoked, calls anew or says nothing any more.

The certificates are looked at twice a second by one timer for all RPCs, so that the way of the bytes has nothing to do
with it: a chunk costs no task, no lock and no timer, and a thousand silos that wait cost next to nothing.

Tests: tests/coordinator/rpc/test_call.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from semisilo.common.errors import SemisiloError, Unreachable
from semisilo.common.rpc.chunks import CHUNK_BYTES
from semisilo.common.text.log_context import bind
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.rpc.caller import CallerCertificate, caller_silo, check_caller
from semisilo.coordinator.rpc.metering import RoundMeter

__all__ = ["Call", "CallWatch"]

_LOOK_SECONDS = 0.5
"""A revoked silo's call ends this soon, which is to be within seconds."""
_CALLS_AT_ONCE = 100
"""Some milliseconds when the roster has changed."""


class CallWatch:
    """Looks after all RPCs in flight."""

    def __init__(self, roster: LedgerRoster, *, clock: Callable[[], float] = time.time) -> None:
        self.roster = roster
        self.clock = clock
        self._calls: set[Call] = set()
        self._running = False
        self._version: tuple[int, int] | None = None

    def add(self, call: Call) -> None:
        """From now on the call is looked after."""
        self._calls.add(call)
        if not self._running:
            self._running, self._version = True, None  # nobody has looked for a while
            self._later()

    def discard(self, call: Call) -> None:
        """The call needs it no more."""
        self._calls.discard(call)

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._running = bool(self._calls)
        if not self._running:  # and the ledger may be closed: the last call has ended, and the coordinator with it
            return
        try:
            version = self.roster.version()
        except SemisiloError:  # each call meets it by itself
            version = None
        changed, self._version = version is None or version != self._version, version
        self._look_at(list(self._calls), changed)
        self._later()

    def _look_at(self, calls: list[Call], changed: bool) -> None:
        """A part of the calls in each turn of the event loop: when the roster has changed, it is asked for each."""
        for call in calls[:_CALLS_AT_ONCE]:
            if call in self._calls:  # it may have ended meanwhile
                call.look(roster_changed=changed)
        if len(calls) > _CALLS_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._look_at, calls[_CALLS_AT_ONCE:], changed)


class Call:
    """An RPC, from `identify` to `done`. Belongs to the task that serves it."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], *, federation: str, watch: CallWatch,
                 runtime: RuntimeState, meter: RoundMeter) -> None:
        self._context = context
        self._federation = federation
        self._watch = watch
        self._runtime = runtime
        self._meter = meter
        self._certificate: CallerCertificate | None = None
        self._superseded = False
        self._task: asyncio.Task[Any] | None = None
        self._problem: Exception | None = None
        self._idle_seconds = math.inf
        self._needs: Callable[[], None] | None = None
        self._moved = 0.0
        self._moved_bytes = 0

    def identify(self) -> str:
        """The silo's name from its certificate, checked against the roster."""
        self._certificate = caller_silo(self._context, self._federation)
        self.check()
        silo = self._certificate.silo
        bind(silo=silo)
        self._meter.bind(self._context.peer(), silo)
        self._runtime.connected[silo] = self._runtime.connected.get(silo, 0) + 1
        self._runtime.called[silo] = self._watch.clock()
        return silo

    def check(self) -> None:
        """Raises when the caller's certificate has expired or was revoked since, or it calls anew."""
        assert self._certificate is not None
        if self._superseded:
            raise Unreachable("A newer connection of this silo continues the upload.", remedy="It is tried again.")
        check_caller(self._certificate, self._watch.roster, self._watch.clock())

    def supersede(self) -> None:
        """The silo has made the same call anew: this one ends, at once where it is being watched."""
        self._superseded = True
        self._look_now()

    def moved(self, count: int) -> None:
        """So many bytes have arrived. With every 512 KiB the idle time begins anew: bytes that drip are as good as
        none."""
        self._moved_bytes += count
        if self._moved_bytes >= CHUNK_BYTES:
            self._moved, self._moved_bytes = time.monotonic(), 0

    @contextmanager
    def watched(self, *, idle_seconds: float = math.inf, needs: Callable[[], None] | None = None) -> Iterator[None]:
        """Around what may be ended at any `await`: raises what `check` raises, wherever the block has come to.

        Args:
            idle_seconds: Unreachable is raised when less than 512 KiB have `moved` for so long: a chunk of our silos.
            needs: called twice a second; what it raises is raised. For few calls at a time.
        """
        if self._superseded:
            self.check()
        self._task, self._problem = asyncio.current_task(), None
        self._idle_seconds, self._needs = idle_seconds, needs
        assert self._task is not None
        self._moved, self._moved_bytes = time.monotonic(), 0
        self._watch.add(self)
        try:
            yield
        except asyncio.CancelledError:
            if self._problem is None:
                raise
            self._task.uncancel()
            raise self._problem from None
        finally:
            self._watch.discard(self)
            self._task = None

    def done(self) -> None:
        """Ends the account of this RPC."""
        connected = self._runtime.connected
        if self._certificate is not None and self._certificate.silo in connected:
            silo = self._certificate.silo
            self._runtime.called[silo] = self._watch.clock()
            connected[silo] -= 1
            if connected[silo] <= 0:
                del connected[silo]

    def look(self, *, roster_changed: bool) -> None:
        """Ends the watched block when there is a reason to; the roster is asked only when it has changed."""
        assert self._certificate is not None
        if roster_changed or self._needs is not None or self._watch.clock() > self._certificate.not_after_unix \
                or time.monotonic() - self._moved > self._idle_seconds:
            self._look_now()

    def _look_now(self) -> None:
        """Ends the watched block when there is a reason to."""
        if self._task is None or self._problem is not None:
            return
        try:
            self.check()
            if time.monotonic() - self._moved > self._idle_seconds:
                raise Unreachable(f"Next to nothing has arrived for {self._idle_seconds:.0f} s.",
                                  remedy="It is tried again.")
            if self._needs is not None:
                self._needs()
        except Exception as problem:
            self._problem = problem
            self._task.cancel()
