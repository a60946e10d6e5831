"""Whoever says what it wants is served at the enrolment port, however many others are there and say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from semisilo.common.errors import BadPayload, SemisiloError, TooManyCalls, Unreachable
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.rpc.tls import channel_credentials, channel_options, server_credentials
from semisilo.coordinator.federation.authority import CoordinatorCertificate
from semisilo.coordinator.rpc import enrollment_service, stranger_calls
from semisilo.coordinator.rpc.enrollment_service import EnrollmentPort
from semisilo.coordinator.rpc.stranger_calls import StrangerCalls, address_of
from semisilo.silo.membership.enrollment import enroll
from tests.identity_kit import Federation, make_federation

_ENROLL = "/semisilo.v1.EnrollmentService/Enroll"


async def silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def saying(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def peer(number: int) -> str:
    return f"ipv4:10.0.{number // 256}.{number % 256}:40000"


async def outcome(call: asyncio.Task[bytes]) -> SemisiloError:
    with pytest.raises(SemisiloError) as caught:
        await call
    return caught.value


def test_of_one_address_that_says_nothing_the_oldest_call_ends_and_the_newest_is_served() -> None:
    async def scenario() -> None:
        calls = StrangerCalls()
        silent = [asyncio.ensure_future(calls.request(silence(), peer(1))) for _ in range(9)]
        assert isinstance(error := await outcome(silent[0]), TooManyCalls)
        assert error.retry_seconds > 0
        assert not any(call.done() for call in silent[1:])
        assert await calls.request(saying(b"me"), peer(1)) == b"me"
        assert isinstance(await outcome(silent[1]), TooManyCalls), "it made way for the one that was served"
        assert not any(call.done() for call in silent[2:])
        for call in silent[2:]:
            call.cancel()
    asyncio.run(scenario())


def test_of_many_addresses_those_with_most_silent_calls_make_way_first() -> None:
    async def scenario() -> None:
        calls = StrangerCalls()
        lone = asyncio.ensure_future(calls.request(silence(), peer(0)))
        others = [asyncio.ensure_future(calls.request(silence(), peer(1 + number // 8))) for number in range(200)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not lone.done()
        assert sum(not call.done() for call in others) == 63
        assert await calls.request(saying(b"me"), peer(999)) == b"me"
        for call in (lone, *others):
            call.cancel()
        await asyncio.gather(lone, *others, return_exceptions=True)
    asyncio.run(scenario())


def test_a_call_that_brings_nothing_in_time_ends() -> None:
    async def scenario() -> None:
        calls = StrangerCalls(request_seconds=0.02)
        with pytest.raises(Unreachable, match="did not arrive"):
            await calls.request(silence(), peer(1))
        with pytest.raises(BadPayload, match="no request"):
            await calls.request(saying(), peer(1))
    asyncio.run(scenario())


@pytest.mark.slow
def test_an_address_may_send_so_many_requests_and_others_do_not_pay_for_it() -> None:
    now = [0.0]

    async def scenario() -> None:
        calls = StrangerCalls(clock=lambda: now[0])
        for _ in range(50):
            await calls.request(saying(b"x"), "ipv4:10.0.0.1:1")
        with pytest.raises(TooManyCalls, match="from this address"):
            await calls.request(saying(b"x"), "ipv4:10.0.0.1:2")
        await calls.request(saying(b"x"), "ipv4:10.0.0.2:1")
        now[0] += 1.0
        await calls.request(saying(b"x"), "ipv4:10.0.0.1:3")
        for number in range(3 * stranger_calls._ADDRESSES):
            await calls.request(saying(b"x"), peer(number))
        assert len(calls._rates) == stranger_calls._ADDRESSES, "strangers cannot fill the memory with addresses"
    asyncio.run(scenario())


def test_limits_go_by_address_and_by_the_network_of_a_customer() -> None:
    assert address_of("ipv4:10.1.2.3:4000") == "10.1.2.3"
    assert address_of("ipv6:%5B::ffff:10.1.2.3%5D:4000") == "10.1.2.3"
    assert address_of("ipv6:%5B2001:db8:1:2:3::9%5D:4000") == address_of("ipv6:[2001:db8:1:2::1]:5") != \
        address_of("ipv6:[2001:db8:1:3::1]:5")
    assert address_of("ipv6:%5Bfe80::1%25eth0%5D:4000") == "fe80::/64"
    assert address_of("unix:/x") == ""


# Over TLS


@contextlib.asynccontextmanager
async def enrolment_port(folder: Path) -> AsyncIterator[tuple[Federation, EnrollmentPort]]:
    federation = make_federation(folder / "hub")
    shown = CoordinatorCertificate(federation.folder, now=time.time()).current
    port = EnrollmentPort(address="127.0.0.1:0", credentials=lambda: server_credentials(shown),
                          authority=federation.authority, roster=federation.roster)
    federation.invite("hospital-z")
    await port.look()
    federation.enrollment_address = f"127.0.0.1:{port.port}"
    try:
        yield federation, port
    finally:
        await port._shut()


def connect(federation: Federation) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        federation.enrollment_address, channel_credentials(authority_pem=federation.keys.pem),
        options=[*channel_options("lung", use_http_proxy=False), ("grpc.use_local_subchannel_pool", 1)])


def test_calls_that_send_nothing_or_half_a_request_keep_no_hospital_out(tmp_path: Path) -> None:
    """16 of them did, for ever."""
    async def scenario() -> None:
        async with enrolment_port(tmp_path) as (federation, _), contextlib.AsyncExitStack() as stack:
            calls: list[Any] = []
            for _ in range(8):
                channel = await stack.enter_async_context(connect(federation))
                calls += [channel.stream_unary(_ENROLL)() for _ in range(4)]
            await asyncio.gather(*(call.wait_for_connection() for call in calls))
            said: list[SemisiloError] = []
            identity = await enroll(federation.invite(), tmp_path / "home", now=time.time(), use_http_proxy=False,
                                    patience_seconds=0, on_trouble=said.append)
            assert (identity.silo, said) == ("hospital-a", [])
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    asyncio.run(scenario())


def test_a_call_that_sends_nothing_is_ended_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrollment_service, "StrangerCalls", lambda: StrangerCalls(request_seconds=0.05))

    async def scenario() -> None:
        async with enrolment_port(tmp_path) as (federation, _), connect(federation) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.stream_unary(_ENROLL)()
            assert from_rpc_error(caught.value).line() == "The request did not arrive within 0 s. It is tried again."
            for method in ("RenewCertificate", "Leave", "Unknown"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.stream_unary(_ENROLL.replace("/Enroll", f"/{method}"))()
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, "answered before anything has come"
    asyncio.run(scenario())


def test_a_silo_that_is_refused_tries_again_by_itself_and_says_so(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, asked = StrangerCalls.request, []

    async def busy_once(self: StrangerCalls, requests: AsyncIterator[bytes], peer: str) -> bytes:
        asked.append(peer)
        if len(asked) == 1:
            raise TooManyCalls("The coordinator hears too many requests.", retry_seconds=0.01)
        return await genuine(self, requests, peer)

    monkeypatch.setattr(StrangerCalls, "request", busy_once)
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr("semisilo.silo.membership.enrollment.asyncio.sleep", sleep)

    async def scenario() -> None:
        async with enrolment_port(tmp_path) as (federation, _):
            said: list[str] = []
            line = federation.invite()
            await enroll(line, tmp_path / "home", now=time.time(), use_http_proxy=False,
                         on_trouble=lambda error: said.append(error.line()))
            assert said == ["The coordinator hears too many requests."]
            assert 1.0 in slept
            asked.clear()
            with pytest.raises(TooManyCalls):
                await enroll(federation.invite("hospital-b"), tmp_path / "b", now=time.time(), use_http_proxy=False,
                             patience_seconds=0)
    asyncio.run(scenario())


def test_what_an_older_coordinator_says_when_it_is_busy_is_no_message_that_is_too_large() -> None:
    class _Error(grpc.RpcError):
        def __init__(self, details: str) -> None:
            self._details = details

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self) -> str:
            return self._details

    assert from_rpc_error(_Error("Concurrent RPC limit exceeded!")).line() == (
        "The coordinator takes no more calls at the moment: Concurrent RPC limit exceeded!. It is tried again.")
    assert isinstance(from_rpc_error(_Error("SERVER: Received message larger than max (70000 vs. 65536)")), BadPayload)
