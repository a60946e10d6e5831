"""The kernel's counters, against sockets whose bytes are known."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from semisilo.common.rpc import socket_counters
from semisilo.common.rpc.socket_counters import TcpCounters

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    with near, far:
        yield near, far


def reads(sock: socket.socket) -> TcpCounters:
    counters = socket_counters.read(sock.fileno())
    assert counters is not None
    return counters


def receive_all(sock: socket.socket, count: int) -> None:
    while count:
        count -= len(sock.recv(count))


@linux
def test_bytes_each_way_are_counted_exactly(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    assert reads(near) == TcpCounters(0, 0, 0)
    near.sendall(bytes(100_000))
    receive_all(far, 100_000)
    far.sendall(b"x" * 77)
    receive_all(near, 77)
    assert (reads(near).stream_bytes_sent, reads(near).bytes_received) == (100_000, 77)
    assert (reads(far).stream_bytes_sent, reads(far).bytes_received) == (77, 100_000)


@linux
@pytest.mark.parametrize("half_closed_only", [True, False])
def test_the_end_of_a_connection_is_not_counted_as_a_byte(pair: tuple[socket.socket, socket.socket],
                                                         half_closed_only: bool) -> None:
    near, far = pair
    near.sendall(b"12345")
    near.shutdown(socket.SHUT_WR)
    receive_all(far, 5)
    assert far.recv(1) == b""
    if not half_closed_only:
        far.shutdown(socket.SHUT_WR)
        assert near.recv(1) == b""
        time.sleep(0.05)
    assert reads(far).bytes_received == 5
    assert reads(near).stream_bytes_sent == 5
    assert reads(near).bytes_received == 0
    assert reads(near).closed is not half_closed_only


@linux
def test_reading_leaves_the_descriptor_open(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    for _ in range(3):
        reads(near)
    near.sendall(b"x")
    assert far.recv(1) == b"x"


@linux
def test_what_is_no_tcp_socket_raises() -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(OSError, match="socket"):
        socket_counters.read(read_end)
    os.close(read_end)
    os.close(write_end)


def test_a_kernel_that_tells_less_gives_none_and_not_numbers_from_elsewhere(
        pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    near, _ = pair
    monkeypatch.setattr(socket_counters, "_INFO_BYTES", 208)  # the kernel cuts its answer to the room it is given
    assert socket_counters.read(near.fileno()) is None


def test_elsewhere_than_linux_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert socket_counters.read(-1) is None
    assert not socket_counters.available()


def test_bytes_sent_again_are_told_apart() -> None:
    """A connection without losses never shows this, so the struct is built here by the kernel's layout."""
    info = bytearray(240)
    info[0] = 1  # ESTABLISHED
    struct.pack_into("=Q", info, 128, 900)
    struct.pack_into("=QQ", info, 200, 5000, 300)
    counters = socket_counters.parse(bytes(info))
    assert counters == TcpCounters(5000, 900, 300)
    assert counters.stream_bytes_sent == 4700
