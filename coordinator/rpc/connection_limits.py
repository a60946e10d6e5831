"""Which connections are ended before files run out: first those on which no silo has called yet, the oldest first.

gRPC takes whatever connects. A handshake may last ten seconds and a connection takes a file descriptor, so strangers
that connect and say nothing would use up those of the process, and silos would wait outside. gRPC is left to close the
descriptor: shut down from here, the connection has ended for it as if the other side had gone.

Tests: tests/coordinator/rpc/test_connection_limits.py.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from semisilo.common.rpc.meter import format_peer, parse_peer
from semisilo.common.rpc.own_sockets import own_sockets
from semisilo.coordinator.rpc.stranger_calls import address_of

__all__ = ["ConnectionLimits", "OpenConnection", "ended_first", "strangers_kept"]

_LOG = logging.getLogger("semisilo.coordinator")
_MOST_STRANGERS, _FEWEST_STRANGERS = 256, 16
"""Connections without a call of a silo, beside one of each silo that is to come: its own is such a one from its
handshake until its first call is here, and after a restart all come at once."""
_OF_ONE_SILO = 8
"""It has one; a restart, a check and a broken line may leave some behind."""
_SAY_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenConnection:
    """One that this process has accepted."""

    inode: int
    descriptor: int
    peer: str
    """As `semisilo.common.rpc.meter.format_peer` writes it."""
    since: float
    """When it was first seen, by a clock that never steps."""


def strangers_kept(open_files: int, connected: int, *, missing: int, own_files: int) -> int:
    """How many connections without a call may stay open: some, and one for each silo that may come; no more than half
    of the files that are left beside the silos' own.

    Args:
        open_files: that this process may have; 0 for any number.
        connected: silos that are; each may have a second connection.
        missing: silos that are enrolled and not connected.
        own_files: that the process needs for other things.
    """
    wanted = _MOST_STRANGERS + missing
    if not open_files:
        return wanted
    return min(wanted, max(_FEWEST_STRANGERS, (open_files - own_files - 2 * connected) // 2))


def ended_first(strangers: Iterable[OpenConnection], *, kept: int) -> list[OpenConnection]:
    """Those of too many that go: of the address that has most, its oldest, until no more than `kept` are left."""
    by_address: dict[str, list[OpenConnection]] = defaultdict(list)
    for each in sorted(strangers, key=lambda one: one.since):
        by_address[address_of(each.peer)].append(each)
    counts = Counter({address: len(theirs) for address, theirs in by_address.items()})
    too_many, ended = sum(counts.values()) - kept, []
    while too_many > 0:  # level the addresses from the top: all that have most give one
        most = max(counts.values())
        for address in [address for address, count in counts.items() if count == most][:too_many]:
            ended.append(by_address[address][len(by_address[address]) - counts[address]])
            counts[address] -= 1
            too_many -= 1
    return ended


class ConnectionLimits:
    """Knows the connections of some ports from one look to the next."""

    def __init__(self, *, ports: Callable[[], Collection[int]], strangers: Callable[[int], int],
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            ports: of this process, whose connections these are.
            strangers: how many connections without a call may stay open, by the number of silos that are connected.
        """
        self._ports = ports
        self._strangers = strangers
        self._clock = clock
        self._silos: dict[str, str] = {}
        """Peer -> the silo whose certificate has come with a call on its connection."""
        self._open: dict[int, OpenConnection] = {}
        """By inode."""
        self._others: set[int] = set()
        """Inodes of sockets that are none of ours."""
        self._said = -_SAY_SECONDS
        self._ended = 0

    def called(self, peer: str, silo: str) -> None:
        """A call has come, with a certificate of a silo; at once, before its request is read.

        Args:
            peer: gRPC's `context.peer()`.
        """
        self._silos[parse_peer(peer)] = silo

    def look(self) -> int:
        """Ends what is too much; returns how many connections that were."""
        self._find()
        strangers, of_silos = [], defaultdict(list)
        for each in self._open.values():
            if silo := self._silos.get(each.peer, ""):
                of_silos[silo].append(each)
            else:
                strangers.append(each)
        self._silos = {each.peer: silo for silo, theirs in of_silos.items() for each in theirs}
        victims = ended_first(strangers, kept=self._strangers(len(of_silos)))
        for theirs in of_silos.values():
            victims += sorted(theirs, key=lambda one: one.since)[:-_OF_ONE_SILO]
        ended = sum(_end(each) for each in victims)
        self._say(ended, len(self._open))
        return ended

    def _find(self) -> None:
        sockets = own_sockets()
        self._others.intersection_update(sockets)  # numbers of closed sockets come again
        self._open = {inode: each for inode, each in self._open.items() if each.descriptor in sockets.get(inode, ())}
        ports, now = self._ports(), self._clock()
        for inode, descriptors in sockets.items():
            if inode in self._open or inode in self._others:
                continue
            borrowed = None
            try:
                borrowed = socket.socket(fileno=descriptors[0])
                is_ours = borrowed.family in (socket.AF_INET, socket.AF_INET6) and borrowed.getsockname()[1] in ports
                peer = borrowed.getpeername() if is_ours else None
            except OSError:  # it listens, or is gone by now
                continue
            finally:
                if borrowed is not None:
                    borrowed.detach()
            if peer is None:
                self._others.add(inode)
            else:
                self._open[inode] = OpenConnection(inode=inode, descriptor=descriptors[0], since=now,
                                                   peer=format_peer(*peer[:2]))

    def _say(self, ended: int, connections: int) -> None:
        self._ended += ended
        if self._ended and self._clock() - self._said >= _SAY_SECONDS:
            _LOG.warning("%d connections were ended: more were open than are kept of those on which no silo calls, or"
                         " of one silo (%d are open)", self._ended, connections - ended)
            self._said, self._ended = self._clock(), 0


def _end(connection: OpenConnection) -> bool:
    """Shuts a connection down; whether it was still the same."""
    with suppress(OSError):
        if os.fstat(connection.descriptor).st_ino != connection.inode:
            return False
        borrowed = socket.socket(fileno=connection.descriptor)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()
        return True
    return False
