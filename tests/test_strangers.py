"""Strangers who connect and say nothing, against a real coordinator that may open 1,024 files: silos come through."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import round_service_pb2_grpc as pb_grpc
from semisilo.silo.membership.enrollment import open_channel
from semisilo.silo.site.identity_store import load_identity
from tests.processes import FederationOfProcesses, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_STRANGERS = 1400


def _connect(port: int) -> socket.socket | None:
    stranger = socket.socket()
    stranger.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        stranger.connect(("127.0.0.1", port))
    return stranger


@contextlib.contextmanager
def _strangers(port: int, *, again: bool) -> Iterator[list[socket.socket]]:
    """Idle connections; where `again` is set, each that is ended comes back."""
    here = [_connect(port) for _ in range(_STRANGERS)]
    stop = threading.Event()

    def come_back() -> None:
        while not stop.wait(0.2):
            for number, stranger in enumerate(here):
                with contextlib.suppress(BlockingIOError):
                    try:
                        if stranger.recv(1):
                            continue
                    except ConnectionError:
                        pass
                    stranger.close()
                    here[number] = _connect(port)

    thread = threading.Thread(target=come_back)
    if again:
        thread.start()
    try:
        yield here
    finally:
        stop.set()
        if again:
            thread.join()
        for stranger in here:
            stranger.close()


def _seconds_until_served(processes: FederationOfProcesses) -> float:
    """Of a silo that connects now, and tries again as gRPC does."""
    async def ask() -> None:
        async with open_channel(load_identity(processes.folder / "alpha"), use_http_proxy=False) as channel:
            stub: Any = pb_grpc.RoundServiceStub(channel)
            await stub.DescribeStudy(pb.DescribeStudyRequest(), timeout=300, wait_for_ready=True)

    began = time.monotonic()
    asyncio.run(ask())
    return time.monotonic() - began


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("port_of", [lambda served: served.port, lambda served: served.port + 1],
                         ids=["work", "enrolment"])
def test_idle_connections_above_the_files_of_the_process_keep_a_silo_out_for_seconds_at_most(
        tmp_path: Path, again: bool, port_of: Callable[[FederationOfProcesses], int]) -> None:
    """1,400 of them did for 97 s."""
    with federation(tmp_path) as processes:
        processes.serve()
        resource.prlimit(processes.running["coordinator"].pid, resource.RLIMIT_NOFILE, (1024, 1024))
        processes.enroll("alpha")
        calm = _seconds_until_served(processes)
        with _strangers(port_of(processes), again=again):
            time.sleep(1.0)
            waited = [_seconds_until_served(processes) for _ in range(5)]
            status = processes.coordinator("status")
        print(f"{again=} {calm=:.2f} {[round(each, 2) for each in waited]}")
        assert sorted(waited)[2] < 30.0
        assert max(waited) < 90.0
        assert "testing" in status
        assert processes.running["coordinator"].poll() is None
        assert "connections were ended" in processes.log("coordinator")
