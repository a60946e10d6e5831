"""The raw limits of this machine: Python's TLS over loopback, memory copies, the entropy of positions, dense bytes.

    python -m benchmarks.wire.limits --json OUT
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.wire.certificates import write_certificates

__all__ = ["dense_bytes", "entropy", "measure_limits", "position_bound_bytes", "tls_round_seconds"]

_PIECE_BYTES = 512 * 1024
_SPAWN = multiprocessing.get_context("spawn")


def entropy(density: float) -> float:
    """H(d) in bits per element: what it takes to say which elements changed, each with probability d."""
    if density <= 0 or density >= 1:
        return 0.0
    return -density * math.log2(density) - (1 - density) * math.log2(1 - density)


def dense_bytes(parameters: int) -> int:
    """4 bytes per parameter."""
    return 4 * parameters


def position_bound_bytes(parameters: int, density: float) -> float:
    """n * H(d) / 8: no lossless code of uniform random positions is smaller on average."""
    return parameters * entropy(density) / 8


def tls_round_seconds(silos: int, size_bytes: int, repetitions: int) -> dict[str, list[float]]:
    """Sends so many bytes to each of K processes at once over TLS 1.3, then back from each. Nothing else is done.

    The sender takes its bytes from one small buffer, and the receiver puts them into one: memory is not what limits.

    Args:
        silos: processes, each with one connection to a thread of this process.
        size_bytes: per silo and direction.
    Returns: seconds of each repetition, by direction: "down", "up".
    """
    with tempfile.TemporaryDirectory(prefix="wire-limits-") as temporary:
        folder = Path(temporary)
        write_certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            arguments = (str(folder), port, size_bytes, repetitions + 1)
            children = [_SPAWN.Process(target=_be_silo, args=arguments, daemon=True) for _ in range(silos)]
            for child in children:
                child.start()
            listening.settimeout(60)
            connections = [context.wrap_socket(listening.accept()[0], server_side=True) for _ in children]
            for connection in connections:
                connection.settimeout(300)  # an accepted socket has no limit by itself
        seconds: dict[str, list[float]] = {"down": [], "up": []}
        for repetition in range(repetitions + 1):
            for direction, work in (("down", _send), ("up", _receive)):
                threads = [threading.Thread(target=work, args=(connection, size_bytes)) for connection in connections]
                begin = time.perf_counter()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                if repetition:
                    seconds[direction].append(time.perf_counter() - begin)
        for connection in connections:
            connection.close()
        for child in children:
            child.join(10)
            child.kill()
    return seconds


def _be_silo(folder: str, port: int, size_bytes: int, repetitions: int) -> None:
    context = ssl.create_default_context(cafile=Path(folder) / "ca.crt")
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as connection:
        for _ in range(repetitions):
            left, buffer = size_bytes, bytearray(_PIECE_BYTES)
            while left > 0 and (got := connection.recv_into(buffer, min(left, _PIECE_BYTES))):
                left -= got
            connection.sendall(b"!")
            if connection.recv(1) != b"?":
                return
            _write(connection, size_bytes)


def _write(connection: ssl.SSLSocket, size_bytes: int) -> None:
    piece = memoryview(bytes(_PIECE_BYTES))
    left = size_bytes
    while left > 0:
        connection.sendall(piece[:min(left, _PIECE_BYTES)])
        left -= _PIECE_BYTES


def _send(connection: ssl.SSLSocket, size_bytes: int) -> None:
    """Done when the other end has said that it has everything."""
    _write(connection, size_bytes)
    if connection.recv(1) != b"!":
        raise ConnectionError("The other end went away.")


def _receive(connection: ssl.SSLSocket, size_bytes: int) -> None:
    connection.sendall(b"?")
    left, buffer = size_bytes, bytearray(_PIECE_BYTES)
    while left > 0 and (got := connection.recv_into(buffer, min(left, _PIECE_BYTES))):
        left -= got
    if left:
        raise ConnectionError("The other end went away.")


def _copy_rate(size_bytes: int, repetitions: int = 5) -> float:
    """Bytes per second of one thread's memory copy."""
    source, target = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)
    seconds = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return size_bytes / min(seconds)


def measure_limits(cells: Sequence[tuple[int, int]], densities: Sequence[float], *,
                   repetitions: int = 5, moved_bytes: int = 100_000_000) -> dict[str, Any]:
    """All limits.

    Args:
        cells: pairs of silos and parameters.
        moved_bytes: so many are sent, and copied in memory, to find the rates.
    Returns: for JSON; rates in bytes per second, rounds by "K x P".
    """
    single = tls_round_seconds(1, moved_bytes, repetitions)
    rounds = {}
    for silos, parameters in cells:
        found = tls_round_seconds(silos, dense_bytes(parameters), repetitions)
        rounds[f"{silos} x {parameters}"] = {
            direction: {"seconds": seconds, "median": statistics.median(seconds)}
            for direction, seconds in found.items()}
    sizes = sorted({parameters for _, parameters in cells})
    return {
        "tls_bytes_per_second": {direction: moved_bytes / statistics.median(seconds)
                                 for direction, seconds in single.items()},
        "copy_bytes_per_second": _copy_rate(moved_bytes),
        "tls_dense_round": rounds,
        "dense_bytes": {str(size): dense_bytes(size) for size in sizes},
        "position_bound_bytes": {f"{size} x {density}": position_bound_bytes(size, density)
                                 for size in sizes for density in densities},
        "openssl": ssl.OPENSSL_VERSION,
    }


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.limits", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cells", nargs="+", default=["2x1500000", "8x1500000", "2x25000000", "8x25000000"],
                        help="silos x parameters")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.1])
    asked = parser.parse_args()
    cells = [(int(silos), int(parameters)) for silos, _, parameters in (cell.partition("x") for cell in asked.cells)]
    asked.json.write_text(json.dumps(measure_limits(cells, asked.densities), indent=1))


if __name__ == "__main__":
    main()
