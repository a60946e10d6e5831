"""What the kernel counted on one TCP connection: TLS and HTTP/2 included, TCP and IP headers not. Linux only."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

__all__ = ["TcpCounters", "available", "delivery_rate", "parse", "read"]

_INFO_BYTES = 512
"""More than any kernel's struct tcp_info; the kernel fills what it knows."""
_RECEIVED_AT = 128
"""Offset of `tcpi_bytes_received`, an unsigned 64-bit number."""
_SENT_AT = 200
"""Offset of `tcpi_bytes_sent`, which `tcpi_bytes_retrans` follows (Linux 4.19 and later)."""
_NEEDED_BYTES = 216
_DELIVERY_RATE_AT = 160
"""Offset of `tcpi_delivery_rate`, an unsigned 64-bit number."""
_CLOSE = 7
_AFTER_FIN = frozenset({6, _CLOSE, 8, 9, 11})
"""TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING: the states that follow the peer's FIN."""


@dataclass(frozen=True, slots=True)
class TcpCounters:
    """Totals since the connection began."""

    bytes_sent: int
    """Bytes handed to the network, those sent again included."""
    bytes_received: int
    """Bytes received in order, each counted once."""
    bytes_retrans: int
    """The part of `bytes_sent` that was sent again."""
    closed: bool = False
    """Whether the connection is over for the kernel; then the totals are final."""

    @property
    def stream_bytes_sent(self) -> int:
        """Bytes of the stream that were sent, each counted once: what the other end receives."""
        return self.bytes_sent - self.bytes_retrans


def read(fd: int) -> TcpCounters | None:
    """The counters of a connected TCP socket.

    The kernel counts the peer's FIN as a received byte; it is taken off here. A socket that was reset ends in the same
    state as one that was closed, so after a reset between two readings one byte too few is possible.

    Args:
        fd: a socket's descriptor; it stays open.
    Returns: None where the kernel does not tell (other systems, Linux before 4.19).
    Raises: OSError when `fd` is no TCP socket.
    """
    return parse(_info(fd)) if available() else None


def delivery_rate(fd: int) -> float:
    """Bytes per second that the peer was last seen to acknowledge while there was enough to send; 0.0 when unknown.

    Args:
        fd: a connected TCP socket's descriptor; it stays open.
    Raises: OSError when `fd` is no TCP socket.
    """
    info = _info(fd) if available() else b""
    return float(struct.unpack_from("=Q", info, _DELIVERY_RATE_AT)[0]) if len(info) >= _NEEDED_BYTES else 0.0


def available() -> bool:
    """Whether this system has the interface at all."""
    return sys.platform == "linux" and hasattr(socket, "TCP_INFO")


def _info(fd: int) -> bytes:
    borrowed = socket.socket(fileno=fd)
    try:
        return borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    finally:
        borrowed.detach()


def parse(info: bytes) -> TcpCounters | None:
    """Counters of a struct tcp_info; None of an old kernel's, which is too short."""
    if len(info) < _NEEDED_BYTES:
        return None
    state = info[0]
    received: int = struct.unpack_from("=Q", info, _RECEIVED_AT)[0]
    sent, again = struct.unpack_from("=QQ", info, _SENT_AT)
    if state in _AFTER_FIN and received > 0:
        received -= 1
    return TcpCounters(bytes_sent=sent, bytes_received=received, bytes_retrans=again, closed=state == _CLOSE)
