"""The way to an address, as gRPC would take it: name, HTTP proxy of the site, TCP; in bounded time, with reasons.

Tests: tests/silo/link/test_link.py.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from base64 import b64encode
from dataclasses import dataclass

from semisilo.common.errors import BadConfiguration, Unreachable
from semisilo.common.rpc.tls import split_address
from semisilo.common.text.describe import describe_bytes
from semisilo.common.text.logs import printable

__all__ = ["Way", "connect", "goes_around_proxy", "seconds_left", "way_to"]

_RESOLVE_SECONDS = 2.5
"""Of the 8 s of a diagnosis, so that a name server that says nothing is found out and named."""
_CONNECT_SECONDS = 3.0
"""For each address of a name, so that the second one is tried when the first swallows what it is sent. TCP repeats its
first packet after a second, so one that is lost does no harm."""
_PROXY_ANSWER_LIMIT_BYTES = 2**20
"""An answer to CONNECT is a few lines, with some proxies many; no more is kept of what a stranger sends."""
_WANTS_PASSWORD = ("401", "407")
_HOW_TO_WRITE_A_PROXY = ("Set https_proxy=http://user:password@host:port; in a password write %40 for @, %23 for # and "
                         "%2F for /.")


@dataclass(frozen=True, slots=True)
class Way:
    """Where to connect, and through what."""

    address: str
    host: str
    port: int
    proxy: urllib.parse.SplitResult | None = None


def way_to(address: str, *, use_http_proxy: bool = True) -> Way:
    """The way to "host:port" under this process's proxy settings.

    Raises: BadConfiguration when it is no address, or the proxy's is none.
    """
    host, port = split_address(address)
    return Way(address, host, port, proxy=None if not use_http_proxy or goes_around_proxy(address) else _named_proxy())


def goes_around_proxy(address: str) -> bool:
    """Whether `no_proxy` names an address: its name, a domain that it is in, its network ("10.0.0.0/8"), or "*" for
    all. gRPC and libraries read this list in different ways, so gRPC is told what is decided here.

    Raises: BadConfiguration when it is no address.
    """
    host, port = split_address(address)
    listed = next((os.environ[name] for name in ("no_grpc_proxy", "no_proxy") if os.environ.get(name)), "")
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    whole = host if ":" in host else f"{host}:{port}"
    return any(entry == "*" or _is_in_network(host, entry)
               or urllib.request.proxy_bypass_environment(whole, {"no": entry})  # type: ignore[attr-defined]
               for entry in entries)


def _is_in_network(host: str, entry: str) -> bool:
    """Whether a host that is written as a number is in a network, or is the same number."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


def _named_proxy() -> urllib.parse.SplitResult | None:
    """The proxy that gRPC would use: lower-case names only, as gRPC reads them.

    Raises: BadConfiguration where gRPC would go around what is named: it may hold a password, so it is not shown.
    """
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        text = os.environ.get(name, "")
        if text:
            try:
                parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
                if parts.scheme == "http" and parts.hostname and (parts.port is None or parts.port > 0):
                    return parts
            except ValueError:
                pass
            raise BadConfiguration(f"{name} does not name an HTTP proxy.", remedy=_HOW_TO_WRITE_A_PROXY)
    return None


def connect(way: Way, deadline: float) -> socket.socket:
    """A TCP connection to the address, through the proxy where there is one.

    Raises: Unreachable, saying whether the name, the host or the port is the trouble.
    """
    if way.proxy is None:
        return _dial(way.host, way.port, "the coordinator", deadline)
    host, port = way.proxy.hostname or "", way.proxy.port or 80
    connection = _dial(host, port, "the HTTP proxy", deadline)
    try:
        _ask_proxy(connection, way, f"{host}:{port}", deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def _dial(host: str, port: int, what: str, deadline: float) -> socket.socket:
    problem: OSError | None = None
    for family, kind, protocol, _, name in _resolve(host, port, what, deadline):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(_CONNECT_SECONDS, seconds_left(deadline)))
            connection.connect(name)
            return connection
        except OSError as error:
            connection.close()
            problem = error
    if isinstance(problem, ConnectionRefusedError):
        raise Unreachable(f"{host} refuses connections to port {port} ({what}): nothing listens there.",
                          remedy="Check the port, and that 'coordinator serve' is running." if what != "the HTTP proxy"
                          else "Check https_proxy.")
    if isinstance(problem, TimeoutError):
        raise Unreachable(f"No answer from {host} port {port} ({what}).",
                          remedy=f"A firewall may drop the connection: allow outgoing connections to {host} port "
                                 f"{port}, or set https_proxy to the proxy of this site.")
    raise Unreachable(f"{host} port {port} ({what}) cannot be reached: "
                      f"{(problem.strerror or str(problem)) if problem else 'no address'}.",
                      remedy="Check this machine's network.")


_Resolved = list[tuple[int, int, int, str, tuple[object, ...]]]


def _resolve(host: str, port: int, what: str, deadline: float) -> _Resolved:
    """Addresses of a name. In a thread of its own, because the system's resolver knows no time limit."""
    answers: list[_Resolved | OSError] = []

    def ask() -> None:
        try:
            answers.append(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            answers.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(min(_RESOLVE_SECONDS, seconds_left(deadline)))
    if not answers:
        raise Unreachable(f"The name {host!r} ({what}) is not resolved in time.", remedy="Check this machine's DNS.")
    if isinstance(answers[0], OSError):
        raise Unreachable(f"The name {host!r} ({what}) is not known: {answers[0].strerror or answers[0]}.",
                          remedy="Check the spelling of the address, and this machine's DNS.")
    return answers[0][:4]


def _ask_proxy(connection: socket.socket, way: Way, proxy: str, deadline: float) -> None:
    host = f"[{way.host}]" if ":" in way.host else way.host
    lines = [f"CONNECT {host}:{way.port} HTTP/1.1", f"Host: {host}:{way.port}"]
    if way.proxy is not None and way.proxy.username is not None:
        user, password = (urllib.parse.unquote(part or "") for part in (way.proxy.username, way.proxy.password))
        lines.append(f"Proxy-Authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    answer = b""
    try:
        connection.settimeout(seconds_left(deadline))
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in answer and len(answer) < _PROXY_ANSWER_LIMIT_BYTES:
            connection.settimeout(seconds_left(deadline))
            piece = connection.recv(4096)
            if not piece:
                break
            answer += piece
    except OSError as error:
        raise Unreachable(f"The HTTP proxy {proxy} does not answer: {error.strerror or error}.",
                          remedy="Check https_proxy.") from None
    words = answer.split(b"\r\n", 1)[0].split()
    status = words[1].decode("ascii", "replace")[:3] if len(words) > 1 and words[0].startswith(b"HTTP/") else ""
    if status.startswith("2") and b"\r\n\r\n" not in answer:
        raise Unreachable(f"The HTTP proxy {proxy} breaks off in the middle of its answer, after "
                          f"{describe_bytes(len(answer))}.", remedy="Check https_proxy, and the log of the proxy.")
    if status.startswith("2"):
        return
    # 407 is what a proxy should say; some, such as tinyproxy, say 401 to a wrong password.
    if status in _WANTS_PASSWORD and way.proxy is not None and way.proxy.username is not None:
        raise Unreachable(f"The HTTP proxy {proxy} does not accept the user name and password of https_proxy.",
                          remedy=_HOW_TO_WRITE_A_PROXY)
    if status in _WANTS_PASSWORD:
        raise Unreachable(f"The HTTP proxy {proxy} wants a user name and password.",
                          remedy=_HOW_TO_WRITE_A_PROXY)
    said = printable(answer.split(b"\r\n", 1)[0].decode("ascii", "replace"), limit=80) or "nothing"
    raise Unreachable(f"The HTTP proxy {proxy} does not connect to {way.address}; it said: {said}.",
                      remedy="Ask for the address to be allowed there, or name it in no_proxy.")


def seconds_left(deadline: float) -> float:
    """Seconds until a `time.monotonic` deadline, > 0.

    Raises: TimeoutError when there are none.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("out of time")
    return left
