"""The proxy that other tests count and cut with."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from tests.proxy import Proxy

AMOUNT = 400_000


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_after_so_many_bytes_comes_when_all_of_them_have_arrived(direction: str) -> None:
    """Its reset threw away what still lay in the send buffer: two thirds, where the receiver was slow."""
    with socket.create_server(("127.0.0.1", 0)) as listening, Proxy("127.0.0.1", listening.getsockname()[1]) as proxy:
        setattr(proxy, f"cut_after_{direction}_bytes", AMOUNT)
        near = socket.socket()
        for receiving in (near, listening):
            receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # what is accepted has it as well
        near.connect(("127.0.0.1", proxy.port))
        far, _ = listening.accept()
        with near, far:
            source, target = (near, far) if direction == "up" else (far, near)
            sending = threading.Thread(target=_send, args=(source,))
            sending.start()
            arrived = _arrived(target)
            sending.join(300)
        assert arrived == AMOUNT
        assert getattr(proxy, f"total_{direction}") == AMOUNT


def _arrived(target: socket.socket) -> int:
    """Bytes until the reset, to one that reads slowly."""
    arrived = 0
    while True:
        try:
            data = target.recv(65_536)
        except ConnectionResetError:
            return arrived
        assert data, "a cut is no end"
        arrived += len(data)
        time.sleep(0.01)


def _send(source: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):  # cut
        source.sendall(bytes(4 * AMOUNT))
