"""What every request passes before it reaches a route: known host, small body, no other site's page; and what every
answer carries, so that a browser runs and loads nothing that is not ours.

Tests: tests/coordinator/page/test_access.py.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semisilo.common.page.responses import failure
from semisilo.common.system_errors import explained

__all__ = ["MOST_BODY_BYTES", "TOO_LARGE", "Guard", "TooLarge", "host_of", "is_local"]

MOST_BODY_BYTES = 16 * 1024
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
TOO_LARGE: tuple[int, str, str, str] = (413, "TOO_LARGE", f"A request has at most {MOST_BODY_BYTES} bytes.", "")
"""Status, code, text and remedy."""
_NOT_FOUND: tuple[int, str, str, str] = (404, "NOT_FOUND", "Not Found.", "")
"""For a path that no file can have: Starlette before 1.0 has a mistake of its own then."""
_HEADERS: Mapping[str, str] = {
    "content-security-policy":
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def host_of(header: str) -> str:
    """The host in a Host header or an address, lower case, without its port; IPv6 in brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address with that host."""
    if host in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, page: str, log: str, unknown_host: str, listen_host: str,
                 hosts: Collection[str] = ()) -> None:
        """
        Args:
            page: what it is called in the log: "operator page".
            log: name of the logger.
            unknown_host: what to do where a host name is not known that should be.
            listen_host: what the page listens on; where that is no address of this machine only, any IP address will
                do as a host: a name that someone makes point here (DNS rebinding) is still none.
            hosts: further names.
        """
        self._app = app
        self._page, self._log = page, logging.getLogger(log)
        self._unknown_host = unknown_host
        self._hosts = {*_LOCAL_NAMES, host_of(listen_host), *(host_of(host) for host in hosts)}
        self._numbers = not is_local(host_of(listen_host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves or refuses one request."""
        if scope["type"] != "http":
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        refused = self._refusal(Headers(scope=scope)) or (_NOT_FOUND if "\0" in scope["path"] else None)
        if refused is not None:
            await failure(*refused)(scope, receive, answer)
            return
        try:
            await self._app(scope, _Limited(receive).receive, answer)
        except Exception as error:
            trouble = explained(error)
            self._log.error("the %s could not answer %s %s%s", self._page, scope["method"], scope["path"][:200],
                            "" if trouble is None else f": {trouble.line()}",
                            exc_info=error if trouble is None else None)

    def _known(self, host: str) -> bool:
        return host in self._hosts or (self._numbers and _is_number(host))

    def _refusal(self, headers: Headers) -> tuple[int, str, str, str] | None:
        host = host_of(headers.get("host", ""))
        if not self._known(host):
            return 403, "UNKNOWN_HOST", "The page is not served under this host name.", self._unknown_host
        origin = headers.get("origin", "")
        if origin and not self._known(host_of(origin.partition("://")[2])):
            return (403, "OTHER_ORIGIN", "Pages of other sites may not ask here.", "")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 12 or int(length) > MOST_BODY_BYTES:
            return TOO_LARGE
        return None


class TooLarge(Exception):
    """A body without a declared length has grown too long."""


class _Limited:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > MOST_BODY_BYTES:
                raise TooLarge
        return message
