"""Bytes per silo and direction: serialised messages per RPC, and what the kernel counted on each connection.

Wire bytes are TLS and HTTP/2 included, TCP and IP headers not, bytes sent twice counted once (and told apart), so that
both ends report the same number. (Where one end closes while the other still sends, those last bytes are counted where
they were sent only.) The objects here belong to one thread, the event loop's.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from semisilo.common.rpc import socket_counters
from semisilo.common.rpc.own_sockets import own_sockets
from semisilo.common.rpc.socket_counters import DestroyedSockets, TcpCounters, cookie_of

__all__ = [
    "Connection", "ConnectionMeter", "Direction", "MessageMeter", "MessageUse", "WireMeter", "WireUse",
    "estimate_wire_bytes", "format_peer", "parse_peer",
]

Direction = Literal["up", "down"]
"""up: from a silo to the coordinator; down: the other way."""


_NO_MESSAGES = [0, 0, 0]
_READ_AT_ONCE = 100
"""Connections: some milliseconds."""


@dataclass(frozen=True, slots=True)
class MessageUse:
    """Serialised messages of one RPC, silo and direction."""

    rpc: str
    silo: str
    direction: Direction
    message_bytes: int
    messages: int
    calls: int


class MessageMeter:
    """Adds up the sizes of serialised protobuf messages."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, Direction], list[int]] = {}
        self._taken: dict[tuple[str, str, Direction], list[int]] = {}
        self._added: set[tuple[str, str, Direction]] = set()
        """Since the last `take`."""

    def add(self, message_bytes: int, *, rpc: str, silo: str, direction: Direction, messages: int = 1,
            calls: int = 0) -> None:
        """Counts messages.

        Args:
            message_bytes: serialised size, `message.ByteSize()`.
            rpc: name of the RPC, for example "SubmitUpdate".
            silo: name of the silo at the other end, or of this one.
            direction: which way they went.
            messages: how many they were.
            calls: RPCs that began with them; 1 with the request, 0 with the answer and in the middle of a stream.
        """
        key = (rpc, silo, direction)
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = [0, 0, 0]
        total[0] += message_bytes
        total[1] += messages
        total[2] += calls
        self._added.add(key)

    def totals(self) -> list[MessageUse]:
        """Everything since the start, in order of (rpc, silo, direction)."""
        return [MessageUse(*key, *total) for key, total in sorted(self._totals.items())]

    def take(self) -> list[MessageUse]:
        """What was added since the last `take`."""
        uses = []
        for key in sorted(self._added):
            total, before = self._totals[key], self._taken.get(key, _NO_MESSAGES)
            if total != before:
                uses.append(MessageUse(*key, total[0] - before[0], total[1] - before[1], total[2] - before[2]))
            self._taken[key] = list(total)
        self._added.clear()
        return uses


def format_peer(host: str, port: int) -> str:
    """An address as "ipv4:1.2.3.4:80" or "ipv6:[::1]:80"; an IPv4 address mapped into IPv6 becomes IPv4."""
    if host.lower().startswith("::ffff:") and "." in host:
        host = host[7:]
    host = host.partition("%")[0]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


@functools.lru_cache(maxsize=16_384)
def parse_peer(peer: str) -> str:
    """What gRPC's `context.peer()` says ("ipv6:%5B::1%5D:80" for example), in the form of `format_peer`.

    Other kinds of address ("unix:...") are returned as they are; they match no TCP connection. Kept: every call of a
    connection asks twice.
    """
    text = unquote(peer)
    scheme, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdigit():
        return text
    return format_peer(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection of this process."""

    local: str
    """As `format_peer` writes it, like the next."""
    peer: str
    serial: int
    """Tells apart connections that had the same addresses one after the other."""


@dataclass(slots=True)
class _Watched:
    connection: Connection
    cookie: int
    """The kernel's name for the socket; 0 when it has none."""
    descriptor: int
    """Its owner's; not to be used after `released`."""
    counters: TcpCounters
    released: float | None = None
    """When the owner was first seen to have closed its descriptor; on the monotonic clock, in seconds."""


class ConnectionMeter:
    """Reads the kernel's counters of this process's TCP connections, the last time when the kernel destroys them.

    Sockets are read through their owner's descriptors and never duplicated (`semisilo.common.rpc.socket_counters` says
    why). That another thread closes a descriptor meanwhile is noticed by the inode, before anything that was read is
    used. A connection that begins and ends between two samples is not seen; `WireMeter.bind` samples at the start of
    the first RPC, so that only connections without any RPC are missed (refused handshakes, port scans).
    """

    def __init__(self, *, local_port: int = 0, remote_port: int = 0, remote_hosts: Collection[str] = (),
                 linger_seconds: float = 5.0, except_local_port: int = 0) -> None:
        """Chooses the connections.

        Args:
            local_port: only connections that this port accepted: the coordinator's; 0 for any.
            remote_port: only connections to this port: a silo's; 0 for any.
            remote_hosts: only connections to these addresses, as numbers; empty for any.
            linger_seconds: how long the kernel may take to end a closed connection: a peer may never acknowledge it.
                Then the last sample stands.
            except_local_port: not those that this port accepted: a listener of this process that serves somebody else.
        """
        self._local_port = local_port
        self._except_local_port = except_local_port
        self._remote_port = remote_port
        self._remote_hosts = frozenset(format_peer(host, 0) for host in remote_hosts)
        self._linger_seconds = linger_seconds
        self._watched: dict[int, _Watched] = {}  # by inode
        self._newest: dict[str, int] = {}  # peer -> inode of its last connection
        self._destroyed = DestroyedSockets()
        self._ended: dict[Connection, TcpCounters] = {}
        self._ignored: set[int] = set()
        self._serial = 0
        self.supported = socket_counters.available()
        """False where the kernel does not count; then there are never any connections here."""

    def sample(self) -> dict[Connection, TcpCounters]:
        """Totals of every connection seen so far, ended ones included until `forget`; they never fall."""
        for _ in self.reading():
            pass
        return self.totals()

    def totals(self) -> dict[Connection, TcpCounters]:
        """What `sample` returns, as it was last read."""
        return {**self._ended, **{each.connection: each.counters for each in self._watched.values()}}

    def reading(self) -> Iterator[None]:
        """Reads all counters, a hundred connections with each step: an event loop may answer somebody in between."""
        if self.supported:
            yield from self._scan()

    def latest(self, peer: str) -> Connection | None:
        """The connection to `peer` (as `format_peer` writes it) that was seen last, if it may still be there."""
        watched = self._watched.get(self._newest.get(peer, 0))
        return None if watched is None or watched.connection.peer != peer else watched.connection

    def look_for_new(self) -> None:
        """Takes note of connections that have begun; those known are not read, so that a thousand silos that connect
        at the same time cost a few listings of the descriptors."""
        if self.supported:
            self._look_for_new(own_sockets())

    def delivery_rate(self, peer: str) -> float:
        """Bytes per second that the live connection to `peer` (as `format_peer` writes it) was last seen to deliver."""
        inode = self._newest.get(peer, 0)
        watched = self._watched.get(inode)
        if watched is None or watched.connection.peer != peer or watched.released is not None:
            return 0.0
        with suppress(OSError):
            rate = socket_counters.delivery_rate(watched.descriptor)
            return rate if _is(watched.descriptor, inode) else 0.0
        return 0.0

    def forget(self, connection: Connection) -> None:
        """Drops the totals of a connection that has ended; a live one stays."""
        self._ended.pop(connection, None)

    def ended(self) -> set[Connection]:
        """Connections whose totals are final."""
        return set(self._ended)

    def close(self) -> None:
        """Counting has ended."""
        for inode in list(self._watched):
            self._end(inode)
        self._destroyed.close()
        self.supported = False

    def _look_for_new(self, descriptors: Mapping[int, list[int]]) -> None:
        self._ignored.intersection_update(descriptors)  # numbers of closed sockets come again
        for inode, owners in descriptors.items():
            if inode not in self._watched and inode not in self._ignored:
                self._begin(inode, owners[0])

    def _scan(self) -> Iterator[None]:
        descriptors = own_sockets()
        self._look_for_new(descriptors)
        self._read_last_words()
        now = time.monotonic()
        for number, (inode, watched) in enumerate(list(self._watched.items()), 1):
            if number % _READ_AT_ONCE == 0:
                yield
            if self._watched.get(inode) is not watched:
                continue  # has ended while somebody else was answered
            if inode in descriptors:
                watched.descriptor = descriptors[inode][0]
                counters = _read(watched.descriptor, inode)
                if counters is not None:
                    watched.counters = _no_less(counters, watched.counters)
                continue
            watched.released = now if watched.released is None else watched.released
            if now - watched.released >= self._linger_seconds or not self._destroyed.listening:
                self._end(inode)

    def _read_last_words(self) -> None:
        by_cookie = {watched.cookie: inode for inode, watched in self._watched.items() if watched.cookie}
        for cookie, counters in self._destroyed.take():
            inode = by_cookie.pop(cookie, None)
            if inode is not None:
                self._watched[inode].counters = _no_less(counters, self._watched[inode].counters)
                self._end(inode)

    def _begin(self, inode: int, descriptor: int) -> None:
        """Starts to watch a socket if it is one of the connections wanted."""
        try:
            borrowed = socket.socket(fileno=descriptor)
        except OSError:
            return
        try:
            if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.type != socket.SOCK_STREAM:
                self._ignored.add(inode)
                return
            try:
                local, peer, cookie = borrowed.getsockname(), borrowed.getpeername(), cookie_of(borrowed)
            except OSError:  # listening, or not connected yet
                return
        finally:
            borrowed.detach()
        if not self._wanted(local, peer):
            self._ignored.add(inode)
            return
        if not _is(descriptor, inode):
            return
        try:
            counters = socket_counters.read(descriptor)
        except OSError:
            return
        if counters is None:  # an old kernel
            self.supported = False
            return
        self._serial += 1
        connection = Connection(format_peer(*local[:2]), format_peer(*peer[:2]), self._serial)
        self._watched[inode] = _Watched(connection, cookie, descriptor, counters)
        self._newest[connection.peer] = inode

    def _wanted(self, local: tuple[str, int], peer: tuple[str, int]) -> bool:
        return ((not self._local_port or local[1] == self._local_port)
                and not (self._except_local_port and local[1] == self._except_local_port)
                and (not self._remote_port or peer[1] == self._remote_port)
                and (not self._remote_hosts or format_peer(peer[0], 0) in self._remote_hosts))

    def _end(self, inode: int) -> None:
        watched = self._watched.pop(inode)
        self._ended[watched.connection] = watched.counters
        if self._newest.get(watched.connection.peer) == inode:
            del self._newest[watched.connection.peer]


def _read(descriptor: int, inode: int) -> TcpCounters | None:
    """The counters of a socket; None when its owner has closed it meanwhile and the number is something else."""
    try:
        counters = socket_counters.read(descriptor)
    except OSError:
        return None
    return counters if _is(descriptor, inode) else None


def _is(descriptor: int, inode: int) -> bool:
    """Whether a descriptor is still that of the socket with this inode."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return status.st_ino == inode and stat.S_ISSOCK(status.st_mode)


def _no_less(new: TcpCounters, old: TcpCounters) -> TcpCounters:
    return TcpCounters(max(new.bytes_sent, old.bytes_sent), max(new.bytes_received, old.bytes_received),
                       max(new.bytes_retrans, old.bytes_retrans), new.closed)


def estimate_wire_bytes(*, message_bytes: int, calls: int, connections: int) -> int:
    """Wire bytes of one direction where nothing counts them.

    Measured with TLS 1.3 and chunks of 256 KiB to 1 MiB, both directions together: 0.15 % on top of the messages,
    0.3 kB for each RPC, 6.1 kB for each new connection. RPCs and connections are shared out evenly here.

    Args:
        message_bytes: serialised messages of the direction.
        calls: RPCs.
        connections: connections that were made.
    """
    return round(message_bytes * 1.0015 + calls * 150 + connections * 3050)


@dataclass(frozen=True, slots=True)
class WireUse:
    """Bytes on the wire of one silo in one direction."""

    silo: str
    """Empty for connections that no RPC has named: overhead."""
    direction: Direction
    wire_bytes: int
    estimated: bool = False
    label: str = ""
    """What the bytes were for, as given to `take`."""


class WireMeter:
    """Attributes what connections carried to silos, from one `take` to the next."""

    def __init__(self, connections: ConnectionMeter, *, side: Literal["coordinator", "silo"], silo: str = "",
                 messages: MessageMeter | None = None) -> None:
        """Watches connections.

        Args:
            connections: those of the coordinator's port, or of the silo to the coordinator.
            side: where this runs; decides which way "sent" is.
            silo: at a silo its name: all connections are its own.
            messages: what to estimate from where the kernel does not count.
        """
        self._connections = connections
        self._side = side
        self._silo = silo
        self._messages = messages
        self._silos: dict[str, str] = {}  # by peer, as last bound
        self._owners: dict[Connection, str] = {}
        self._before: dict[Connection, TcpCounters] = {}
        self._messages_before: dict[tuple[str, Direction], tuple[int, int]] = {}
        self._new_connections: dict[str, int] = defaultdict(int)
        if side == "silo":
            self._new_connections[silo] = 1

    def bind(self, peer: str, silo: str) -> None:
        """Says whose connection it is; to be called at the start of every RPC. Cheap when nothing is new.

        Args:
            peer: gRPC's `context.peer()`.
            silo: the name in the caller's certificate.
        """
        peer = parse_peer(peer)
        if self._silos.get(peer) == silo:
            return
        self._silos[peer] = silo
        self._new_connections[silo] += 1
        connection = self._connections.latest(peer)
        if connection is None or connection in self._owners:  # then it may be an earlier one, of the same addresses
            self._connections.look_for_new()
            connection = self._connections.latest(peer)
        if connection is not None and connection not in self._owners:
            self._owners[connection] = silo

    def delivery_rate(self, peer: str) -> float:
        """Bytes per second that the kernel last saw acknowledged on a connection; 0.0 when it does not tell.

        Args:
            peer: gRPC's `context.peer()`.
        """
        return self._connections.delivery_rate(parse_peer(peer))

    def take(self, label: str = "", *, fresh: bool = True) -> list[WireUse]:
        """What each silo's connections carried since the last `take`, both directions, in order of names.

        Args:
            label: copied into the answer, for example "round 3 train".
            fresh: False where the caller has just been through all of `ConnectionMeter.reading`.
        """
        samples = self._connections.sample() if fresh else self._connections.totals()
        if not self._connections.supported:
            return self._estimate(label)
        totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for connection, now in samples.items():
            before = self._before.get(connection, _NOTHING)
            self._before[connection] = now
            total = totals[self._owner(connection)]
            total[0] += now.stream_bytes_sent - before.stream_bytes_sent
            total[1] += now.bytes_received - before.bytes_received
        self._forget_ended(samples)
        self._new_connections.clear()
        uses = []
        for silo, (sent, received) in sorted(totals.items()):
            outward, inward = _OUT_AND_IN[self._side]
            if sent:
                uses.append(WireUse(silo, outward, sent, label=label))
            if received:
                uses.append(WireUse(silo, inward, received, label=label))
        return uses

    def _owner(self, connection: Connection) -> str:
        if self._side == "silo":
            return self._silo
        return self._owners.get(connection) or self._silos.get(connection.peer, "")

    def _forget_ended(self, samples: Collection[Connection]) -> None:
        ended = self._connections.ended()
        live_peers = {connection.peer for connection in samples if connection not in ended}
        for connection in ended:
            self._connections.forget(connection)
            self._before.pop(connection, None)
            self._owners.pop(connection, None)
            if connection.peer not in live_peers:
                self._silos.pop(connection.peer, None)

    def _estimate(self, label: str) -> list[WireUse]:
        now: dict[tuple[str, Direction], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for use in self._messages.totals() if self._messages is not None else ():
            for direction in _DIRECTIONS:
                own_bytes = use.message_bytes if use.direction == direction else 0
                total = now[use.silo, direction]
                now[use.silo, direction] = total[0] + own_bytes, total[1] + use.calls
        uses = []
        for (silo, direction), (message_bytes, call_count) in sorted(now.items()):
            bytes_before, calls_before = self._messages_before.get((silo, direction), (0, 0))
            amount = estimate_wire_bytes(message_bytes=message_bytes - bytes_before, calls=call_count - calls_before,
                                         connections=self._new_connections.get(silo, 0))
            if amount:
                uses.append(WireUse(silo, direction, amount, estimated=True, label=label))
        self._messages_before = dict(now)
        self._new_connections.clear()
        return uses


_NOTHING = TcpCounters(0, 0, 0)
_OUT_AND_IN: dict[Literal["coordinator", "silo"], tuple[Direction, Direction]] = {
    "coordinator": ("down", "up"), "silo": ("up", "down")}
_DIRECTIONS: tuple[Direction, ...] = ("down", "up")
