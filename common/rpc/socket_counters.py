"""What the kernel counted on TCP connections, also at the instant they were destroyed. Linux only.

TLS and HTTP/2 are included, TCP and IP headers are not.

Counters die with a socket. Keeping a duplicate of the descriptor would keep them readable, but gRPC's sockets must not
be duplicated: it forgets a socket by closing it, and relies on that to take it out of its epoll set. With a duplicate
the kernel goes on reporting events for it, to memory that gRPC has used for something else. So the kernel is asked to
tell, over netlink (sock_diag), about every TCP socket that ends; no privilege is needed.

Source: linux/sock_diag.h, linux/inet_diag.h.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["DestroyedSockets", "TcpCounters", "available", "cookie_of", "delivery_rate", "parse", "read"]

_NETLINK_SOCK_DIAG = 4
_GROUPS = 1 << 0 | 1 << 2
"""SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY."""
_SO_COOKIE = 57
_MESSAGE = struct.Struct("=IHHII")
_SOCK_DIAG_BY_FAMILY = 20
_COOKIE_AT = _MESSAGE.size + 4 + 4 + 32 + 4
"""In inet_diag_msg: behind family, state, timer, retransmits; two ports; two addresses; an interface."""
_ATTRIBUTES_AT = _MESSAGE.size + 72
_INFO = 2
"""INET_DIAG_INFO: a struct tcp_info."""
_BUFFER_BYTES = 2**20
"""Some thousand sockets; what comes while it is full is lost, and the connection's last sample stands."""


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
    # Family and kind are named, so that Python does not ask the kernel for them: this is read for every connection. Of
    # what is no TCP socket, whatever its family, TCP_INFO cannot be had.
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)
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


class DestroyedSockets:
    """Collects the last counters of sockets of this machine that have ended since it was made."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        with suppress(OSError, AttributeError):  # another system, or a kernel without it
            opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            try:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                opened.bind((0, _GROUPS))
                opened.setblocking(False)
            except OSError:
                opened.close()
                raise
            self._socket = opened

    @property
    def listening(self) -> bool:
        """Whether the kernel tells."""
        return self._socket is not None

    def take(self) -> Iterator[tuple[int, TcpCounters]]:
        """(cookie, counters) of each socket that has ended since the last call, whoever it belonged to."""
        while self._socket is not None:
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # it has overflowed: some are lost, later ones are not
                    continue
                return  # whatever it is, it may last
            yield from _parse(data)

    def close(self) -> None:
        """Stops listening."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def cookie_of(sock: socket.socket) -> int:
    """The kernel's name for a socket, never used twice; 0 where it has none."""
    try:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0])
    except OSError:
        return 0


def _parse(data: bytes) -> Iterator[tuple[int, TcpCounters]]:
    start = 0
    while start + _ATTRIBUTES_AT <= len(data):
        length, kind, *_ = _MESSAGE.unpack_from(data, start)
        if length < _ATTRIBUTES_AT or start + length > len(data):
            return
        if kind == _SOCK_DIAG_BY_FAMILY:
            cookie = struct.unpack_from("=Q", data, start + _COOKIE_AT)[0]
            for attribute, value in _attributes(data[start + _ATTRIBUTES_AT:start + length]):
                counters = parse(value) if attribute == _INFO else None
                if counters is not None:
                    yield cookie, counters
        start += length + 3 & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        if length < 4:
            return
        yield kind, data[start + 4:start + length]
        start += length + 3 & ~3
