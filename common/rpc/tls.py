"""Credentials and options of gRPC between silos and the coordinator. "Client" and "server" are gRPC's words."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semisilo.common.errors import BadConfiguration, NoSuchAddress, PortInUse
from semisilo.common.identity.certificates import coordinator_name

if TYPE_CHECKING:
    import grpc
    import grpc.aio

__all__ = [
    "MAX_CALLS", "MESSAGE_LIMIT_BYTES", "REQUEST_LIMIT_BYTES", "Credentials", "channel_credentials", "channel_options",
    "listen", "server_credentials", "server_options", "split_address",
]

MAX_CALLS = 16
"""Calls that one connection may have in flight; more are refused by the transport and may be tried again."""
MAX_CALLS_OF_STRANGERS = 4
"""The same at the port for enrolment, which takes one."""
HANDSHAKE_MS = 10_000
"""Longest TLS handshake: a few packets each way, which may be lost now and then."""
MAX_PENDING_CALLS = 16_384
"""Calls of all connections that may wait to be taken up. Above 1000, gRPC's own limit, it drops some at random, and so
many come at once where a thousand silos take part; a silo then sends its update anew."""
MESSAGE_LIMIT_BYTES = 8 * 2**20
"""Largest message either side takes: a chunk is 4 MiB at most, a manifest a few hundred KiB."""
REQUEST_LIMIT_BYTES = 4 * 2**20 + 64 * 1024
"""Largest that the coordinator takes: a chunk with what is around it. gRPC keeps what has come of a message in memory
until it is whole, and a silo may begin many."""

Options = list[tuple[str, Any]]
_STRANGERS: Options = [("grpc.max_connection_idle_ms", 10_000), ("grpc.max_connection_age_ms", 60_000),
                       ("grpc.max_connection_age_grace_ms", 10_000)]
"""A connection without a call ends, and one with calls that go on and on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A private key with its certificate."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes


def channel_options(federation: str, *, use_http_proxy: bool = True,
                    message_limit_bytes: int = MESSAGE_LIMIT_BYTES) -> Options:
    """Options of a silo's channel.

    The name in the coordinator's certificate is that of the federation, so the address may change. A ping when nothing
    has come for 45 s keeps what forgets quiet connections after 50 s (HAProxy as Debian installs it) or a minute
    (address translators) from doing so, and notices a dead path 20 s later. Coordinators take pings up to every 30 s;
    gRPC ignores unknown option names silently, so these are exactly the ones that were measured to work.
    """
    return [
        ("grpc.ssl_target_name_override", coordinator_name(federation)),
        ("grpc.max_receive_message_length", message_limit_bytes),
        ("grpc.max_send_message_length", message_limit_bytes),
        ("grpc.keepalive_time_ms", 45_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.ping_timeout_ms", 20_000),
        # gRPC's own 120 s would leave a silo idle for two minutes after the coordinator is back.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.enable_http_proxy", int(use_http_proxy)),
    ]


def server_options(*, message_limit_bytes: int = MESSAGE_LIMIT_BYTES, strangers: bool = False) -> Options:
    """Options of the coordinator's servers; without the ping interval, silos' pings end in GOAWAY too_many_pings.

    Args:
        strangers: of a port for callers without a certificate, who stay for one call.
    """
    return [
        *(_STRANGERS if strangers else []),
        # gRPC's own two minutes are as long as anybody may keep a connection that says nothing.
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_receive_message_length", min(message_limit_bytes, REQUEST_LIMIT_BYTES)),
        ("grpc.max_send_message_length", message_limit_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
        # A silo has a handful of calls in flight. Each may hold a message in memory, and gRPC's own limit is billions.
        ("grpc.max_concurrent_streams", MAX_CALLS_OF_STRANGERS if strangers else MAX_CALLS),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Else two coordinators may listen on one port, and the kernel deals the silos out between them.
        ("grpc.so_reuseport", 0),
    ]


def channel_credentials(*, authority_pem: bytes, own: Credentials | None = None) -> grpc.ChannelCredentials:
    """Trusts the pinned authority and nothing else; shows the silo's certificate where there is one."""
    import grpc  # late: `silo status` needs this module for `Credentials` alone

    if own is None:
        return grpc.ssl_channel_credentials(root_certificates=authority_pem)
    return grpc.ssl_channel_credentials(root_certificates=authority_pem, private_key=own.key_pem,
                                        certificate_chain=own.certificate_pem)


def server_credentials(current: Callable[[], Credentials], *,
                       silo_authority_pem: bytes | None = None) -> grpc.ServerCredentials:
    """The coordinator's side of the handshake, for one server: another needs its own.

    Args:
        current: gives the coordinator's credentials; asked at every handshake, so that a renewed certificate is shown
            without a restart. Must be quick and safe to call from any thread.
        silo_authority_pem: the authority whose certificates silos must show; None where they need none (enrolment).
    """
    import grpc

    required = silo_authority_pem is not None

    def configuration(own: Credentials) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(own.key_pem, own.certificate_pem)], silo_authority_pem)

    shown = current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # None for "as before", whenever that is so: gRPC drops what it shakes hands with for every new configuration,
        # also under another thread that shakes hands just then (grpc/grpc issue 36693), and crashes.
        nonlocal shown
        now = current()
        if now == shown:
            return None
        shown = now
        return configuration(now)

    # The stubs do not know of None, which grpc's own documentation names.
    return grpc.dynamic_ssl_server_credentials(configuration(shown), fetch,  # type: ignore[arg-type]
                                               require_client_authentication=required)


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> int:
    """Binds a server to "host:port"; port 0 takes a free one. Returns the port.

    Raises: PortInUse; NoSuchAddress; BadConfiguration when the machine does not allow the port.
    """
    host, port = split_address(address)
    try:
        bound = server.add_secure_port(address, credentials)
    except RuntimeError:
        bound = 0
    if bound:
        return bound
    # gRPC does not say why, so we ask the kernel the same question.
    reason = _bind_error(host, port)
    if reason is None or reason.errno == errno.EADDRINUSE:
        raise PortInUse(f"Another process listens on {address}.",
                        remedy="Stop it, or choose another port in federation.toml.")
    if reason.errno == errno.EADDRNOTAVAIL or isinstance(reason, socket.gaierror):
        # No wrong usage: when a machine starts, its network may come after its services, which try again.
        raise NoSuchAddress(f"Cannot listen on {address}: {reason.strerror}.",
                            remedy="Wait for the network that brings this address, or choose another one of this"
                                   " machine in federation.toml.")
    if reason.errno == errno.EACCES and 0 < port < 1024:
        raise BadConfiguration(f"Cannot listen on {address}: only root may open ports below 1024 here.",
                               remedy='Set [address] listen = "[::]:8443" in federation.toml and forward the port to'
                                      " it; docs/operations.md has another way, below Firewall.")
    raise BadConfiguration(f"Cannot listen on {address}: {reason.strerror}.",
                           remedy="Choose an address of this machine and a port that this user may open.")


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port"; an IPv6 host stands in brackets, "[::1]:8443".

    Raises: BadConfiguration when it is neither.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    if not colon or not plain or (":" in plain and not bracketed) or not (port.isascii() and port.isdigit()) \
            or not 0 <= int(port[:6]) <= 65535:
        raise BadConfiguration(f"{address[:300]!r} is not an address.", remedy='Write "host:port", for example '
                                                                             '"hub.example:8443" or "[::1]:8443".')
    return plain, int(port)


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(name)
    except OSError as error:
        return error
    return None
