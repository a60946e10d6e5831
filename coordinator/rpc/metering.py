"""The coordinator's meter: message bytes per RPC and wire bytes per connection, written to the ledger by phase."""

from __future__ import annotations

from collections.abc import Callable

from semisilo.common.rpc.meter import ConnectionMeter, Direction, MessageMeter, WireMeter
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["RoundMeter"]


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
        self._ledger = ledger
        self._messages = MessageMeter()
        reader = connections(port) if connections is not None else ConnectionMeter(local_port=port)
        self._wire = WireMeter(reader, side="coordinator", messages=self._messages)

    def bind(self, peer: str, silo: str) -> None:
        """The connection of `peer` (as gRPC names it) belongs to a silo."""
        self._wire.bind(peer, silo)

    def message(self, rpc: str, silo: str, direction: Direction, message_bytes: int) -> None:
        """Counts one serialised message."""
        self._messages.add(message_bytes, rpc=rpc, silo=silo, direction=direction)

    def delivery_rate(self, peer: str) -> float:
        """Bytes per second that the kernel last saw acknowledged on the connection of `peer`; 0.0 when unknown."""
        return self._wire.delivery_rate(peer)

    def settle(self, *, study: str, round: int, phase: str) -> None:
        """Writes what was counted since the last call as costs of a phase; "standby" between phases."""
        costs = [Cost(study=study, round=round, phase=phase, silo=use.silo, direction=use.direction, kind="message",
                      item=use.rpc, bytes=use.message_bytes, count=use.messages) for use in self._messages.take()]
        costs += [Cost(study=study, round=round, phase=phase, silo=wire.silo, direction=wire.direction, kind="wire",
                       item="tcp", bytes=wire.wire_bytes, estimated=wire.estimated) for wire in self._wire.take(phase)]
        if costs:
            add_costs(self._ledger, costs)
