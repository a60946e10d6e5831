"""`silo check`, the way to the coordinator: address, proxy, TLS, an authenticated call, clocks and versions.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semisilo.common import __version__
from semisilo.common.errors import CertificateRevoked, ClockSkew, SemisiloError, UnknownSilo, Unreachable
from semisilo.common.identity.certificates import coordinator_name, utc_text
from semisilo.common.text.logs import printable
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.link.diagnosis import AnswersNow, diagnose
from semisilo.silo.link.dialling import Way, connect, goes_around_proxy, way_to
from semisilo.silo.site.disclosures import DisclosureLog, message
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import Identity

if TYPE_CHECKING:
    from semisilo.common.wire import round_service_pb2 as pb

__all__ = ["look_at_link"]

_CONNECT_SECONDS = 6.0
_CALL_SECONDS = 8.0
_SKEW_SECONDS, _WORST_SKEW_SECONDS = 30.0, 300.0
"""More than the second is refused at enrolment (docs/federation.md, "Certificates")."""


def look_at_link(home: SiloHome, identity: Identity, *, now: Callable[[], float],
                 use_http_proxy: bool = True) -> tuple[list[Finding], pb.DescribeStudyResponse | None]:
    """Goes the way that `silo join` goes; the findings, and what the coordinator says of its study."""
    address = identity.address
    try:
        way = way_to(address, use_http_proxy=use_http_proxy)
    except SemisiloError as error:
        return [bad("proxy", error)], None
    proxy = _proxy(way, use_http_proxy)
    try:
        reached = _reach(way)
    except SemisiloError as error:
        return [proxy, bad("address", error)], None
    findings = [proxy, reached]
    try:
        response, began, ended = _ask_again(home, identity, now, use_http_proxy=use_http_proxy)
    except _UnrecordedError as error:
        return [*findings, Finding(what="record", state="bad", text=f"{home.disclosures}: {error}.",
                                   remedy="What leaves must be recorded: free some space, or the right to write it."
                                   )], None
    except _TooOldError:
        return [*findings, _tls(identity), Finding(
            what="coordinator", state="warning",
            text="Its version is older and does not know this check: it can be reached and has the right name; clocks, "
                 "study and forecast stay unknown.",
            remedy="Ask the coordinator's operator to upgrade semisilo.")], None
    except (CertificateRevoked, UnknownSilo, ClockSkew) as error:
        return [*findings, _tls(identity), bad("coordinator", error)], None
    except SemisiloError as error:
        return [*findings, bad("TLS" if not isinstance(error, Unreachable) else "coordinator", error)], None
    findings.append(_tls(identity))
    findings.append(Finding(what="coordinator", state="ok",
                            text=f"accepts this silo as a member; answers in {1000 * (ended - began):.0f} ms, "
                                 "including the handshake",
                            facts={"seconds": round(ended - began, 4)}))
    findings.append(_clock(response, here=(began + ended) / 2))
    findings.append(_versions(printable(response.version, limit=64)))
    return findings, response


class _TooOldError(Exception):
    """The coordinator does not know the call."""


class _UnrecordedError(Exception):
    """What would leave cannot be written down here."""


def _reach(way: Way) -> Finding:
    """Name and TCP connection, with the time of both. Raises: Unreachable."""
    began = time.monotonic()
    with connect(way, began + _CONNECT_SECONDS) as connection:
        took, peer = time.monotonic() - began, connection.getpeername()[0]
    through = f" through the proxy {way.proxy.hostname}" if way.proxy is not None else f" ({peer})"
    return Finding(what="address", state="ok", text=f"{way.address}{through} accepts a connection after "
                                                    f"{1000 * took:.0f} ms", facts={"seconds": round(took, 4)})


def _proxy(way: Way, use_http_proxy: bool) -> Finding:
    """What the environment says; user names and passwords in it are not shown."""
    if way.proxy is not None:
        return Finding(what="proxy", state="ok", text=f"{way.proxy.hostname}:{way.proxy.port or 80}, from the "
                                                      "environment")
    capitals = [name for name in ("HTTPS_PROXY", "HTTP_PROXY") if os.environ.get(name)]
    if capitals and use_http_proxy and not any(os.environ.get(name.lower()) for name in capitals):
        return Finding(what="proxy", state="warning",
                       text=f"{capitals[0]} is set, but connections heed lower-case names only.",
                       remedy=f"If this site needs the proxy, set {capitals[0].lower()} as well.")
    return Finding(what="proxy", state="ok", text="none: connects directly")


def _tls(identity: Identity) -> Finding:
    return Finding(what="TLS", state="ok", text=f"the other side is {coordinator_name(identity.federation)}, "
                                                "certified by the authority of the invitation")


def _question(now: float) -> pb.DescribeStudyRequest:
    from semisilo.common.wire import round_service_pb2 as pb

    request = pb.DescribeStudyRequest(version=__version__)
    request.silo_time.FromMicroseconds(round(now * 1e6))
    return request


def _ask_again(home: SiloHome, identity: Identity, now: Callable[[], float], *,
               use_http_proxy: bool) -> tuple[pb.DescribeStudyResponse, float, float]:
    """As `_ask`; once more where the call failed and the connection works when it is looked at, as `silo join` would.

    Raises: SemisiloError, with what is wrong where that can be found out; _TooOldError; _UnrecordedError.
    """
    try:
        return _ask(home, identity, now, use_http_proxy=use_http_proxy)
    except (CertificateRevoked, UnknownSilo, ClockSkew):
        raise
    except SemisiloError as error:
        found = diagnose(home.folder, identity.address, now(), use_http_proxy=use_http_proxy)
        if not isinstance(error, Unreachable) and isinstance(found, Unreachable):
            raise
        if not isinstance(found, AnswersNow):
            raise found from None
    try:
        return _ask(home, identity, now, use_http_proxy=use_http_proxy)
    except Unreachable as error:
        raise Unreachable(f"{error.text} It accepts connections; two calls failed.",
                          remedy="Try again; the coordinator may be overloaded, or a proxy or firewall between may cut "
                                 "calls.") from None


def _ask(home: SiloHome, identity: Identity, now: Callable[[], float], *,
         use_http_proxy: bool) -> tuple[pb.DescribeStudyResponse, float, float]:
    """(the answer, when it was asked for, when it came); the question is recorded before it leaves.

    Raises: SemisiloError; _TooOldError; _UnrecordedError.
    """
    try:
        DisclosureLog(home.disclosures, authority=identity.authority).record(message(
            "check", _question(now()).SerializeToString(), update_id=f"check {__version__}",
            text="a question about the study: this silo's version and clock"))
    except OSError as error:
        raise _UnrecordedError(error.strerror) from None
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    from semisilo.common.rpc.grpc_errors import from_rpc_error
    from semisilo.common.rpc.tls import channel_credentials, channel_options
    from semisilo.common.wire import round_service_pb2_grpc as pb_grpc

    with grpc.secure_channel(
            identity.address, channel_credentials(authority_pem=identity.authority_pem, own=identity.credentials),
            options=channel_options(identity.federation, use_http_proxy=use_http_proxy
                                    and not goes_around_proxy(identity.address))) as channel:
        stub: Any = pb_grpc.RoundServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            began = now()
            response: pb.DescribeStudyResponse = stub.DescribeStudy(_question(began), timeout=_CALL_SECONDS)
            return response, began, now()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise _TooOldError from None
            raise from_rpc_error(error) from None


def _clock(response: pb.DescribeStudyResponse, *, here: float) -> Finding:
    """The coordinator's clock against ours in the middle of the call, give or take half of it."""
    there = response.coordinator_time.seconds + response.coordinator_time.nanos / 1e9
    skew = here - there
    facts = {"skew_seconds": round(skew, 3)}
    which = "ahead of" if skew > 0 else "behind"
    if abs(skew) <= _SKEW_SECONDS:
        return Finding(what="clock", state="ok", text=f"{abs(skew):.1f} s {which} the coordinator's", facts=facts)
    text = (f"This machine's clock is {abs(skew):.0f} s {which} the coordinator's: {_moment(here)} here, "
            f"{_moment(there)} there.")
    remedy = "Set this machine's clock, for example with NTP; if it is right, tell the coordinator's operator."
    state: Any = "bad" if abs(skew) > _WORST_SKEW_SECONDS else "warning"
    return Finding(what="clock", state=state, text=text, remedy=remedy, facts=facts)


def _moment(unix: float) -> str:
    """Any moment that a stranger may send."""
    try:
        return utc_text(unix)
    except (ValueError, OverflowError, OSError):
        return "a time that cannot be"


def _versions(theirs: str) -> Finding:
    facts = {"here": __version__, "there": theirs}
    if theirs == __version__:
        return Finding(what="version", state="ok", text=f"semisilo {__version__} on both sides", facts=facts)
    return Finding(what="version", state="warning", text=f"semisilo {__version__} here, {theirs or 'unknown'} at the "
                                                         "coordinator.",
                   remedy="Install the coordinator's version here, if tasks are refused.", facts=facts)
