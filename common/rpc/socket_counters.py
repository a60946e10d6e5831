"""The kernel's last word on TCP connections: their counters at the instant they were destroyed. Linux only.

Counters die with a socket. Keeping a duplicate of the descriptor would keep them readable, but gRPC's sockets must not
be duplicated: it forgets a socket by closing it, and relies on that to take it out of its epoll set. With a duplicate
the kernel goes on reporting events for it, to memory that gRPC has used for something else. So the kernel is asked to
tell, over netlink (sock_diag), about every TCP socket that ends; no privilege is needed.

Source: linux/sock_diag.h, linux/inet_diag.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from common import tcp_info
from common.tcp_info import TcpCounters

__all__ = ["DestroyedSockets", "cookie_of"]

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
            except OSError:  # the buffer has overflowed: some are lost, later ones are not
                continue
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
                counters = tcp_info.parse(value) if attribute == _INFO else None
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
