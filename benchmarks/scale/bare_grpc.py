"""The floor of a round: bare grpc.aio that carries the same bytes for as many callers, and does nothing with them.

    python -m benchmarks.scale.bare_grpc serve FOLDER BYTES
    python -m benchmarks.scale.bare_grpc call FOLDER PORT BYTES CALLERS

One server process over TLS; every caller has a connection of its own, fetches a payload in one stream and sends one in
another. No files, no checksums, no record, no certificates of callers. Callers wait for a line on standard input before
each round, so that all rounds begin together.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import grpc
import grpc.aio

from benchmarks.wire.certificates import write_certificates
from benchmarks.wire.process_use import cpu_seconds
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.rpc.chunks import CHUNK_BYTES
from semisilo.common.rpc.tls import MAX_PENDING_CALLS, MESSAGE_LIMIT_BYTES

__all__ = ["measure"]

_CALLERS_PER_PROCESS = 50
_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES), ("grpc.max_send_message_length",
                                                                        MESSAGE_LIMIT_BYTES),
            ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
            ("grpc.use_local_subchannel_pool", 1)]


def measure(callers: int, *, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round, and processor seconds of a round: of the server, and of all callers together."""
    with tempfile.TemporaryDirectory(prefix="semisilo-bare-") as temporary:
        folder = Path(temporary)
        write_certificates(folder)
        server = _start("serve", str(folder), str(size_bytes))
        processes = [server]
        try:
            port = _line(server)
            for start in range(0, callers, _CALLERS_PER_PROCESS):
                processes.append(_start("call", str(folder), port, str(size_bytes),
                                        str(min(_CALLERS_PER_PROCESS, callers - start))))
            _round(processes[1:])  # connects
            before, seconds = [cpu_seconds(each.pid) for each in processes], []
            for _ in range(rounds):
                began = time.monotonic()
                _round(processes[1:])
                seconds.append(time.monotonic() - began)
            used = [cpu_seconds(each.pid) - then for each, then in zip(processes, before, strict=True)]
        finally:
            for each in processes:
                each.kill()
                each.wait()
    return {"seconds_per_round": seconds, "server_cpu_seconds": used[0] / rounds,
            "callers_cpu_seconds": sum(used[1:]) / rounds, "median_seconds": statistics.median(seconds)}


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.scale.bare_grpc", *words], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a process of the floor has ended with {process.wait()}")
    return line


def _round(processes: list[subprocess.Popen[str]]) -> None:
    for each in processes:
        stdin: TextIO | None = each.stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
    for each in processes:
        _line(each)


def _pieces(size_bytes: int) -> list[bytes]:
    return [bytes(min(CHUNK_BYTES, size_bytes - start)) for start in range(0, size_bytes, CHUNK_BYTES)]


async def _serve(folder: Path, size_bytes: int) -> None:
    pieces = _pieces(size_bytes)

    async def fetch(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        for piece in pieces:
            await context.write(piece)

    async def submit(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        async for _ in requests:
            pass
        return b"taken"

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch),
        "Submit": grpc.stream_unary_rpc_method_handler(submit)}),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(
        [((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())]))
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def _call(folder: Path, port: str, size_bytes: int, callers: int) -> None:
    pieces = _pieces(size_bytes)
    trusted = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
    channels = [grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=_OPTIONS) for _ in range(callers)]

    async def one(channel: Any) -> None:
        fetching = channel.unary_stream("/bare/Fetch")(b"?")
        while await fetching.read() is not grpc.aio.EOF:
            pass
        sending = channel.stream_unary("/bare/Submit")()
        for piece in pieces:
            await sending.write(piece)
        await sending.done_writing()
        await sending

    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await asyncio.gather(*map(one, channels))
        print("done", flush=True)


if __name__ == "__main__":
    settle_allocator()
    if sys.argv[1] == "serve":
        asyncio.run(_serve(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(_call(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
