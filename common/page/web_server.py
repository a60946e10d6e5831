"""Serves a page with uvicorn inside an event loop that belongs to somebody else.

Signals stay theirs, and a caller that takes a connection and asks for nothing loses it. Nobody is kept out because
others hold all places: a newer connection goes before one of those that hold most.

Tests: tests/coordinator/page/test_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from semisilo.common.errors import BadConfiguration, PortInUse
from semisilo.common.page.guard import host_of, is_local
from semisilo.common.page.requests import TOKEN_SHOWN
from semisilo.common.rpc.network import network_of
from semisilo.common.rpc.tls import split_address

__all__ = ["GRACE_SECONDS", "WebServer", "bind"]

GRACE_SECONDS = 2
"""How long answers may take when the page ends."""
_MOST_CONNECTIONS = 200
_IDLE_SECONDS = 30


def bind(listen: str, *, setting: str, in_use: str) -> socket.socket:
    """A listening socket for "host:port"; port 0 takes any free one.

    Args:
        setting: that says so: "[page] listen".
        in_use: what to do where another process listens there.
    Raises: PortInUse; BadConfiguration when this machine has no such address or does not allow the port.
    """
    host, port = split_address(listen)
    plain = host.strip("[]")
    try:
        family, kind, _, _, socket_address = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM,
                                                                flags=socket.AI_PASSIVE)[0]
        with contextlib.ExitStack() as stack:
            found = stack.enter_context(socket.socket(family, kind))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(socket_address)
            found.listen(128)
            found.setblocking(False)
            stack.pop_all()
        return found
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"Another process listens on {listen}.", remedy=in_use) from None
        raise BadConfiguration(f"{setting}: cannot listen on {listen}: {error.strerror or error}.",
                               remedy='Use an address of this machine, for example "127.0.0.1:8080".') from None


class WebServer:
    """One page on one socket."""

    def __init__(self, app: ASGIApp, listening: socket.socket, *, listen: str) -> None:
        """
        Args:
            listening: closed in the end.
            listen: what was bound, "host:port".
        """
        self._socket = listening
        host = host_of(listen)
        self.local = is_local(host)
        """Whether only this machine can reach it."""
        shown = "localhost" if host in ("0.0.0.0", "[::]") else host
        self.address = f"http://{shown}:{listening.getsockname()[1]}"
        """What a person types into a browser on this machine."""
        self._server = _Server(uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", http=_Connection, ws="none", server_header=False,
            proxy_headers=False, timeout_keep_alive=_IDLE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=32 * 1024))
        for name in ("uvicorn", "uvicorn.error"):  # strangers' bad requests are not the operator's business
            logging.getLogger(name).setLevel(logging.ERROR)

    async def serve(self) -> None:
        """Serves until `end`."""
        await self._server.serve(sockets=[self._socket])

    async def end(self, serving: asyncio.Future[None]) -> None:
        """Ends it, with what `serve` has begun; whoever is owed an answer gets it, if that takes no longer than
        `GRACE_SECONDS`."""
        self._server.should_exit = True
        # Not asyncio.timeout: before Python 3.11.3 it does not time out in a task that was cancelled, and who ends a
        # page mostly was.
        await asyncio.wait({serving}, timeout=GRACE_SECONDS + 1)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


class _Connection(H11Protocol):
    """Takes a place for a while only when it asks for something: open files are needed for silos."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.app_state = {**self.app_state, TOKEN_SHOWN: self._trust}
        self.trusted = False
        """Whether who asks here has shown the page's token."""
        self.network = ""
        self._heard = 0.0
        self._before: tuple[object, ...] = (None, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client is not None else ""
        self._heard = self.loop.time()
        others: list[_Connection] = [each for each in self.connections  # type: ignore[misc]
                                     if each is not self and not each.transport.is_closing()]
        if len(others) >= _MOST_CONNECTIONS:
            _goes_first(others).transport.abort()
        self.loop.call_later(_IDLE_SECONDS, self._leave_if_stuck)

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)

    @property
    def idle_since(self) -> tuple[bool, float]:
        """To compare: who waits for an answer or has a stream is not idle; of the others, when it has said something
        last, a part of a request as well."""
        cycle = self.cycle
        answered = cycle is None or cycle.response_complete or self.conn.their_state is h11.SEND_BODY
        return not answered, self._heard

    def _trust(self) -> None:
        self.trusted = True

    def _leave_if_stuck(self) -> None:
        """Gives up a place whose holder asks for nothing, does not end its request, or does not take the answer."""
        if self.transport.is_closing():
            return
        cycle, waiting = self.cycle, self.transport.get_write_buffer_size()
        owes = cycle is None or cycle.response_complete or self.conn.their_state is h11.SEND_BODY or waiting > 0
        now = (cycle, waiting) if owes else ()
        if owes and now == self._before:
            self.transport.abort()
            return
        self._before = now
        self.loop.call_later(_IDLE_SECONDS, self._leave_if_stuck)


def _goes_first(connections: Collection[_Connection]) -> _Connection:
    """Which connection makes way for a newer one: of the address that has most the one that is idle longest. One on
    which the token was shown only when there is no other: a stranger must not be able to keep the operator out."""
    some = [each for each in connections if not each.trusted] or connections
    counts = Counter(each.network for each in some)
    most = max(counts.values())
    return min((each for each in some if counts[each.network] == most), key=lambda each: each.idle_since)


class _Server(uvicorn.Server):
    """Leaves signals alone: the process has its own handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
