"""The coordinator's meter: message bytes per RPC and wire bytes per connection, written to the ledger by phase."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from semisilo.common.rpc.meter import ConnectionMeter, Direction, MessageMeter, MessageUse, WireMeter, WireUse
from semisilo.coordinator.ledger.costs import Cost, CostSums
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["RoundMeter"]

_ROWS_AT_ONCE = 50
"""Cost rows of one transaction: some milliseconds, in which no silo is answered. With fewer all would take longer."""
_USES_AT_ONCE = 500
"""Of what was counted since the last time, made into costs in one turn of the event loop: likewise."""


class RoundMeter:
    """Counts while RPCs run; `settle` attributes what was counted since the last call."""

    def __init__(self, ledger: Ledger, *, port: int,
                 connections: Callable[[int], ConnectionMeter] | None = None) -> None:
        """Starts to count.

        Args:
            ledger: where `settle` writes.
            port: the port that silos connect to; enrollment has a port of its own and is not counted.
            connections: makes the reader of the kernel's counters for that port; tests give another one.
        """
        self._sums = CostSums(ledger)
        self._messages = MessageMeter()
        self._connections = connections(port) if connections is not None else ConnectionMeter(local_port=port)
        self._unwritten: dict[tuple[object, ...], Cost] = {}
        """What was counted, by all that says of what, oldest first: while the ledger cannot be written, as on a full
        disk, it grows with what silos do, not with how long that lasts."""
        self._wire = WireMeter(self._connections, side="coordinator", messages=self._messages)
        self._taken: deque[tuple[str, int, str, MessageUse | WireUse]] = deque()
        """(study, round, phase, use) that are no costs yet."""

    def bind(self, peer: str, silo: str) -> None:
        """The connection of `peer` (as gRPC names it) belongs to a silo."""
        self._wire.bind(peer, silo)

    def message(self, rpc: str, silo: str, direction: Direction, message_bytes: int) -> None:
        """Counts one serialised message."""
        self._messages.add(message_bytes, rpc=rpc, silo=silo, direction=direction)

    def delivery_rate(self, peer: str) -> float:
        """Bytes per second that the kernel last saw acknowledged on the connection of `peer`; 0.0 when unknown."""
        return self._wire.delivery_rate(peer)

    async def settle(self, *, study: str, round: int, phase: str) -> None:
        """Writes what was counted since the last call as costs of a phase; "standby" between phases.

        What is counted while it writes belongs to the next call. It writes a part at a time, between which silos are
        answered: a thousand of them have more than ten thousand rows. What a call that was cut off has not written, the
        next one does.
        """
        for _ in self._connections.reading():
            await asyncio.sleep(0)
        uses: list[MessageUse | WireUse] = [*self._messages.take(), *self._wire.take(phase, fresh=False)]
        self._taken += [(study, round, phase, use) for use in uses]
        while self._taken:
            for _ in range(min(_USES_AT_ONCE, len(self._taken))):
                self._keep(_cost(*self._taken.popleft()))
            if self._taken:
                await asyncio.sleep(0)
        while self._unwritten:
            rows = list(islice(self._unwritten.items(), _ROWS_AT_ONCE))
            self._sums.add([row for _, row in rows])
            for key, _ in rows:
                del self._unwritten[key]
            await asyncio.sleep(0)

    def _keep(self, cost: Cost) -> None:
        key = cost.key
        before = self._unwritten.get(key)
        self._unwritten[key] = cost if before is None else replace(
            before, bytes=before.bytes + cost.bytes, count=before.count + cost.count,
            estimated=before.estimated or cost.estimated)


def _cost(study: str, round: int, phase: str, use: MessageUse | WireUse) -> Cost:
    if isinstance(use, MessageUse):
        return Cost(study=study, round=round, phase=phase, silo=use.silo, direction=use.direction, kind="message",
                    item=use.rpc, bytes=use.message_bytes, count=use.messages)
    return Cost(study=study, round=round, phase=phase, silo=use.silo, direction=use.direction, kind="wire", item="tcp",
                bytes=use.wire_bytes, estimated=use.estimated)
