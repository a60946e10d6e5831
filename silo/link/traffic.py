"""What this silo's connection has carried, for `silo status` and the log: the kernel's count, or an estimate.

Tests: tests/silo/link/test_link.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.common.rpc.meter import ConnectionMeter, MessageMeter, WireMeter

__all__ = ["Carried", "Traffic"]


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes on the wire, TLS included."""

    sent_bytes: int = 0
    received_bytes: int = 0
    estimated: bool = False
    """Whether the kernel does not count here, so that the numbers follow from the sizes of messages."""

    def since(self, before: Carried) -> Carried:
        """What was added after `before`."""
        return Carried(self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes, self.estimated)


class Traffic:
    """Totals since the agent started."""

    def __init__(self, silo: str, *, remote_port: int = 0, metrics_port: int = 0) -> None:
        """
        Args:
            silo: this silo's name.
            remote_port: only connections to this port count: the coordinator's. 0 for all of this process, right where
                a proxy at another port is between, since the agent has no others.
            metrics_port: where this process serves Prometheus, which does not count; 0 for nowhere.
        """
        self.messages = MessageMeter()
        """Where the link adds up its messages."""
        self._connections = ConnectionMeter(remote_port=remote_port, except_local_port=metrics_port)
        self._meter = WireMeter(self._connections, side="silo", silo=silo, messages=self.messages)
        self._total = Carried()

    def total(self) -> Carried:
        """Everything since the start. Reads the kernel's counters: cheap, but not for every chunk."""
        for use in self._meter.take():
            sent, received = (use.wire_bytes, 0) if use.direction == "up" else (0, use.wire_bytes)
            self._total = Carried(self._total.sent_bytes + sent, self._total.received_bytes + received,
                                  self._total.estimated or use.estimated)
        return self._total

    def close(self) -> None:
        """Lets go of the sockets that were watched."""
        self._connections.close()
