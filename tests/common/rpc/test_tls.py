"""Promises of common/rpc/tls.py: addresses, and keepalive options that really do something."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.common.rpc.tls import (
    Options,
    channel_credentials,
    channel_options,
    listen,
    server_credentials,
    server_options,
    split_address,
)
from semisilo.common.wire import enrollment_service_pb2 as pb
from semisilo.common.wire import enrollment_service_pb2_grpc as pb_grpc
from semisilo.coordinator.federation.authority import ensure_coordinator_certificate
from tests.each_of import each_of
from tests.identity_kit import make_federation


@each_of(("address", "parts"), [
    ("hub.example:8443", ("hub.example", 8443)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535))])
def test_addresses_are_split(address, parts):
    assert split_address(address) == parts


@each_of("address", ["", "hub", ":1", "hub:", "hub:x", "hub:65536", "hub:-1", "::1:8443", "[]:1",
                     "hub:" + "9" * 5000, "hub:²"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(BadConfiguration, match="not an address"):
        split_address(address)


class _Slow(pb_grpc.EnrollmentServiceServicer):
    def __init__(self, answer: asyncio.Event) -> None:
        self._answer = answer

    async def RenewCertificate(self, request, context):
        await self._answer.wait()
        return pb.RenewCertificateResponse()


def _faster(options: list[tuple[str, Any]], factor: int) -> list[tuple[str, Any]]:
    """The same options with pings that come, and may come, more often; how long an answer may take stays."""
    return [(name, value // factor if name.endswith("_ms") and "backoff" not in name and "timeout" not in name
             else value) for name, value in options]


@pytest.mark.slow
def test_a_waiting_rpc_survives_the_pings_that_the_silo_sends_and_would_not_without_our_options(tmp_path):
    """At 1/120 of the real times: a ping each second, gRPC's least, against a server that allows four. A server that
    keeps gRPC's default (one in five minutes without data) ends the waiting RPC, too_many_pings; so both the names and
    the values of the options are at work. gRPC ignores unknown names silently. Neither server forgives more than one
    ping too many, and ours goes on to wait after the other has given up."""
    federation = make_federation(tmp_path)
    own = federation.silo_credentials("hospital-a", now=time.time())
    shown = ensure_coordinator_certificate(tmp_path, time.time())

    async def wait(options: list[tuple[str, Any]], answer: asyncio.Event) -> None:
        server = grpc.aio.server(options=[*options, ("grpc.http2.max_ping_strikes", 1)])
        pb_grpc.add_EnrollmentServiceServicer_to_server(_Slow(answer), server)
        port = listen(server, "127.0.0.1:0", server_credentials(lambda: shown, silo_authority_pem=federation.keys.pem))
        await server.start()
        try:
            async with grpc.aio.secure_channel(
                    f"127.0.0.1:{port}", channel_credentials(authority_pem=federation.keys.pem, own=own),
                    options=_faster(channel_options("lung", use_http_proxy=False), 120)) as channel:
                stub: Any = pb_grpc.EnrollmentServiceStub(channel)
                await stub.RenewCertificate(pb.RenewCertificateRequest(), timeout=300)
        finally:
            await server.stop(0)

    async def run() -> None:
        bare = [option for option in server_options() if "ping" not in option[0] and "keepalive" not in option[0]]
        answer = asyncio.Event()
        ours = asyncio.ensure_future(wait(_faster(server_options(), 120), answer))
        with pytest.raises(grpc.aio.AioRpcError) as control:
            await wait(bare, asyncio.Event())
        assert control.value.code() is grpc.StatusCode.UNAVAILABLE
        said = str(control.value.details()).lower()
        assert "too_many_pings" in said or "too many pings" in said
        await asyncio.wait([ours], timeout=1.2)
        assert not ours.done()
        answer.set()
        await ours

    asyncio.run(run())


def test_a_ping_comes_before_boxes_on_the_way_forget_and_no_sooner_than_coordinators_take_it():
    silo, hub = dict(channel_options("lung")), dict(server_options())
    assert silo["grpc.keepalive_time_ms"] < 50_000  # HAProxy as Debian installs it; address translators: 60 s
    assert silo["grpc.keepalive_time_ms"] > hub["grpc.http2.min_ping_interval_without_data_ms"]


def test_grpc_is_given_another_configuration_only_for_another_certificate(tmp_path, monkeypatch):
    """gRPC drops the one in use for every new one, also while another thread shakes hands with it."""
    federation = make_federation(tmp_path)
    held = [ensure_coordinator_certificate(federation.folder, time.time())]
    asked: list[Any] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials",
                        lambda initial, fetch, require_client_authentication: asked.append(fetch))
    server_credentials(lambda: held[0])
    [fetch] = asked
    assert [fetch(), fetch()] == [None, None]
    held[0] = federation.silo_credentials("another", now=time.time())
    assert fetch() is not None
    assert fetch() is None


# Many calls at once ---------------------------------------------------------------------------------------------------

CALLS = 1600
"""gRPC keeps 1000 waiting, and refuses of those that come after them the more the more there are."""
CALLER = """
import pathlib, sys, grpc
with grpc.insecure_channel(f"localhost:{sys.argv[1]}") as channel:
    call = channel.unary_unary("/a.Service/Call")
    futures = [call.future(b"", timeout=120) for _ in range(int(sys.argv[2]))]
    pathlib.Path(sys.argv[3]).touch()
    print(sum(future.code() is grpc.StatusCode.OK for future in futures))
"""


@pytest.mark.slow
def test_calls_that_come_while_the_server_is_busy_all_wait_their_turn(tmp_path) -> None:
    async def answered(options: Options, sent: Path) -> int:
        """How many of the calls are answered of which the first keeps the server from taking up the others."""
        begun = False

        async def work(request: bytes, context: object) -> bytes:
            nonlocal begun
            if not begun:
                begun = True
                limit = time.monotonic() + 60
                while not sent.exists() and time.monotonic() < limit:
                    time.sleep(0.05)  # the event loop stands still
                time.sleep(1.0)  # what was sent arrives
            return b""

        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "a.Service", {"Call": grpc.unary_unary_rpc_method_handler(work)}),))
        port = server.add_insecure_port("localhost:0")
        await server.start()
        try:
            caller = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", CALLER, str(port), str(CALLS),
                                                          str(sent), stdout=asyncio.subprocess.PIPE)
            said, _ = await caller.communicate()
            return int(said)
        finally:
            await server.stop(None)

    ours = [option for option in server_options() if option[0] != "grpc.max_concurrent_streams"]  # all on one line
    assert asyncio.run(answered(ours, tmp_path / "sent")) == CALLS
    assert asyncio.run(answered([option for option in ours if "pending" not in option[0]],
                                tmp_path / "sent-again")) < CALLS
