"""The meter's wire bytes against a counting proxy between two real gRPC ends over TLS, to the byte."""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from unittest import mock

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from semisilo.common.rpc import socket_counters
from semisilo.common.rpc.meter import (
    ConnectionMeter,
    MessageMeter,
    MessageUse,
    WireMeter,
    WireUse,
    estimate_wire_bytes,
    format_peer,
    parse_peer,
)
from semisilo.common.rpc.socket_counters import TcpCounters
from tests.each_of import each_of
from tests.proxy import Proxy

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
NO_PROXY = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


def make_certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1")),
             x509.IPAddress(IPv6Address("::1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256()))
    return (key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                              serialization.NoEncryption()),
            certificate.public_bytes(serialization.Encoding.PEM))


KEY, CERTIFICATE = make_certificate()


class Echo:
    """A server that reads a stream and sends as many bytes back; tells a callback who calls."""

    def __init__(self, on_call: Callable[[str, str], None], address: str = "127.0.0.1:0") -> None:
        self._on_call = on_call
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler: Any = grpc.stream_stream_rpc_method_handler(self._echo)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Echo": handler}),))
        self.port = self.server.add_secure_port(address, grpc.ssl_server_credentials([(KEY, CERTIFICATE)]))

    async def _echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self._on_call(context.peer(), dict(context.invocation_metadata()).get("silo", ""))
        async for request in requests:
            yield request


async def exchange(channel: grpc.aio.Channel, silo: str, *, pieces: int = 6, size: int = 500_000) -> None:
    """Sends pieces and reads as many back: a few MB both ways."""
    async def requests() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield os.urandom(size)

    echo: Any = channel.stream_stream("/t.T/Echo")
    call = echo(requests(), metadata=(("silo", silo),))
    assert sum([len(piece) async for piece in call]) == pieces * size


def channel_to(port: int, host: str = "127.0.0.1") -> grpc.aio.Channel:
    return grpc.aio.secure_channel(f"{host}:{port}", grpc.ssl_channel_credentials(CERTIFICATE), options=NO_PROXY)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what happens in other threads; fails after five minutes."""
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit, "It did not happen."
        await asyncio.sleep(0.01)


def by_direction(uses: list[WireUse], silo: str) -> tuple[int, int]:
    """(up, down) of one silo."""
    totals = {use.direction: use.wire_bytes for use in uses if use.silo == silo}
    return totals.get("up", 0), totals.get("down", 0)


def add(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], left[1] + right[1]


def meters(port: int, proxy_port: int) -> tuple[WireMeter, WireMeter]:
    return (WireMeter(ConnectionMeter(local_port=port), side="coordinator"),
            WireMeter(ConnectionMeter(remote_port=proxy_port, remote_hosts=["127.0.0.1"]), side="silo", silo="a"))


@linux
@pytest.mark.parametrize("who_closes", ["silo", "coordinator"])
def test_wire_bytes_of_both_ends_equal_the_counting_proxy_to_the_byte(who_closes: str) -> None:
    """While the connection lives, over two phases, and after either side has closed it.

    At the very end, only what an end has sent must agree: the last frames of the other may reach the proxy but find a
    closed socket behind it, whose kernel refuses them. Those are some tens of bytes.
    """
    async def work() -> None:
        bound: list[WireMeter] = []
        echo = Echo(lambda peer, silo: bound[0].bind(peer, silo))
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as proxy:
            coordinator, silo = meters(echo.port, proxy.port)
            bound.append(coordinator)
            channel = channel_to(proxy.port)
            totals = [(0, 0), (0, 0)]

            def take() -> list[tuple[int, int]]:
                totals[0] = add(totals[0], by_direction(coordinator.take("p"), "a"))
                totals[1] = add(totals[1], by_direction(silo.take("p"), "a"))
                return totals

            for _ in range(2):
                await exchange(channel, "a")
                await until(lambda: take() == [(proxy.total_up, proxy.total_down)] * 2)
            assert proxy.total_up > 6_000_000
            assert proxy.total_down > 6_000_000

            await exchange(channel, "a")
            if who_closes == "silo":
                await channel.close()
            else:
                await echo.server.stop(0)
            await asyncio.to_thread(proxy.wait_until_closed)
            # The kernel's last word comes a moment after the end.
            await until(lambda: bool(take()) and totals[0][1] == proxy.total_down and totals[1][0] == proxy.total_up)
            assert proxy.total_up - 200 <= totals[0][0] <= proxy.total_up
            assert proxy.total_down - 200 <= totals[1][1] <= proxy.total_down
            if who_closes == "silo":  # the coordinator's end stays open until it has read everything
                assert totals[0][0] == proxy.total_up
            await channel.close()
        await echo.server.stop(0)

    run(work())


@linux
def test_a_connection_that_ended_unsampled_is_counted_to_its_end_and_nothing_is_kept_open() -> None:
    """What the kernel said when it destroyed the socket is the total, to the byte."""
    async def work() -> None:
        echo = Echo(lambda peer, silo: None)
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as proxy:
            meter = ConnectionMeter(local_port=echo.port)
            far = ConnectionMeter(remote_port=proxy.port)
            before = len(os.listdir("/proc/self/fd"))
            channel = channel_to(proxy.port)
            await exchange(channel, "a", pieces=1)
            [connection] = meter.sample()
            assert len(far.sample()) == 1
            await channel.close()
            await asyncio.to_thread(proxy.wait_until_closed)
            await until(lambda: bool(meter.sample()) and meter.ended() == {connection})
            await until(lambda: bool(far.sample()) and len(far.ended()) == 1)
            final = meter.sample()[connection]
            assert (final.bytes_received, final.stream_bytes_sent) == (proxy.total_up, proxy.total_down)
            meter.forget(connection)
            assert meter.sample() == {}
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
        await echo.server.stop(0)

    run(work())


@linux
def test_each_silo_gets_its_own_bytes_and_strangers_are_overhead() -> None:
    async def work() -> None:
        bound: list[WireMeter] = []
        echo = Echo(lambda peer, silo: bound[0].bind(peer, silo))
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as first, Proxy("127.0.0.1", echo.port) as second:
            meter = WireMeter(ConnectionMeter(local_port=echo.port), side="coordinator")
            bound.append(meter)
            channels = [channel_to(first.port), channel_to(second.port)]
            await asyncio.gather(exchange(channels[0], "a", pieces=3), exchange(channels[1], "b", pieces=1))
            with socket.create_connection(("127.0.0.1", echo.port)) as stranger:
                stranger.sendall(b"\x16\x03\x01")  # the start of a handshake that never goes on
                totals = dict.fromkeys(("a", "b", ""), (0, 0))
                expected = {"a": first, "b": second}

                def settled() -> bool:
                    uses = meter.take("round 1")
                    assert all(use.label == "round 1" and not use.estimated for use in uses)
                    for name in totals:
                        totals[name] = add(totals[name], by_direction(uses, name))
                    return all(totals[name] == (proxy.total_up, proxy.total_down) for name, proxy in expected.items())

                await until(lambda: settled() and totals[""][0] > 0)
                assert totals[""] == (3, 0)
            for channel in channels:
                await channel.close()
        await echo.server.stop(0)

    run(work())


@linux
def test_reconnecting_silos_and_dead_connections_are_added_up() -> None:
    """Three connections, one after the other, without a sample between their ends and the next."""
    async def work() -> None:
        bound: list[WireMeter] = []
        echo = Echo(lambda peer, silo: bound[0].bind(peer, silo))
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as proxy:
            meter, _ = meters(echo.port, proxy.port)
            bound.append(meter)
            for _ in range(3):
                channel = channel_to(proxy.port)
                await exchange(channel, "a", pieces=1, size=100_000)
                await channel.close()
            await asyncio.to_thread(proxy.wait_until_closed)
            total = (0, 0)

            def counted() -> bool:  # the kernel tells of a socket's end when it finds the time
                nonlocal total
                total = add(total, by_direction(meter.take(), "a"))
                return total == (proxy.total_up, proxy.total_down)
            await until(counted)
            assert len(proxy.connections) == 3
            await until(lambda: meter.take() == [] and not meter._before and not meter._silos)
        await echo.server.stop(0)

    run(work())


@linux
@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_ipv6_is_counted_as_well(host: str) -> None:
    """Also IPv4 that arrives at an IPv6 socket, as a mapped address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")

    async def work() -> None:
        bound: list[WireMeter] = []
        echo = Echo(lambda peer, silo: bound[0].bind(peer, silo), "[::]:0")
        await echo.server.start()
        coordinator = WireMeter(ConnectionMeter(local_port=echo.port), side="coordinator")
        silo = WireMeter(ConnectionMeter(remote_port=echo.port), side="silo", silo="a")
        bound.append(coordinator)
        channel = channel_to(echo.port, host)
        await exchange(channel, "a", pieces=2)
        totals = [(0, 0), (0, 0)]

        def agreed() -> bool:
            totals[0] = add(totals[0], by_direction(coordinator.take(), "a"))
            totals[1] = add(totals[1], by_direction(silo.take(), "a"))
            return totals[0] == totals[1] and min(totals[0]) > 1_000_000

        await until(agreed)
        await channel.close()
        await echo.server.stop(0)

    run(work())


@pytest.mark.slow
@linux
def test_after_a_reset_the_figure_is_at_most_one_byte_short() -> None:
    async def work() -> None:
        bound: list[WireMeter] = []
        echo = Echo(lambda peer, silo: bound[0].bind(peer, silo))
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as proxy:
            meter, _ = meters(echo.port, proxy.port)
            bound.append(meter)
            channel = channel_to(proxy.port)
            await exchange(channel, "a", pieces=2)
            total = (0, 0)

            def counted() -> tuple[int, int]:
                nonlocal total
                total = add(total, by_direction(meter.take(), "a"))
                return total

            seen: list[tuple[int, int]] = []

            def calm() -> bool:
                """Nothing for half a second: HTTP/2's own frames come after the answer, and must not be under way."""
                seen.append(counted())
                last = seen[-50:]
                return len(last) == 50 and set(last) == {(proxy.total_up, proxy.total_down)}

            await until(calm)
            proxy.cut()
            await until(lambda: counted()[1] == proxy.total_down and not meter._before)
            assert proxy.total_up - 1 <= total[0] <= proxy.total_up
            await channel.close()
        await echo.server.stop(0)

    run(work())


@linux
def test_only_the_chosen_connections_are_watched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:
        port = listening.getsockname()[1]
        with socket.create_connection(listening.getsockname()) as near, listening.accept()[0], \
                socket.create_connection(other.getsockname()), other.accept()[0]:
            own = format_peer(*near.getsockname())
            assert [each.peer for each in ConnectionMeter(local_port=port).sample()] == [own]
            assert [each.local for each in ConnectionMeter(remote_port=port).sample()] == [own]
            assert len(ConnectionMeter(remote_port=port, remote_hosts=["127.0.0.1"]).sample()) == 1
            assert ConnectionMeter(remote_port=port, remote_hosts=["127.0.0.2"]).sample() == {}


@linux
def test_a_peer_that_never_acknowledges_the_end_is_let_go_after_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        with far:
            meter = ConnectionMeter(remote_port=listening.getsockname()[1], linger_seconds=0.2)
            near.sendall(b"abc")
            [connection] = meter.sample()
            near.shutdown(socket.SHUT_RDWR)
            near.close()
            assert meter.sample()[connection].closed is False
            assert meter.ended() == set()
            time.sleep(0.25)
            assert meter.sample()[connection].stream_bytes_sent == 3
            assert meter.ended() == {connection}
            assert far.recv(10) == b"abc"
            assert far.recv(10) == b""


@linux
def test_a_sample_of_fifty_connections_takes_ten_milliseconds_at_most() -> None:
    """Below one on a quiet machine. The best of twenty, in processor time, since this machine may be slow and busy."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        near = [socket.create_connection(listening.getsockname()) for _ in range(50)]
        far = [listening.accept()[0] for _ in near]
        meter = ConnectionMeter(local_port=listening.getsockname()[1])
        assert len(meter.sample()) == 50
        best = min(_seconds(meter.sample) for _ in range(20))
        for sock in near + far:
            sock.close()
        meter.close()
    assert best < 0.01


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


@each_of(("peer", "expected"), [
    ("ipv4:127.0.0.1:54321", "ipv4:127.0.0.1:54321"),
    ("ipv6:%5B::1%5D:80", "ipv6:[::1]:80"),
    ("ipv6:[::1]:80", "ipv6:[::1]:80"),
    ("ipv6:%5B::ffff:10.0.0.1%5D:80", "ipv4:10.0.0.1:80"),
    ("ipv6:%5Bfe80::1%25eth0%5D:80", "ipv6:[fe80::1]:80"),
    ("unix:/tmp/x", "unix:/tmp/x"),
])
def test_peers_are_read_as_grpc_writes_them(peer: str, expected: str) -> None:
    assert parse_peer(peer) == expected


@linux
def test_totals_of_a_connection_never_fall_whatever_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [TcpCounters(100, 50, 7)]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        meter = ConnectionMeter(local_port=server.getsockname()[1])
        monkeypatch.setattr(socket_counters, "read", lambda descriptor: said[-1])
        with accepted:
            found = [*meter.sample().values()]
            said.append(TcpCounters(90, 60, 3))
            found += meter.sample().values()
        meter.close()
    assert [(each.bytes_sent, each.bytes_received, each.bytes_retrans) for each in found] == [
        (100, 50, 7), (100, 60, 7)]


def test_messages_are_counted_by_rpc_silo_and_direction() -> None:
    meter = MessageMeter()
    meter.add(100, rpc="AwaitTask", silo="a", direction="up", calls=1)
    meter.add(2000, rpc="AwaitTask", silo="a", direction="down")
    for _ in range(3):
        meter.add(10, rpc="SubmitUpdate", silo="b", direction="up")
    assert meter.take() == [
        MessageUse("AwaitTask", "a", "down", 2000, 1, 0), MessageUse("AwaitTask", "a", "up", 100, 1, 1),
        MessageUse("SubmitUpdate", "b", "up", 30, 3, 0)]
    assert meter.take() == []
    meter.add(1, rpc="AwaitTask", silo="a", direction="up", calls=1)
    assert meter.take() == [MessageUse("AwaitTask", "a", "up", 1, 1, 1)]
    assert meter.take() == []
    assert MessageUse("AwaitTask", "a", "up", 101, 2, 2) in meter.totals()
    meter.add(7, rpc="AwaitTask", silo="a", direction="up", calls=1)
    assert meter.take() == [MessageUse("AwaitTask", "a", "up", 7, 1, 1)], "since the last time, not since the first"


def test_where_nothing_counts_the_bytes_are_estimated_and_labelled() -> None:
    """One connection of a, 10 calls, 1 MB up: 1.0015 MB + 10 x 150 B + 3050 B up, and the overhead alone down."""
    messages, connections = MessageMeter(), ConnectionMeter(local_port=1)
    connections.supported = False
    meter = WireMeter(connections, side="coordinator", messages=messages)
    for _ in range(2):
        meter.bind("ipv4:10.0.0.1:5000", "a")
    messages.add(1_000_000, rpc="SubmitUpdate", silo="a", direction="up", calls=10)
    assert meter.take("x") == [WireUse("a", "down", 4550, True, "x"), WireUse("a", "up", 1_006_050, True, "x")]
    assert meter.take() == []
    messages.add(1000, rpc="AwaitTask", silo="a", direction="down")
    assert meter.take() == [WireUse("a", "down", 1002, True)]
    assert estimate_wire_bytes(message_bytes=0, calls=0, connections=0) == 0


@linux
def test_the_estimate_is_within_a_percent_of_the_proxy() -> None:
    async def work() -> None:
        messages, calls = MessageMeter(), []
        echo = Echo(lambda peer, silo: calls.append(peer))
        await echo.server.start()
        with Proxy("127.0.0.1", echo.port) as proxy:
            channel = channel_to(proxy.port)
            await exchange(channel, "a", pieces=12)
            await channel.close()
            await asyncio.to_thread(proxy.wait_until_closed)
            for direction in ("up", "down"):
                messages.add(12 * 500_000, rpc="Echo", silo="a", direction=direction, calls=int(direction == "up"))
            connections = ConnectionMeter()
            connections.supported = False
            meter = WireMeter(connections, side="coordinator", messages=messages)
            meter.bind(calls[0], "a")
            up, down = by_direction(meter.take(), "a")
            assert up == pytest.approx(proxy.total_up, rel=0.01)
            assert down == pytest.approx(proxy.total_down, rel=0.01)
        await echo.server.stop(0)

    run(work())


def test_bytes_sent_again_are_no_wire_bytes() -> None:
    class Fake(ConnectionMeter):
        def sample(self) -> dict[Any, TcpCounters]:
            return {connection: TcpCounters(bytes_sent=1300, bytes_received=50, bytes_retrans=300)}

    from semisilo.common.rpc.meter import Connection

    connection = Connection("ipv4:10.0.0.1:8443", "ipv4:10.0.0.2:5000", 1)
    fake = Fake()
    fake.supported = True
    coordinator = WireMeter(fake, side="coordinator")
    coordinator.bind(connection.peer, "a")
    assert coordinator.take() == [WireUse("a", "down", 1000), WireUse("a", "up", 50)]
    silo = WireMeter(fake, side="silo", silo="a")
    assert silo.take() == [WireUse("a", "up", 1000), WireUse("a", "down", 50)]


def test_a_connection_that_begins_when_no_file_can_be_opened_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        meter = ConnectionMeter(local_port=port)
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
            with monkeypatch.context() as refusing:
                refusing.setattr("os.listdir", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
                meter.look_for_new()
                assert [counters.bytes_received for counters in meter.sample().values()] == [0]
            client.sendall(b"x" * 1000)
            assert accepted.recv(1000, socket.MSG_WAITALL)
            (counters,) = meter.sample().values()
            assert counters.bytes_received == 1000
        meter.close()
