"""Serves the page with uvicorn inside an event loop that belongs to somebody else: signals stay theirs, and whatever
goes wrong here is logged and ends the page, never the study."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from semisilo.common.errors import BadConfiguration, PortInUse
from semisilo.common.rpc.tls import split_address
from semisilo.coordinator.federation.folder import PageSettings
from semisilo.coordinator.page.guard import host_of, is_local
from semisilo.coordinator.page.routes import page_app
from semisilo.coordinator.page.service import PageService
from semisilo.coordinator.page.token import LoginProxy

__all__ = ["PageServer", "bind", "offer"]

_LOG = logging.getLogger("semisilo.coordinator")
_MOST_CONNECTIONS = 200
_IDLE_SECONDS = 30
_GRACE_SECONDS = 2


def bind(listen: str) -> socket.socket:
    """A listening socket for "host:port"; port 0 takes any free one.

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
            raise PortInUse(f"Another process listens on {listen}.",
                            remedy='Choose another port for [page] listen in federation.toml ("127.0.0.1:0": any free '
                                   "one), then restart.") from None
        raise BadConfiguration(f"[page] listen: cannot listen on {listen}: {error.strerror or error}.",
                               remedy='Use an address of this machine, for example "127.0.0.1:8080".') from None


class PageServer:
    """One page on one socket."""

    def __init__(self, service: PageService, listening: socket.socket, settings: PageSettings) -> None:
        self._service = service
        self._socket = listening
        host = host_of(settings.listen)
        self.local = is_local(host)
        """Whether only this machine can reach it."""
        shown = "localhost" if host in ("0.0.0.0", "[::]") else host
        self.address = f"http://{shown}:{listening.getsockname()[1]}"
        """What a person types into a browser on this machine."""
        self._server = _Server(uvicorn.Config(
            page_app(service, listen_host=host, hosts=settings.hosts, proxy=LoginProxy(
                header=settings.user_header, addresses=settings.trusted_proxies)), log_config=None, access_log=False,
            lifespan="off", http=_Connection, ws="none", server_header=False, proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS, h11_max_incomplete_event_size=32 * 1024))
        for name in ("uvicorn", "uvicorn.error"):  # strangers' bad requests are not the operator's business
            logging.getLogger(name).setLevel(logging.ERROR)

    async def run(self) -> None:
        """Serves until cancelled. Never raises: a page that fails is off, and says so."""
        checking = asyncio.ensure_future(self._service.check_chain())
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        try:
            await asyncio.wait({serving})
            if not serving.cancelled():
                _LOG.error("the operator page has failed and is off; the study continues", exc_info=serving.exception())
            await asyncio.Event().wait()
        finally:
            checking.cancel()
            self._service.end_streams()
            self._server.should_exit = True
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_GRACE_SECONDS + 1):
                    await asyncio.wait({serving})
            serving.cancel()
            await asyncio.gather(checking, serving, return_exceptions=True)
            await self._service.close()
            self._socket.close()


class _Connection(H11Protocol):
    """Takes a place for a while only when it asks for something: open files are needed for silos."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._before: tuple[object, ...] = (None, 0)
            self.loop.call_later(_IDLE_SECONDS, self._leave_if_stuck)

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


class _Server(uvicorn.Server):
    """Leaves signals alone: the coordinator has its own handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def offer(settings: PageSettings, make: Callable[[], PageService]) -> PageServer | None:
    """The page of `coordinator serve`; None where it is switched off or cannot be had, which is said in one line."""
    if not settings.listen:
        return None
    try:
        listening = bind(settings.listen)
    except (PortInUse, BadConfiguration) as error:
        _LOG.warning("there is no operator page: %s", error.line())
        return None
    server = PageServer(make(), listening, settings)
    _LOG.info("operator page: %s (to unlock its actions: coordinator page --token)", server.address)
    if not server.local:
        _LOG.warning("the operator page can be reached from other machines without TLS, and the token would cross in"
                     ' clear: put a reverse proxy with TLS in front, or set [page] listen = "127.0.0.1:8080" and use an'
                     " ssh tunnel")
    return server
