"""Connections that nobody needs end before files run out; a silo's own stays."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

import pytest

from semisilo.common.rpc.meter import format_peer
from semisilo.coordinator.rpc.connection_limits import (
    ConnectionLimits,
    OpenConnection,
    ended_first,
    strangers_kept,
)
from tests.each_of import each_of


def connection(host: str, number: int, since: float) -> OpenConnection:
    return OpenConnection(inode=number, descriptor=number, peer=format_peer(host, number), since=since)


def test_the_oldest_of_the_address_with_most_go_first() -> None:
    crowd = [connection("10.0.0.1", number, float(number)) for number in range(10)]
    pair = [connection("10.0.0.2", 20 + number, -float(number)) for number in range(2)]
    lone = connection("10.0.0.3", 30, -100.0)
    assert ended_first([*crowd, *pair, lone], kept=13) == []
    assert [each.inode for each in ended_first([*crowd, *pair, lone], kept=9)] == [0, 1, 2, 3]
    assert [each.inode for each in ended_first([*crowd, *pair, lone], kept=4)] == [0, 1, 2, 3, 4, 5, 6, 7, 21]
    assert len(ended_first([*crowd, *pair, lone], kept=0)) == 13


@each_of(("open_files", "silos", "kept"), [
    (0, 5000, 256), (1024, 5, 256), (1024, 200, 212), (1024, 1000, 16), (20_000, 1000, 256)])
def test_strangers_have_half_of_what_silos_leave(open_files: int, silos: int, kept: int) -> None:
    assert strangers_kept(open_files, silos, missing=0, own_files=200) == kept


@each_of(("open_files", "connected", "missing", "kept"), [
    (0, 0, 1000, 1256), (20_000, 0, 1000, 1256), (20_000, 600, 400, 656), (1024, 0, 300, 412), (1024, 200, 100, 212),
    (1024, 1000, 1000, 16)])
def test_there_is_room_for_every_silo_that_is_to_come(open_files: int, connected: int, missing: int, kept: int) -> None:
    """A coordinator that was started again with 1,000 silos ended the connections of most before they could call."""
    assert strangers_kept(open_files, connected, missing=missing, own_files=200) == kept


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as made:
        yield made


class _Port:
    """Connections to a listener of this process, which has accepted them."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.port = listener.getsockname()[1]
        self.outside: list[socket.socket] = []
        self.inside: list[socket.socket] = []
        self.called: Callable[[str, str], None] = lambda peer, silo: None

    def connect(self, silo: str = "") -> None:
        outside = socket.create_connection(("127.0.0.1", self.port))
        inside, peer = self.listener.accept()
        self.outside.append(outside)
        self.inside.append(inside)
        if silo:
            self.called(f"ipv4:127.0.0.1:{peer[1]}", silo)

    def ended(self) -> list[int]:
        """Which connections have ended for both ends."""
        found = []
        for number, (outside, inside) in enumerate(zip(self.outside, self.inside, strict=True)):
            outside.setblocking(False)
            inside.setblocking(False)
            try:
                ends = [outside.recv(1), inside.recv(1)]
            except BlockingIOError:
                continue
            assert ends == [b"", b""]
            found.append(number)
        return found

    def limits(self, *, strangers: Callable[[int], int]) -> ConnectionLimits:
        made = ConnectionLimits(ports=lambda: (self.port,), strangers=strangers)
        self.called = made.called
        return made

    def close(self) -> None:
        for each in (*self.outside, *self.inside):
            each.close()


@pytest.fixture
def port(listener: socket.socket) -> Iterator[_Port]:
    made = _Port(listener)
    yield made
    made.close()


def test_of_too_many_strangers_the_oldest_are_shut_down_and_silos_stay(port: _Port,
                                                                        caplog: pytest.LogCaptureFixture) -> None:
    limits = port.limits(strangers=lambda connected: 3)
    port.connect("alpha")
    for _ in range(3):
        port.connect()
        assert limits.look() == 0
    port.connect()
    port.connect()
    with caplog.at_level(logging.WARNING):
        assert limits.look() == 2
    assert port.ended() == [1, 2]
    assert "2 connections were ended" in caplog.text
    for number in (1, 2):  # as gRPC does
        port.inside[number].close()
        port.inside[number] = socket.socket()
        port.outside[number] = port.inside[number]
    assert limits.look() == 0
    assert port.listener.fileno() > 0


def test_one_silo_keeps_its_newest_connections(port: _Port) -> None:
    limits = port.limits(strangers=lambda connected: 0)
    for _ in range(9):
        port.connect("greedy")
        limits.look()
    port.connect("alpha")
    limits.look()
    assert port.ended() == [0]


def test_sockets_of_other_ports_are_left_alone(port: _Port) -> None:
    port.connect()
    limits = ConnectionLimits(ports=lambda: (1,), strangers=lambda connected: 0)
    assert limits.look() == 0
    assert port.ended() == []


def test_silos_that_have_come_are_counted_once_and_forgotten_when_they_are_gone(port: _Port) -> None:
    asked: list[int] = []
    limits = port.limits(strangers=lambda connected: asked.append(connected) or 9)  # type: ignore[func-returns-value]
    for silo in ("alpha", "alpha", "beta", ""):
        port.connect(silo)
    limits.look()
    for inside in port.inside[1:3]:
        inside.close()
    limits.look()
    port.inside[0].close()
    limits.look()
    assert asked == [2, 1, 0]
    assert limits._silos == {}, "as many as are open"
