"""A long line in user space: every byte is under way for a while, in both directions, at any rate.

For kernels without netem. Buffers are unlimited, so neither end's TCP sees the delay; what still does is everything
that waits for an answer: TLS, and the flow control of HTTP/2. Its own limit is measured with raw TLS in the same run.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from multiprocessing.connection import Connection

__all__ = ["run"]

_READ_BYTES = 2**20


def run(orders: Connection, target_port: int, delay_seconds: float) -> None:
    """The proxy's process: sends its port, then carries every connection to the target, until it is killed."""
    listening = socket.create_server(("127.0.0.1", 0))
    orders.send(listening.getsockname()[1])
    while True:
        near, _ = listening.accept()
        far = socket.create_connection(("127.0.0.1", target_port))
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _carry(source, sink, delay_seconds)


def _carry(source: socket.socket, sink: socket.socket, delay_seconds: float) -> None:
    """Two threads for one direction: one reads at once whatever comes, the other hands it on when it is due."""
    pieces: deque[tuple[float, bytes]] = deque()
    there = threading.Semaphore(0)

    def read() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_READ_BYTES)
            except OSError:
                data = b""
            pieces.append((time.monotonic() + delay_seconds, data))
            there.release()

    def write() -> None:
        with contextlib.suppress(OSError):
            while there.acquire():
                due, data = pieces.popleft()
                if (wait := due - time.monotonic()) > 0:
                    time.sleep(wait)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()
