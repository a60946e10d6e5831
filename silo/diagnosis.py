"""What a refused connection means. gRPC hides why a handshake failed, so the silo looks for itself.

In this order: its own certificate (issuer, dates), the way to the address (name, proxy, port), the coordinator's
certificate against the pinned authority, and what the coordinator does with the silo's certificate. gRPC servers send no
TLS alert: they just close when they do not like a certificate, so that case is told by what is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from common.errors import (
    CertificateExpired,
    ClockSkew,
    ConnectionRefusedByPeer,
    SemisiloError,
    Unreachable,
    WrongAuthority,
)
from common.identity import (
    check_silo_certificate,
    coordinator_name,
    key_from_pem,
    load_certificate,
    not_after_unix,
    not_before_unix,
    utc_text,
)
from common.logs import printable
from common.tls import split_address
from silo.identity_store import Identity, load_identity

__all__ = ["BUDGET_SECONDS", "diagnose", "diagnose_connection"]

BUDGET_SECONDS = 8.0
"""A diagnosis takes no longer than this, whatever the other side does."""
_RESOLVE_SECONDS = 2.5
_CONNECT_SECONDS = 3.0
_LISTEN_SECONDS = 1.5
_PROXY_ANSWER_LIMIT_BYTES = 8192
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4; empty SETTINGS
_HTTP2_SETTINGS = 4

# X509_V_ERR_* of OpenSSL's x509_vfy.h, as `ssl.SSLCertVerificationError.verify_code` gives them.
_NOT_YET_VALID, _HAS_EXPIRED, _HOSTNAME_MISMATCH = 9, 10, 62


def diagnose(home: Path, address: str, now: float, *, use_http_proxy: bool = True,
             budget_seconds: float = BUDGET_SECONDS) -> SemisiloError:
    """Why the coordinator at `address` cannot be worked with. Returns the error; blocks for up to `budget_seconds`.

    Args:
        home: the silo's home folder.
        address: the coordinator's work port, "host:port".
        now: this machine's clock, Unix seconds.
    """
    try:
        identity = load_identity(home)
        return _own_certificate(identity, now) or diagnose_connection(
            address, authority_pem=identity.authority_pem, federation=identity.federation,
            own_files=(identity.folder / "certificate.pem", identity.folder / "key.pem"), now=now,
            use_http_proxy=use_http_proxy, budget_seconds=budget_seconds)
    except SemisiloError as error:
        return error


def diagnose_connection(address: str, *, authority_pem: bytes, federation: str, own_files: tuple[Path, Path] | None,
                        now: float, use_http_proxy: bool = True,
                        budget_seconds: float = BUDGET_SECONDS) -> SemisiloError:
    """As `diagnose`, without looking at the silo's own dates.

    Args:
        authority_pem: the pinned authority.
        own_files: certificate and key of the silo; None at the enrolment port, which wants none.
    Returns: what is wrong; `Unreachable` (to be tried again) when nothing is wrong any more.
    """
    deadline = time.monotonic() + budget_seconds
    try:
        way = _Way(address, *split_address(address), proxy=_proxy_for(address) if use_http_proxy else None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(cadata=authority_pem.decode("ascii"))
        if own_files is not None:
            context.load_cert_chain(own_files[0], own_files[1])
        with _connect(way, deadline) as plain:
            try:
                _greet(plain, context, coordinator_name(federation), deadline)
            except ssl.SSLCertVerificationError as error:
                return _coordinator_not_trusted(error, way, federation, now=now, deadline=deadline)
            except ssl.SSLEOFError as error:
                return _refused_without_reason(error, address)
            except ssl.SSLError as error:
                return _refused(error, address, shows_certificate=own_files is not None)
            except TimeoutError:
                return Unreachable(f"{address} accepts connections but does not answer.",
                                   remedy="Check that the address is the coordinator's; a firewall between may hold "
                                          "the connection.")
            except _ClosedAfterHandshakeError:
                return _certificate_refused(address, own_files, now=now)
            except (ConnectionError, _NotGrpcError) as error:
                return _refused_without_reason(error, address)
    except SemisiloError as error:
        return error
    except OSError as error:
        return Unreachable(f"The connection to {address} failed: {error.strerror or error}.",
                           remedy="Check the network; it is tried again.")
    return Unreachable(f"The coordinator at {address} answers now; the connection failed before.",
                       remedy="It is tried again.")


class _ClosedAfterHandshakeError(Exception):
    """The other side has proved its name, seen our certificate or its absence, and closed."""


class _NotGrpcError(Exception):
    """TLS works, but what answers speaks no HTTP/2."""


@dataclass(frozen=True, slots=True)
class _Way:
    address: str
    host: str
    port: int
    proxy: urllib.parse.SplitResult | None = None


def _own_certificate(identity: Identity, now: float) -> SemisiloError | None:
    try:
        check_silo_certificate(
            load_certificate(identity.credentials.certificate_pem), load_certificate(identity.authority_pem),
            silo=identity.silo, public_key=key_from_pem(identity.credentials.key_pem).public_key())
    except WrongAuthority as error:
        return WrongAuthority(error.text, remedy=f"Restore {identity.folder} from a backup, or ask the coordinator's "
                                                 f"operator to run: coordinator invite {identity.silo}")
    if now > identity.not_after_unix:
        return CertificateExpired(
            f"The certificate of silo '{identity.silo}' ended on {utc_text(identity.not_after_unix)}; this machine's "
            f"clock says {utc_text(now)}.",
            remedy=f"Ask the coordinator's operator to run: coordinator invite {identity.silo}")
    if now < identity.not_before_unix:
        return ClockSkew(
            f"The certificate of silo '{identity.silo}' begins on {utc_text(identity.not_before_unix)}, but this "
            f"machine's clock says {utc_text(now)}: it is behind.",
            remedy="Set this machine's clock, for example with NTP.")
    return None


# The way to the address


def _proxy_for(address: str) -> urllib.parse.SplitResult | None:
    """The proxy that gRPC would use: lower-case names only, as gRPC reads them."""
    host, _ = split_address(address)
    skipped = next((os.environ[name] for name in ("no_grpc_proxy", "no_proxy") if os.environ.get(name)), "")
    if skipped and urllib.request.proxy_bypass_environment(host, {"no": skipped}):  # type: ignore[attr-defined]
        return None
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        text = os.environ.get(name, "")
        if text:
            parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
            return parts if parts.hostname else None
    return None


def _connect(way: _Way, deadline: float) -> socket.socket:
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
            connection.settimeout(min(_CONNECT_SECONDS, _left(deadline)))
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
    thread.join(min(_RESOLVE_SECONDS, _left(deadline)))
    if not answers:
        raise Unreachable(f"The name {host!r} ({what}) is not resolved in time.", remedy="Check this machine's DNS.")
    if isinstance(answers[0], OSError):
        raise Unreachable(f"The name {host!r} ({what}) is not known: {answers[0].strerror or answers[0]}.",
                          remedy="Check the spelling of the address, and this machine's DNS.")
    return answers[0][:4]


def _ask_proxy(connection: socket.socket, way: _Way, proxy: str, deadline: float) -> None:
    host = f"[{way.host}]" if ":" in way.host else way.host
    lines = [f"CONNECT {host}:{way.port} HTTP/1.1", f"Host: {host}:{way.port}"]
    if way.proxy is not None and way.proxy.username is not None:
        user, password = (urllib.parse.unquote(part or "") for part in (way.proxy.username, way.proxy.password))
        lines.append(f"Proxy-Authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    answer = b""
    try:
        connection.settimeout(_left(deadline))
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in answer and len(answer) < _PROXY_ANSWER_LIMIT_BYTES:
            connection.settimeout(_left(deadline))
            piece = connection.recv(1024)
            if not piece:
                break
            answer += piece
    except OSError as error:
        raise Unreachable(f"The HTTP proxy {proxy} does not answer: {error.strerror or error}.",
                          remedy="Check https_proxy.") from None
    words = answer.split(b"\r\n", 1)[0].split()
    status = words[1].decode("ascii", "replace")[:3] if len(words) > 1 and words[0].startswith(b"HTTP/") else ""
    if status.startswith("2"):
        return
    if status == "407":
        raise Unreachable(f"The HTTP proxy {proxy} wants a user name and password.",
                          remedy="Set https_proxy=http://user:password@host:port.")
    said = printable(answer.split(b"\r\n", 1)[0].decode("ascii", "replace"), limit=80) or "nothing"
    raise Unreachable(f"The HTTP proxy {proxy} does not connect to {way.address}; it said: {said}.",
                      remedy="Ask for the address to be allowed there, or name it in no_proxy.")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("out of time")
    return left


# The handshake


def _greet(plain: socket.socket, context: ssl.SSLContext, name: str, deadline: float) -> None:
    """Handshake, then the first frame of HTTP/2: in TLS 1.3 a server judges our certificate only after the handshake
    has ended for us, so its refusal comes where the first answer should.

    We listen before we speak (gRPC servers speak first): a server that closes with bytes of ours unread resets the
    connection, and the reset overtakes the alert that says why.
    Raises: ssl.SSLError, OSError, _NotGrpcError.
    """
    plain.settimeout(_left(deadline))
    with context.wrap_socket(plain, server_hostname=name) as secured:
        frame = b""
        with contextlib.suppress(TimeoutError):
            secured.settimeout(min(_LISTEN_SECONDS, _left(deadline) / 2))
            frame = _piece(secured, 9)
        if not frame:
            secured.settimeout(_left(deadline))
            secured.sendall(_HTTP2_HELLO)
        while len(frame) < 9:
            secured.settimeout(_left(deadline))
            frame += _piece(secured, 9 - len(frame))
        if frame[3] != _HTTP2_SETTINGS:
            raise _NotGrpcError


def _piece(secured: ssl.SSLSocket, size_bytes: int) -> bytes:
    try:
        piece = secured.recv(size_bytes)
    except (ConnectionError, ssl.SSLEOFError):
        piece = b""
    if not piece:
        raise _ClosedAfterHandshakeError
    return piece


def _coordinator_not_trusted(error: ssl.SSLCertVerificationError, way: _Way, federation: str, *, now: float,
                             deadline: float) -> SemisiloError:
    shown = _peek(way, deadline)
    expected = coordinator_name(federation)
    ends = f" on {utc_text(not_after_unix(shown))}" if shown else ""
    if error.verify_code == _HAS_EXPIRED:
        return ClockSkew(f"The coordinator's certificate ended{ends}; this machine's clock says {utc_text(now)}.",
                         remedy="Set this machine's clock. If it is right, ask the coordinator's operator to check the "
                                "coordinator's clock and to restart 'coordinator serve', which renews the certificate.")
    if error.verify_code == _NOT_YET_VALID:
        begins = f" on {utc_text(not_before_unix(shown))}" if shown else " in the future"
        return ClockSkew(f"The coordinator's certificate begins{begins}, but this machine's clock says "
                         f"{utc_text(now)}.",
                         remedy="Set this machine's clock, for example with NTP; if it is right, the coordinator's.")
    if error.verify_code == _HOSTNAME_MISMATCH:
        return WrongAuthority(f"What answers at {way.address} is named {_names(shown)}, not '{expected}'.",
                              remedy="Check the address with the coordinator's operator.")
    return WrongAuthority(
        f"What answers at {way.address} shows a certificate of {_issuer(shown)} for {_names(shown)}, not one of the "
        f"authority of federation '{federation}'.",
        remedy="Check the address; if it is right, ask the coordinator's operator for a new invitation. A box that "
               "inspects TLS traffic on the way must let this address through.")


def _refused(error: ssl.SSLError, address: str, *, shows_certificate: bool) -> SemisiloError:
    """A TLS alert from the other side, or bytes that are no TLS."""
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    again = "Check the address; if it is right, ask the coordinator's operator for a new invitation."
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER" in reason:
        return ConnectionRefusedByPeer(f"What answers at {address} does not speak TLS.",
                                       remedy="Check the port: it is the coordinator's work port that is wanted.")
    if "CERTIFICATE_REQUIRED" in reason or ("HANDSHAKE_FAILURE" in reason and not shows_certificate):
        return WrongAuthority(f"The coordinator at {address} wants a certificate of this federation.",
                              remedy=again if shows_certificate else "Check the port: this one is not for enrolment.")
    if "CERTIFICATE_EXPIRED" in reason:
        return ClockSkew(f"The coordinator at {address} says that this silo's certificate is not valid at this time; "
                         "by this machine's clock it is.",
                         remedy="Compare the clocks of both machines, and set the wrong one.")
    if "ALERT" in reason and any(word in reason for word in ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN",
                                                             "UNSUPPORTED_CERTIFICATE", "DECRYPT_ERROR")):
        return WrongAuthority(f"The coordinator at {address} does not accept this silo's certificate: it was issued by "
                              "another authority.", remedy=again)
    return ConnectionRefusedByPeer(f"The TLS handshake with {address} failed: {printable(reason.lower(), limit=80)}.",
                                   remedy="Check the address and port, and whether a box on the way inspects TLS.")


def _certificate_refused(address: str, own_files: tuple[Path, Path] | None, *, now: float) -> SemisiloError:
    """The coordinator is the right one and closed when it had seen what we showed; our own checks have passed."""
    if own_files is None:
        return ConnectionRefusedByPeer(f"The coordinator at {address} closed the connection because this machine shows no "
                                       "certificate.", remedy="Check the port: this one is not for enrolment.")
    try:
        own = load_certificate(own_files[0].read_bytes())
    except (OSError, SemisiloError):
        valid = ""
    else:
        valid = (f" It is valid from {utc_text(not_before_unix(own))} to {utc_text(not_after_unix(own))}; this machine's "
                 f"clock says {utc_text(now)}.")
    return ConnectionRefusedByPeer(
        f"The coordinator at {address} does not accept this silo's certificate and gives no reason.{valid}",
        remedy="Compare the clocks of both machines; if they agree, ask the coordinator's operator for a new invitation.")


def _refused_without_reason(error: Exception, address: str) -> SemisiloError:
    if isinstance(error, _NotGrpcError):
        return ConnectionRefusedByPeer(f"What answers at {address} is not a coordinator.",
                                       remedy="Check the address and port.")
    return ConnectionRefusedByPeer(f"{address} closed the connection during the handshake and gave no reason.",
                                   remedy="Check the address; ask the coordinator's operator whether 'coordinator "
                                          "serve' is running there, and whether a proxy or firewall is between.")


def _peek(way: _Way, deadline: float) -> x509.Certificate | None:
    """The certificate that the other side shows, trusted for nothing but the text of an error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(SemisiloError, OSError, ValueError), _connect(way, deadline) as plain:
        plain.settimeout(_left(deadline))
        with context.wrap_socket(plain) as secured:
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    return None


def _names(certificate: x509.Certificate | None) -> str:
    names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound, x509.DuplicateExtension, ValueError, AttributeError):
        assert certificate is not None
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = found.get_values_for_type(x509.DNSName)
    return ", ".join(f"'{printable(name, limit=80)}'" for name in names[:3]) or "something unnamed"


def _issuer(certificate: x509.Certificate | None) -> str:
    if certificate is None:
        return "another authority"
    for kind in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME):
        with contextlib.suppress(ValueError):
            names = certificate.issuer.get_attributes_for_oid(kind)
            if names:
                return f"'{printable(str(names[0].value), limit=80)}'"
    return "another authority"
