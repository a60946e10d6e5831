"""The limit that transfers are held against: Python's own TLS, one connection, two processes, nothing else done."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

__all__ = ["RawTransfer", "cpu_seconds", "receive", "send"]

WRITE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class RawTransfer:
    """One payload through Python's `ssl`."""

    seconds: float
    """From the first write until the other end has said that it has all."""
    send_cpu_seconds: float
    receive_cpu_seconds: float


def cpu_seconds() -> float:
    """CPU time of this process so far, all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def receive(orders: Connection, folder: Path, count: int) -> None:
    """The receiving process: takes connections one after the other, each with payloads of announced sizes.

    Args:
        orders: gets the port at the start.
        folder: holds ca.pem, server.pem and server.key.
        count: connections to take.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", 0))
    orders.send(listening.getsockname()[1])
    buffer = bytearray(WRITE_BYTES)
    for _ in range(count):
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            while head := connection.recv(8):
                left, before = int.from_bytes(head, "big"), cpu_seconds()
                while left > 0 and (got := connection.recv_into(buffer)):
                    left -= got
                connection.sendall(round((cpu_seconds() - before) * 1e6).to_bytes(8, "big"))


def send(folder: Path, port: int, size_bytes: int, repetitions: int, *,
         between: Callable[[], None] = lambda: None) -> list[RawTransfer]:
    """The sending end, in this process: `repetitions` payloads over one connection; the first also warms it up.

    Args:
        folder: holds ca.pem, silo.pem and silo.key.
        between: called before every payload.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "silo.pem", folder / "silo.key")
    piece = os.urandom(WRITE_BYTES)
    found = []
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as connection:
        for _ in range(repetitions):
            between()
            before, start, left = cpu_seconds(), time.perf_counter(), size_bytes
            connection.sendall(size_bytes.to_bytes(8, "big"))
            while left > 0:
                connection.sendall(piece if left >= WRITE_BYTES else piece[:left])
                left -= WRITE_BYTES
            answer = connection.recv(8)
            found.append(RawTransfer(time.perf_counter() - start, cpu_seconds() - before,
                                     int.from_bytes(answer, "big") / 1e6))
    return found
