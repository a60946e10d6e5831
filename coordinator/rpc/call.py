"""One RPC in flight: who calls, and its end when the caller is revoked, calls anew or says nothing any more.

The certificate is looked at twice a second by a timer beside the RPC, so that the way of the bytes has nothing to do
with it: a chunk costs no task, no lock and no timer.

Tests: tests/coordinator/rpc/test_round_service.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from semisilo.common.errors import Unreachable
from semisilo.common.text.log_context import bind
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.rpc.caller import CallerCertificate, caller_silo, check_caller
from semisilo.coordinator.rpc.metering import RoundMeter

__all__ = ["Call"]

_LOOK_SECONDS = 0.5
"""A revoked silo's call ends this soon, which is to be within seconds. The price is one look at the roster for every
call in flight."""


class Call:
    """An RPC, from `identify` to `done`. Belongs to the task that serves it."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], *, federation: str, roster: LedgerRoster,
                 runtime: RuntimeState, meter: RoundMeter, clock: Callable[[], float] = time.time) -> None:
        self._context = context
        self._federation = federation
        self._roster = roster
        self._runtime = runtime
        self._meter = meter
        self._clock = clock
        self._certificate: CallerCertificate | None = None
        self._superseded = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._problem: Exception | None = None
        self._idle_seconds = math.inf
        self._moved = 0.0

    def identify(self) -> str:
        """The silo's name from its certificate, checked against the roster."""
        self._certificate = caller_silo(self._context, self._federation)
        self.check()
        silo = self._certificate.silo
        bind(silo=silo)
        self._meter.bind(self._context.peer(), silo)
        self._runtime.connected[silo] = self._runtime.connected.get(silo, 0) + 1
        return silo

    def check(self) -> None:
        """Raises when the caller's certificate has expired or was revoked since, or it calls anew."""
        assert self._certificate is not None
        if self._superseded:
            raise Unreachable("A newer connection of this silo goes on with the upload.", remedy="It is tried again.")
        check_caller(self._certificate, self._roster, self._clock())

    def supersede(self) -> None:
        """The silo has made the same call anew: this one ends, at once where it is being watched."""
        self._superseded = True
        self._look_now()

    def moved(self) -> None:
        """Something has arrived: the idle time begins anew."""
        self._moved = time.monotonic()

    @contextmanager
    def watched(self, *, idle_seconds: float = math.inf) -> Iterator[None]:
        """Around what may be ended at any `await`: raises what `check` raises, wherever the block has come to.

        Args:
            idle_seconds: Unreachable is raised when nothing has `moved` for so long.
        """
        if self._superseded:
            self.check()
        self._task, self._problem, self._idle_seconds = asyncio.current_task(), None, idle_seconds
        assert self._task is not None
        self.moved()
        self._look_later()
        try:
            yield
        except asyncio.CancelledError:
            if self._problem is None:
                raise
            self._task.uncancel()
            raise self._problem from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._task = self._timer = None

    def done(self) -> None:
        """Ends the account of this RPC."""
        connected = self._runtime.connected
        if self._certificate is not None and self._certificate.silo in connected:
            silo = self._certificate.silo
            connected[silo] -= 1
            if connected[silo] <= 0:
                del connected[silo]

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_now()
        if self._task is not None and self._problem is None:
            self._look_later()

    def _look_now(self) -> None:
        """Ends the watched block when there is a reason to."""
        if self._task is None or self._problem is not None:
            return
        try:
            self.check()
            if time.monotonic() - self._moved > self._idle_seconds:
                raise Unreachable(f"Nothing has arrived for {self._idle_seconds:.0f} s.", remedy="It is tried again.")
        except Exception as problem:
            self._problem = problem
            self._task.cancel()
