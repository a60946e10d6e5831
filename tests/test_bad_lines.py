"""Lines as hospitals have them, made in user space: late, standing still, losing packets, behind an address translator
that forgets. Nothing is lost, nobody is called silent, and the bits are those of a good line."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from semisilo.common.rpc.tls import (
    channel_credentials,
    channel_options,
    listen,
    server_credentials,
    server_options,
)
from semisilo.coordinator.federation.authority import ensure_coordinator_certificate
from tests.identity_kit import make_federation
from tests.processes import FederationOfProcesses, Undisturbed, federation_behind_a_proxy
from tests.proxy import Proxy

pytestmark = pytest.mark.slow


def nothing_was_lost(processes: FederationOfProcesses) -> None:
    """Every task that was given was done, and no silo was taken for gone."""
    states = {str(state) for state, in processes.query("SELECT DISTINCT state FROM task")}
    assert states == {"updated"}
    assert "silent" not in (processes.folder / "coordinator.log").read_text()


def test_a_line_that_is_late_loses_packets_and_stands_still_changes_no_bit(
        tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation_behind_a_proxy(tmp_path) as (processes, proxy):
        proxy.delay_seconds, proxy.late_share = 0.3, 0.05
        processes.start()
        for number in (1, 2):
            processes.wait_for(lambda number=number: bool(processes.query(  # type: ignore[misc]
                f"SELECT 1 FROM task WHERE round = {number} AND state = 'open'")))
            proxy.stand_still(20.0)
        assert processes.finish() == undisturbed.digest
        nothing_was_lost(processes)


def test_a_waiting_silo_whose_connection_was_forgotten_notices_and_goes_on(
        tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It waits for another silo, and what stands between forgets it within a poll: no packet tells anybody."""
    with federation_behind_a_proxy(tmp_path) as (processes, proxy):
        proxy.forget_after_seconds = 8.0
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        processes.join("alpha")
        processes.wait_for(lambda: any(each.forgotten for each in proxy.connections))
        [forgotten] = [each for each in proxy.connections if each.forgotten]
        began = forgotten.last_monotonic
        proxy.forget_after_seconds = None
        known = len(proxy.connections)
        processes.wait_for(lambda: len(proxy.connections) > known, seconds=100)
        assert time.monotonic() - began < 45 + 20 + 10, "a ping after 45 s, its answer within 20, and a new connection"
        processes.join("beta")
        assert processes.finish() == undisturbed.digest
        nothing_was_lost(processes)


def test_a_translator_that_forgets_after_a_minute_never_forgets_a_silo_that_waits(tmp_path: Path) -> None:
    """With the real times: a call whose answer takes longer, such as for a large update that is checked, comes through
    because a ping has crossed meanwhile."""
    hub = make_federation(tmp_path)
    own = hub.silo_credentials("hospital-a", now=time.time())
    shown = ensure_coordinator_certificate(tmp_path, time.time())

    async def answer(request: bytes, context: object) -> bytes:
        await asyncio.sleep(75.0)
        return b"after 75 s"

    async def work() -> bytes:
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "a.Service", {"Call": grpc.unary_unary_rpc_method_handler(answer)}),))
        port = listen(server, "127.0.0.1:0", server_credentials(lambda: shown, silo_authority_pem=hub.keys.pem))
        await server.start()
        try:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.forget_after_seconds = 60.0
                async with grpc.aio.secure_channel(
                        f"127.0.0.1:{proxy.port}", channel_credentials(authority_pem=hub.keys.pem, own=own),
                        options=channel_options("lung", use_http_proxy=False)) as channel:
                    call: Any = channel.unary_unary("/a.Service/Call")(b"", timeout=120)
                    await asyncio.sleep(40.0)
                    [connection] = proxy.connections
                    before = connection.up_bytes
                    await asyncio.sleep(20.0)
                    assert before < connection.up_bytes < before + 200, "one ping, with TLS around it"
                    return bytes(await call)
        finally:
            await server.stop(0)

    assert asyncio.run(work()) == b"after 75 s"
