"""What the kernel says of sockets that have ended."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time

import pytest

from semisilo.common.rpc import socket_counters
from semisilo.common.rpc.socket_counters import DestroyedSockets, TcpCounters, cookie_of
from tests.each_of import each_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")


def _last_words(listener: DestroyedSockets, cookies: set[int], seconds: float = 300) -> dict[int, TcpCounters]:
    found: dict[int, TcpCounters] = {}
    end = time.monotonic() + seconds
    while cookies - found.keys() and time.monotonic() < end:
        found |= {cookie: counters for cookie, counters in listener.take() if cookie in cookies}
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_ends_of_a_connection_are_told_with_their_totals(host: str) -> None:
    listener = DestroyedSockets()
    if not listener.listening:
        pytest.skip("this kernel does not tell")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        near = socket.create_connection(listening.getsockname()[:2])
        far, _ = listening.accept()
    cookies = cookie_of(near), cookie_of(far)
    assert all(cookies)
    assert cookies[0] != cookies[1]
    near.sendall(b"x" * 70_000)
    received = 0
    while received < 70_000:
        received += len(far.recv(65536))
    far.sendall(b"y" * 300)
    near.recv(1000)
    assert set(dict(listener.take())).isdisjoint(cookies)
    near.close()
    assert far.recv(1) == b""
    far.close()
    found = _last_words(listener, set(cookies))
    assert found[cookies[0]].stream_bytes_sent == 70_000
    assert found[cookies[1]].stream_bytes_sent == 300
    assert found[cookies[1]].bytes_received in (70_000, 70_001)  # the FIN counts as one
    listener.close()
    assert list(listener.take()) == []


def test_a_full_buffer_loses_some_and_not_those_that_come_later() -> None:
    listener = DestroyedSockets()
    if not listener.listening:
        pytest.skip("this kernel does not tell")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        for _ in range(6000):
            near = socket.create_connection(listening.getsockname())
            # Ended by a reset, so that no port stays taken for a minute.
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            listening.accept()[0].close()
            near.close()
        # Some of these thousands may still be on their way into the buffer, so one later one may be lost as well.
        assert any(_heard(listener, listening) for _ in range(10))
    listener.close()


def test_a_socket_that_fails_for_good_is_not_read_for_ever() -> None:
    """Each look would hold the event loop up without an end."""
    class Failing:
        calls = 0

        def recv(self, size: int) -> bytes:
            self.calls += 1
            assert self.calls < 10
            raise OSError(errno.ENOBUFS if self.calls == 1 else errno.EPERM, "as the system says it")

    listener = DestroyedSockets()
    listener.close()
    listener._socket = failing = Failing()  # type: ignore[assignment]
    assert list(listener.take()) == []
    assert failing.calls == 2, "an overflow is no end"


def _heard(listener: DestroyedSockets, listening: socket.socket) -> bool:
    list(listener.take())
    near = socket.create_connection(listening.getsockname())
    far, _ = listening.accept()
    cookie = cookie_of(near)
    near.close()
    far.close()
    return cookie in _last_words(listener, {cookie}, seconds=1)


@each_of("data", [
    b"", b"x" * 15, struct.pack("=IHHII", 10, 20, 0, 0, 0) + b"\0" * 200,
    struct.pack("=IHHII", 2**31, 20, 0, 0, 0) + b"\0" * 200,
    struct.pack("=IHHII", 100, 20, 0, 0, 0) + b"\0" * 72 + struct.pack("=HH", 2, 2) + b"\0" * 8,
    struct.pack("=IHHII", 100, 20, 0, 0, 0) + b"\0" * 72 + struct.pack("=HH", 12, 2) + b"\0" * 8, os.urandom(300)])
def test_what_does_not_look_like_such_a_message_says_nothing(data: bytes) -> None:
    assert list(socket_counters._parse(data)) == []
