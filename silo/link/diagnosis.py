"""What a refused connection means. gRPC hides why a handshake failed, so the silo looks for itself.

In this order: its own certificate (issuer, dates), the way to the address (name, proxy, port), the coordinator's
certificate against the pinned authority, and what the coordinator does with the silo's certificate. gRPC servers send
no TLS alert: they just close when they do not like a certificate, so that case is told by what is left.

A certificate has ended when both machines say so. By one clock alone it may be that clock that is wrong, and a silo
that gives up for good needs a person; one that tries again needs nobody.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from semisilo.common.errors import (
    CertificateExpired,
    ClockSkew,
    ConnectionRefusedByPeer,
    SemisiloError,
    Unreachable,
    WrongAuthority,
)
from semisilo.common.identity.certificates import (
    check_silo_certificate,
    coordinator_name,
    key_from_pem,
    load_certificate,
    not_after_unix,
    not_before_unix,
    utc_text,
)
from semisilo.common.system_errors import remedy_of
from semisilo.common.text.logs import printable
from semisilo.silo.link.dialling import Way, connect, seconds_left, way_to
from semisilo.silo.site.identity_store import Identity, load_identity

__all__ = ["BUDGET_SECONDS", "AnswersNow", "StrangerAnswers", "by_own_clock", "diagnose", "diagnose_connection"]

BUDGET_SECONDS = 8.0
"""A diagnosis takes no longer than this, whatever the other side does: a person waits for it at `silo check`. Enough
for the name, a connection or two, TLS and HTTP/2, each with a limit of its own."""
_LISTEN_SECONDS = 1.5
"""HTTP/2 servers speak first, after one round trip. Who is silent for so long is asked; the rest of the time is his."""
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4; empty SETTINGS
_HTTP2_SETTINGS = 4

# X509_V_ERR_* of OpenSSL's x509_vfy.h, as `ssl.SSLCertVerificationError.verify_code` gives them.
_NOT_YET_VALID, _HAS_EXPIRED, _HOSTNAME_MISMATCH = 9, 10, 62


class AnswersNow(Unreachable):
    """Nothing is wrong any more: what failed was the moment."""


class StrangerAnswers(Unreachable):
    """Something else answers where this silo's coordinator has answered before: a device that inspects TLS, the login
    page of a network, a name that is being moved. It passes, or a person sees to it at the other side; nothing was
    sent."""


def diagnose(home: Path, address: str, now: float, *, was_known: bool = False, use_http_proxy: bool = True,
             budget_seconds: float = BUDGET_SECONDS) -> SemisiloError:
    """Why the coordinator at `address` cannot be worked with. Returns the error; blocks for up to `budget_seconds`.

    Args:
        home: the silo's home folder.
        address: the coordinator's work port, "host:port".
        now: this machine's clock, Unix seconds.
        was_known: whether the coordinator has answered this silo there since its certificate was issued. What the other
            side shows or says is `StrangerAnswers` then, to be tried again, and no `WrongAuthority`; the silo's own
            certificate is still looked at as ever.
    """
    try:
        identity = load_identity(home)
        _check_own_certificate(identity)
        found = diagnose_connection(
            address, authority_pem=identity.authority_pem, federation=identity.federation,
            own_files=(identity.folder / "certificate.pem", identity.folder / "key.pem"), now=now,
            own_dates=_own_dates(identity, now), use_http_proxy=use_http_proxy, budget_seconds=budget_seconds)
    except SemisiloError as error:
        return error
    if was_known and isinstance(found, WrongAuthority):
        return StrangerAnswers(f"{found.text} The coordinator has answered there before; nothing is sent to what"
                               " answers now.", remedy=f"It is tried again. {found.remedy}")
    return found


def by_own_clock(error: SemisiloError, identity: Identity, now: float) -> SemisiloError:
    """What an answer of the coordinator's means: that the certificate has ended is believed where this machine's clock
    says so too, and is a matter of clocks, to be tried again, where it does not.

    Args:
        now: this machine's clock, Unix seconds.
    """
    if not isinstance(error, CertificateExpired) or now > identity.not_after_unix:
        return error
    return ClockSkew(f"The coordinator says that the certificate of silo '{identity.silo}' has ended; by this "
                     f"machine's clock it lasts until {utc_text(identity.not_after_unix)}.",
                     remedy="Compare the clocks of both machines, and set the wrong one.")


def diagnose_connection(address: str, *, authority_pem: bytes, federation: str, own_files: tuple[Path, Path] | None,
                        now: float, own_dates: SemisiloError | None = None, use_http_proxy: bool = True,
                        budget_seconds: float = BUDGET_SECONDS) -> SemisiloError:
    """As `diagnose`, without looking at the silo's own certificate.

    Args:
        authority_pem: the pinned authority.
        own_files: certificate and key of the silo; None at the enrolment port, which wants none.
        own_dates: what this machine's clock has against the silo's certificate; it holds where the coordinator refuses
            that.
    Returns: what is wrong; `AnswersNow` (to be tried again) when nothing is wrong any more.
    """
    found = _look(address, authority_pem=authority_pem, federation=federation, own_files=own_files, now=now,
                  own_dates=own_dates, use_http_proxy=use_http_proxy, budget_seconds=budget_seconds)
    if own_dates is None or not isinstance(found, Unreachable):
        return found
    return type(found)(f"{found.text} {own_dates.text}", remedy=f"{found.remedy} Check this machine's clock.")


def _look(address: str, *, authority_pem: bytes, federation: str, own_files: tuple[Path, Path] | None, now: float,
          own_dates: SemisiloError | None, use_http_proxy: bool, budget_seconds: float) -> SemisiloError:
    deadline = time.monotonic() + budget_seconds
    try:
        way = way_to(address, use_http_proxy=use_http_proxy)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(cadata=authority_pem.decode("ascii"))
        if own_files is not None:
            context.load_cert_chain(own_files[0], own_files[1])
        with connect(way, deadline) as plain:
            try:
                _greet(plain, context, coordinator_name(federation), deadline)
            except ssl.SSLCertVerificationError as error:
                return _coordinator_not_trusted(error, way, federation, now=now, deadline=deadline)
            except ssl.SSLEOFError as error:
                return _refused_without_reason(error, address)
            except ssl.SSLError as error:
                return _refused(error, address, shows_certificate=own_files is not None, own_dates=own_dates)
            except TimeoutError:
                return Unreachable(f"{address} accepts connections but does not answer.",
                                   remedy="Check that the address is the coordinator's; a firewall between may hold "
                                          "the connection.")
            except _ClosedAfterHandshakeError:
                return own_dates or _certificate_refused(address, own_files, now=now)
            except (ConnectionError, _NotGrpcError) as error:
                return _refused_without_reason(error, address)
    except SemisiloError as error:
        return error
    except OSError as error:
        return Unreachable(f"The connection to {address} failed: {error.strerror or error}.",
                           remedy=f"{remedy_of(error.errno) or 'Check the network'}; it is tried again.")
    return AnswersNow(f"The coordinator at {address} answers now; the connection failed before.",
                      remedy="It is tried again.")


class _ClosedAfterHandshakeError(Exception):
    """The other side has proved its name, seen our certificate or its absence, and closed."""


class _NotGrpcError(Exception):
    """TLS works, but what answers speaks no HTTP/2."""


def _check_own_certificate(identity: Identity) -> None:
    """Raises: WrongAuthority when the pinned authority has not issued it."""
    try:
        check_silo_certificate(
            load_certificate(identity.credentials.certificate_pem), load_certificate(identity.authority_pem),
            silo=identity.silo, public_key=key_from_pem(identity.credentials.key_pem).public_key())
    except WrongAuthority as error:
        raise WrongAuthority(error.text, remedy=f"Restore {identity.folder} from a backup, or ask the coordinator's "
                                                f"operator to run: coordinator invite {identity.silo}") from None


def _own_dates(identity: Identity, now: float) -> SemisiloError | None:
    """What this machine's clock has against the silo's certificate."""
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


def _greet(plain: socket.socket, context: ssl.SSLContext, name: str, deadline: float) -> None:
    """Handshake, then the first frame of HTTP/2: in TLS 1.3 a server judges our certificate only after the handshake
    has ended for us, so its refusal comes where the first answer should.

    We listen before we speak (gRPC servers speak first): a server that closes with bytes of ours unread resets the
    connection, and the reset overtakes the alert that says why.
    Raises: ssl.SSLError, OSError, _NotGrpcError.
    """
    plain.settimeout(seconds_left(deadline))
    with context.wrap_socket(plain, server_hostname=name) as secured:
        frame = b""
        with contextlib.suppress(TimeoutError):
            secured.settimeout(min(_LISTEN_SECONDS, seconds_left(deadline) / 2))
            frame = _piece(secured, 9)
        if not frame:
            secured.settimeout(seconds_left(deadline))
            secured.sendall(_HTTP2_HELLO)
        while len(frame) < 9:
            secured.settimeout(seconds_left(deadline))
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


def _coordinator_not_trusted(error: ssl.SSLCertVerificationError, way: Way, federation: str, *, now: float,
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
        remedy="Check the address; if it is right, ask the coordinator's operator for a new invitation. A device "
               "that inspects TLS traffic must let this address through.")


def _refused(error: ssl.SSLError, address: str, *, shows_certificate: bool,
             own_dates: SemisiloError | None) -> SemisiloError:
    """A TLS alert from the other side, or bytes that are no TLS."""
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    again = "Check the address; if it is right, ask the coordinator's operator for a new invitation."
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER" in reason:
        return ConnectionRefusedByPeer(f"What answers at {address} does not speak TLS.",
                                       remedy="Check the port: it is the coordinator's work port that is wanted.")
    if "CERTIFICATE_REQUIRED" in reason or ("HANDSHAKE_FAILURE" in reason and not shows_certificate):
        return WrongAuthority(f"The coordinator at {address} wants a certificate of this federation.",
                              remedy=again if shows_certificate else "Check the port: this one is not for enrolment.")
    if "CERTIFICATE_EXPIRED" in reason or "BAD_CERTIFICATE" in reason:  # "bad" is what OpenSSL says of "not yet valid"
        return own_dates or ClockSkew(
            f"The coordinator at {address} says that this silo's certificate is not valid at this time; by this "
            "machine's clock it is.", remedy="Compare the clocks of both machines, and set the wrong one.")
    if "ALERT" in reason and any(word in reason for word in ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN",
                                                             "UNSUPPORTED_CERTIFICATE", "DECRYPT_ERROR")):
        return WrongAuthority(f"The coordinator at {address} does not accept this silo's certificate: it was issued by "
                              "another authority.", remedy=again)
    return ConnectionRefusedByPeer(f"The TLS handshake with {address} failed: {printable(reason.lower(), limit=80)}.",
                                   remedy="Check the address and port, and whether a device in between inspects TLS.")


def _certificate_refused(address: str, own_files: tuple[Path, Path] | None, *, now: float) -> SemisiloError:
    """The coordinator is the right one and closed when it had seen what we showed; our own checks have passed."""
    if own_files is None:
        return ConnectionRefusedByPeer(f"The coordinator at {address} closed the connection because this machine shows "
                                       "no certificate.", remedy="Check the port: this one is not for enrolment.")
    try:
        own = load_certificate(own_files[0].read_bytes())
    except (OSError, SemisiloError):
        valid = ""
    else:
        valid = (f" It is valid from {utc_text(not_before_unix(own))} to {utc_text(not_after_unix(own))}; this "
                 f"machine's clock says {utc_text(now)}.")
    return ConnectionRefusedByPeer(
        f"The coordinator at {address} does not accept this silo's certificate and gives no reason.{valid}",
        remedy="Compare the clocks of both machines; if they agree, ask the coordinator's operator for a new "
               "invitation.")


def _refused_without_reason(error: Exception, address: str) -> SemisiloError:
    if isinstance(error, _NotGrpcError):
        return ConnectionRefusedByPeer(f"What answers at {address} is not a coordinator.",
                                       remedy="Check the address and port.")
    return ConnectionRefusedByPeer(f"{address} closed the connection during the handshake and gave no reason.",
                                   remedy="Check the address; ask the coordinator's operator whether 'coordinator "
                                          "serve' is running there, and whether a proxy or firewall is between.")


def _peek(way: Way, deadline: float) -> x509.Certificate | None:
    """The certificate that the other side shows, trusted for nothing but the text of an error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(SemisiloError, OSError, ValueError), connect(way, deadline) as plain:
        plain.settimeout(seconds_left(deadline))
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
