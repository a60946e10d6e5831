"""Serves a silo's page until a signal comes; what `silo page` does.

Tests: tests/silo/page/test_command.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

from semisilo.common.errors import PortInUse
from semisilo.common.page import web_server
from semisilo.common.page.guard import host_of
from semisilo.silo.page.routes import silo_page_app
from semisilo.silo.page.service import SiloPage
from semisilo.silo.site.home import SiloHome

__all__ = ["DEFAULT_LISTEN", "serve"]

DEFAULT_LISTEN = "127.0.0.1:8090"
_FREE = "127.0.0.1:0"
_LOG = logging.getLogger("semisilo.silo")


def serve(home: SiloHome, *, listen: str | None, hosts: tuple[str, ...], ready: Callable[[str], None]) -> int:
    """Serves the page until a signal comes; returns the exit status: 130 after SIGINT, 0 after SIGTERM.

    Args:
        listen: "host:port"; None for `DEFAULT_LISTEN`, or any free port where that is taken.
        hosts: further names under which browsers may ask.
        ready: told the address once it can be asked for.
    Raises: PortInUse, BadConfiguration.
    """
    listening = _bind(listen)
    return asyncio.run(_serve(SiloPage(home), listening, listen or DEFAULT_LISTEN, hosts, ready))


def _bind(listen: str | None) -> socket.socket:
    setting, in_use = "--listen", 'Choose another port, or "127.0.0.1:0" for any free one.'
    if listen is not None:
        return web_server.bind(listen, setting=setting, in_use=in_use)
    try:
        return web_server.bind(DEFAULT_LISTEN, setting=setting, in_use=in_use)
    except PortInUse:  # another silo's page, most likely
        return web_server.bind(_FREE, setting=setting, in_use=in_use)


async def _serve(page: SiloPage, listening: socket.socket, listen: str, hosts: tuple[str, ...],
                 ready: Callable[[str], None]) -> int:
    server = web_server.WebServer(silo_page_app(page, listen_host=host_of(listen), hosts=hosts), listening,
                                  listen=listen)
    if not server.local:
        _LOG.warning("this page can be reached from other machines without TLS, and the token would cross in clear: put"
                     " a reverse proxy with TLS in front, or use --listen 127.0.0.1:8090 and an ssh tunnel")
    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not stop.done():
            stop.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    reading = asyncio.ensure_future(page.read_on())
    serving = asyncio.ensure_future(server.serve())
    ready(server.address)
    try:
        waited: set[asyncio.Future[Any]] = {serving, stop}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        return 130 if stop.done() and stop.result() == signal.SIGINT else 0
    finally:
        reading.cancel()
        with contextlib.suppress(Exception):
            await server.end(serving)
        await asyncio.gather(reading, return_exceptions=True)
        await page.close()
        server.close()
