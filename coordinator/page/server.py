"""Serves the page inside the coordinator's event loop: whatever goes wrong here is logged and ends the page, never the
study."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from semisilo.common.errors import BadConfiguration, PortInUse
from semisilo.common.page import web_server
from semisilo.common.page.guard import host_of
from semisilo.common.system_errors import SYSTEM_ERRORS
from semisilo.coordinator.federation.folder import PageSettings
from semisilo.coordinator.page.login_proxy import LoginProxy
from semisilo.coordinator.page.routes import page_app
from semisilo.coordinator.page.service import PageService

__all__ = ["PageServer", "bind", "keep", "offer"]

_LOG = logging.getLogger("semisilo.coordinator")
_AGAIN_SECONDS = 10.0


def bind(listen: str) -> socket.socket:
    """A listening socket for "host:port"; port 0 takes any free one.

    Raises: PortInUse; BadConfiguration when this machine has no such address or does not allow the port.
    """
    return web_server.bind(listen, setting="[page] listen",
                           in_use='Choose another port for [page] listen in federation.toml ("127.0.0.1:0": any free '
                                  "one), then restart.")


class PageServer:
    """One page on one socket."""

    def __init__(self, service: PageService, listening: socket.socket, settings: PageSettings) -> None:
        self._service = service
        self._web = web_server.WebServer(
            page_app(service, listen_host=host_of(settings.listen), hosts=settings.hosts, proxy=LoginProxy(
                header=settings.user_header, addresses=settings.trusted_proxies)), listening, listen=settings.listen)
        self.local = self._web.local
        """Whether only this machine can reach it."""
        self.address = self._web.address
        """What a person types into a browser on this machine."""

    async def run(self) -> None:
        """Serves until cancelled. Never raises: a page that fails is off, and says so."""
        checking = asyncio.ensure_future(self._service.check_chain())
        serving = asyncio.ensure_future(self._web.serve())
        try:
            await asyncio.wait({serving})
            if not serving.cancelled():
                _LOG.error("the operator page has failed and is off; the study continues", exc_info=serving.exception())
            await asyncio.Event().wait()
        finally:
            checking.cancel()
            self._service.end_streams()
            await self._web.end(serving)
            await asyncio.gather(checking, return_exceptions=True)
            await self._service.close()
            self._web.close()


def offer(settings: PageSettings, make: Callable[[], PageService]) -> PageServer | None:
    """The page of `coordinator serve`; None where it is switched off or cannot be had, which is said in one line."""
    if not settings.listen:
        return None
    try:
        return _opened(bind(settings.listen), settings, make)
    except (PortInUse, BadConfiguration) as error:
        _LOG.warning("there is no operator page: %s It is tried again every %.0f s.", error.line(), _AGAIN_SECONDS)
        return None


async def keep(page: PageServer | None, settings: PageSettings, make: Callable[[], PageService], *,
               told: Callable[[str], None]) -> None:
    """Serves the page until cancelled. One that could not be had is tried again: a service may start before its address
    is there, or while an earlier one still holds the port.

    Args:
        page: what `offer` gave.
        told: gets the address of one that is there later.
    """
    while page is None:
        await asyncio.sleep(_AGAIN_SECONDS)
        with contextlib.suppress(PortInUse, BadConfiguration, *SYSTEM_ERRORS):
            page = _opened(await asyncio.to_thread(bind, settings.listen), settings, make)
            told(page.address)
    await page.run()


def _opened(listening: socket.socket, settings: PageSettings, make: Callable[[], PageService]) -> PageServer:
    server = PageServer(make(), listening, settings)
    _LOG.info("operator page: %s (to unlock its actions: coordinator page --token)", server.address)
    if not server.local:
        _LOG.warning("the operator page can be reached from other machines without TLS, and the token would cross in"
                     ' clear: put a reverse proxy with TLS in front, or set [page] listen = "127.0.0.1:8080" and use an'
                     " ssh tunnel")
    return server
