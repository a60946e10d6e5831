"""The page on a real socket, in an event loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from semisilo.common.errors import BadConfiguration, PortInUse, SystemTrouble
from semisilo.common.page import web_server
from semisilo.coordinator.federation.folder import PageSettings
from semisilo.coordinator.page import server
from semisilo.coordinator.page import service as service_module
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.page.server import PageServer, bind, keep, offer
from semisilo.coordinator.page.service import PageService
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.coordinator.page.page_kit import TOKEN
from tests.each_of import each_of


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", done=2, collecting=True)


@pytest.fixture(autouse=True)
def _watching_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.coordinator.page.service._WATCH_SECONDS", 0.05)


def service_of(filled: Filled) -> PageService:
    return PageService(PageSource(federation="lung", address="", ledger=filled.ledger.path, read_only=True),
                       live=lambda: None, token=lambda: TOKEN)


def served(filled: Filled, work: Callable[[PageServer, httpx.AsyncClient], Awaitable[None]]) -> None:
    """Runs a scenario against a page on a free port."""
    async def scenario() -> None:
        settings = PageSettings(listen="127.0.0.1:0")
        server = PageServer(service_of(filled), bind(settings.listen), settings)
        running = asyncio.ensure_future(server.run())
        try:
            async with httpx.AsyncClient(base_url=server.address, trust_env=False) as client:
                await work(server, client)
        finally:
            running.cancel()
            async with asyncio.timeout(300):
                await asyncio.gather(running, return_exceptions=True)
    asyncio.run(scenario())


def test_it_answers_and_leaves_signals_alone(filled: Filled) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        assert (await client.get("/health")).json() == {"status": "ok", "serving": False}
        assert signal.getsignal(signal.SIGTERM) == before
    served(filled, work)


def test_a_stream_says_at_once_how_things_stand_and_then_what_changes(filled: Filled) -> None:
    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        revisions: list[str] = []
        async with client.stream("GET", "/api/stream") as answer, asyncio.timeout(300):
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    revisions.append(line)
                    if len(revisions) == 2:
                        break
                    filled.ledger.event("something", study="first")
        assert '"revision":1' in revisions[0]
        assert '"revision":2' in revisions[1]
    served(filled, work)


def test_the_chain_is_checked_once_the_system_lets_it_be_read(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error at the wrong moment ended the check for as long as the coordinator ran, and nobody was told."""
    monkeypatch.setattr(service_module, "_CHECK_SECONDS", 0.0)
    service, refused = service_of(filled), iter([SystemTrouble("/hub: Input/output error."),
                                                 RuntimeError("can't start new thread")])
    opened = service._opened

    def opens() -> PageReader:
        if (error := next(refused, None)) is not None:
            raise error
        return opened()

    service._opened = opens  # type: ignore[method-assign]

    async def scenario() -> None:
        checking = asyncio.ensure_future(service.check_chain())
        async with asyncio.timeout(300):
            while service._reader is None or service._reader.check.intact is None:
                assert not checking.done()
                await asyncio.sleep(0.01)
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        await service.close()
    asyncio.run(scenario())


def test_an_open_stream_does_not_keep_the_page_from_ending(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in await reader.readline()
        kept.extend([reader, writer])  # open until the page has ended
    # Were it to wait for the stream until its patience is over, the page would not end within the test.
    monkeypatch.setattr("semisilo.common.page.web_server.GRACE_SECONDS", 1000)
    served(filled, work)


def test_a_server_that_does_not_end_does_not_keep_the_page_from_ending(
        filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def endless(self: object, sockets: object = None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("server")

    async def scenario() -> None:
        settings, service = PageSettings(listen="127.0.0.1:0"), service_of(filled)
        close = service.close

        async def closed() -> None:
            ended.append("service")
            await close()
        monkeypatch.setattr(service, "close", closed)
        running = asyncio.ensure_future(PageServer(service, bind(settings.listen), settings).run())
        await asyncio.sleep(0.01)  # it serves
        running.cancel()
        async with asyncio.timeout(300):
            await asyncio.gather(running, return_exceptions=True)
        assert ended == ["server", "service"]
    monkeypatch.setattr("uvicorn.Server.serve", endless)
    monkeypatch.setattr("semisilo.common.page.web_server.GRACE_SECONDS", -0.9)
    asyncio.run(scenario())


class Kept:
    """A connection that stays open and asks now and then, so that it is never silent for long."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, server: PageServer) -> Kept:
        return cls(*await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2])))

    async def ask(self, line: str = "GET /health", body: str = "") -> bool:
        """Whether there is an answer, and no end of the connection."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        try:
            self._writer.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n{body}".encode())
            head = await self._reader.readuntil(b"\r\n\r\n")
            if b"content-length: " in head:
                await self._reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
        except (OSError, asyncio.IncompleteReadError):
            return False
        return b"200 OK" in head

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.common.page.web_server._MOST_CONNECTIONS", 3)


@pytest.mark.usefixtures("three_places")
def test_who_keeps_all_places_keeps_the_operator_out_no_longer(filled: Filled) -> None:
    """It took 200 connections that asked something every 30 seconds. Of one address the place goes that is idle
    longest, and a stream is not idle."""
    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        stream, *others = [await Kept.open(server) for _ in range(3)]
        assert await stream.ask("GET /api/stream")
        for each in (*others, others[0]):
            assert await each.ask()
        assert (await client.get("/health")).status_code == 200
        assert [await each.ask() for each in others] == [True, False]
        assert b"event: state" in await stream._reader.readuntil(b"event: state"), "it is still there"
        for each in (stream, *others):
            each.close()
    served(filled, work)


@pytest.mark.usefixtures("three_places")
def test_no_stranger_takes_the_place_of_who_has_shown_the_token(filled: Filled) -> None:
    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        operator, other = await Kept.open(server), await Kept.open(server)
        assert await operator.ask("POST /api/session", f'{{"token": "{TOKEN}"}}')
        assert await other.ask("POST /api/session", '{"token": ""}')
        strangers = [await Kept.open(server) for _ in range(8)]
        assert await strangers[-1].ask()
        assert await operator.ask()
        assert not await other.ask(), "to have asked without one is nothing"
        for each in (operator, other, *strangers):
            each.close()
    served(filled, work)


def connection(name: str, network: str, heard: float, *, trusted: bool = False, answered: bool = True) -> Any:
    return SimpleNamespace(name=name, network=network, idle_since=(not answered, heard), trusted=trusted)


@each_of(("connections", "goes"), [
    ([connection("a", "x", 1), connection("b", "y", 3), connection("c", "y", 2)], "c"),
    ([connection("a", "x", 1), connection("b", "y", 2)], "a"),
    ([connection("a", "x", 1, answered=False), connection("b", "x", 2)], "b"),
    ([connection("a", "x", 1, trusted=True), connection("b", "x", 2, trusted=True), connection("c", "y", 3)], "c"),
    ([connection("a", "x", 1, trusted=True), connection("b", "x", 2, trusted=True)], "a")])
def test_of_the_address_that_has_most_places_the_one_goes_that_is_idle_longest(
        connections: list[Any], goes: str) -> None:
    assert web_server._goes_first(connections).name == goes


def test_a_newer_stream_goes_before_the_oldest_of_the_address_that_has_most(
        filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.coordinator.page.service._MOST_STREAMS", 3)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        service = service_of(filled)
        with service.stream("10.0.0.1") as visitor, service.stream("10.0.0.2") as first, \
                service.stream("::ffff:10.0.0.2") as second, service.stream("10.0.0.1") as newer:
            assert [each.is_set() for each in (visitor, first, second, newer)] == [False, True, False, False]
            assert [event async for event in service.changes(first)] == []
            with service.stream("10.0.0.3"):
                assert [each.is_set() for each in (visitor, second, newer)] == [True, False, False]
        assert not service._streams
        await service.close()

        async with client.stream("GET", "/api/stream") as oldest, asyncio.timeout(300):
            lines = oldest.aiter_lines()
            assert await anext(lines) == "event: state"
            newer_ones = [await Kept.open(server) for _ in range(3)]
            for each in newer_ones:
                assert await each.ask("GET /api/stream")
            assert [line async for line in lines][-2:] == ["retry: 30000", ""], "and does not come again at once"
        for each in newer_ones:
            each.close()
    served(filled, work)


def test_no_more_connections_are_taken_than_there_is_room_for(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.common.page.web_server._MOST_CONNECTIONS", 3)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        port = int(server.address.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]

        def gone() -> int:
            return sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent)
        async with asyncio.timeout(300):
            while gone() < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert gone() == 2
        for _, writer in silent:
            writer.close()
    served(filled, work)


@pytest.mark.slow
def test_who_never_asks_for_anything_loses_the_place(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.common.page.web_server._MOST_CONNECTIONS", 3)
    monkeypatch.setattr("semisilo.common.page.web_server._IDLE_SECONDS", 0.5)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        port = int(server.address.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(300):
            while not all(reader.at_eof() or reader.exception() is not None for reader, _ in silent):
                await asyncio.sleep(0.01)
        assert (await client.get("/health")).status_code == 200
        for _, writer in silent:
            writer.close()
    served(filled, work)


@pytest.mark.slow
def test_who_does_not_end_a_request_loses_the_place_and_leaves_nothing_in_the_log(
        filled: Filled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One in the middle of a body that is wanted, one of a body that is not, one of a second request."""
    begun = (
        b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost:")
    monkeypatch.setattr("semisilo.common.page.web_server._MOST_CONNECTIONS", 3)
    monkeypatch.setattr("semisilo.common.page.web_server._IDLE_SECONDS", 0.5)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        port = int(server.address.rpartition(":")[2])
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for (_, writer), start in zip(slow, begun, strict=True):
            writer.write(start)
        async with asyncio.timeout(300):
            while not all(reader.at_eof() or reader.exception() is not None for reader, _ in slow):
                await asyncio.sleep(0.1)  # a byte now and then, so that no connection is silent
                for _, writer in slow:
                    writer.write(b" ")
        assert (await client.get("/health")).status_code == 200
        for _, writer in slow:
            writer.close()
    served(filled, work)
    assert [record for record in caplog.records if "semisilo" in record.name] == []


@pytest.mark.slow
def test_a_stream_that_is_read_outlives_the_time_in_which_others_lose_their_place(
        filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.common.page.web_server._IDLE_SECONDS", 0.2)

    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/api/stream") as answer, asyncio.timeout(300):
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: state"
            await asyncio.sleep(0.8)
            filled.ledger.event("something", study="first")
            while '"revision":2' not in await anext(lines):
                pass
    served(filled, work)


def test_rubbish_on_the_wire_does_no_harm(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: PageServer, client: httpx.AsyncClient) -> None:
        port = int(server.address.rpartition(":")[2])
        for rubbish in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 70_000,
                        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"POST /api/session HTTP/1.1\r\n"
                        b"Host: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rubbish)
            await asyncio.wait_for(reader.read(1000), 300) if b"HTTP" in rubbish else await asyncio.sleep(0.05)
            writer.close()
        assert (await client.get("/health")).status_code == 200
    with caplog.at_level(logging.WARNING):
        served(filled, work)
    assert [record for record in caplog.records if "semisilo" in record.name] == []


def test_a_page_that_fails_says_so_and_does_not_end_what_it_belongs_to(
        filled: Filled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object, sockets: object = None) -> None:
        raise RuntimeError("broken")
    monkeypatch.setattr("uvicorn.Server.serve", broken)

    async def scenario() -> None:
        settings = PageSettings(listen="127.0.0.1:0")
        running = asyncio.ensure_future(PageServer(service_of(filled), bind(settings.listen), settings).run())
        async with asyncio.timeout(300):
            while "the operator page has failed" not in caplog.text:
                await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    asyncio.run(scenario())


def test_a_taken_port_is_named_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortInUse) as error:
            bind(listen)
        assert listen in error.value.text
        assert "[page] listen" in error.value.remedy


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:0"])
def test_an_address_of_another_machine_is_refused(listen: str) -> None:
    with pytest.raises(BadConfiguration, match="cannot listen"):
        bind(listen)


def test_a_page_may_be_off_or_shown_to_others_with_a_warning(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert offer(PageSettings(listen=""), lambda: service_of(filled)) is None
        assert caplog.records == []
        local = offer(PageSettings(listen="127.0.0.1:0"), lambda: service_of(filled))
        assert local is not None
        assert local.address in caplog.text
        assert "without TLS" not in caplog.text
        anywhere = offer(PageSettings(listen="0.0.0.0:0"), lambda: service_of(filled))
        assert anywhere is not None
        assert anywhere.address.startswith("http://localhost:")
        assert "without TLS" in caplog.text


def test_a_page_whose_port_is_taken_is_there_once_it_is_free(
        filled: Filled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed off until the next restart, as after a boot in which its address came late."""
    monkeypatch.setattr(server, "_AGAIN_SECONDS", 0.01)

    async def scenario() -> None:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = PageSettings(listen=f"127.0.0.1:{taken.getsockname()[1]}")
            page = offer(settings, lambda: service_of(filled))
            assert page is None
            keeping = asyncio.ensure_future(keep(page, settings, lambda: service_of(filled), told=found.set_result))
            await asyncio.sleep(0.1)
            assert not found.done()
        async with asyncio.timeout(60):
            assert settings.listen in await found
            await asyncio.to_thread(socket.create_connection, ("127.0.0.1", int(settings.listen.split(":")[1])), 60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.text.count("there is no operator page") == 1
    assert caplog.text.count("operator page: http") == 1


@pytest.mark.parametrize("settings", [{"listen": "8080"}, {"listen": "127.0.0.1"}, {"listen": "127.0.0.1:99999"},
                                      {"hosts": ("http://x",)}, {"hosts": ("x:80",)}, {"hosts": ("",)}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"listen|hosts"):
        PageSettings(**settings)  # type: ignore[arg-type]
