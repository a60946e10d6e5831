"""How a silo gets its certificate and keeps it fresh. The private key is made here and never leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric import ec

from semisilo.common.errors import (
    ClockSkew,
    ConnectionRefusedByPeer,
    InvitationExpired,
    SemisiloError,
    StorageDamaged,
    TooManyCalls,
    Unreachable,
    UsageError,
    WrongAuthority,
)
from semisilo.common.identity.certificates import (
    certificate_pem,
    check_silo_certificate,
    fingerprint,
    load_certificate,
    make_request,
    not_after_unix,
    not_before_unix,
    utc_text,
)
from semisilo.common.identity.invitation import InvitationLine, decode_invitation, token_hash
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.rpc.tls import channel_credentials, channel_options
from semisilo.common.wire import enrollment_service_pb2 as pb
from semisilo.common.wire import enrollment_service_pb2_grpc as pb_grpc
from semisilo.silo.link.diagnosis import diagnose_connection
from semisilo.silo.link.dialling import goes_around_proxy
from semisilo.silo.site.disclosures import Disclosure, DisclosureLog, message
from semisilo.silo.site.home import SiloHome, StatusFile, home_option
from semisilo.silo.site.identity_store import (
    FederationFile,
    Identity,
    drop_pending_keys,
    has_identity,
    install_identity,
    load_identity,
    pending_key,
)

__all__ = ["enroll", "leave_federation", "open_channel", "renew_if_due"]

_MESSAGE_LIMIT_BYTES = 64 * 1024
_PATIENCE_SECONDS = 120.0
"""So long `enroll` tries again where the coordinator takes no calls: a person waits before the screen."""
_LONGEST_PAUSE_SECONDS = 10.0


async def enroll(line: str, home: Path, *, now: float, force: bool = False, use_http_proxy: bool = True,
                 timeout_seconds: float = 20.0, patience_seconds: float = _PATIENCE_SECONDS,
                 on_trouble: Callable[[SemisiloError], None] = lambda error: None) -> Identity:
    """Exchanges an invitation line for an identity in the home folder.

    May be repeated after a cut at any point: the key is on disk before the line is used, and the coordinator gives the
    same certificate to the same key. A new line for the same silo replaces its identity and leaves its memory.

    Args:
        now: this machine's clock, Unix seconds; the coordinator compares it with its own.
        force: replaces the identity of another silo or federation.
        patience_seconds: how long it tries again where the coordinator takes no calls for the moment.
        on_trouble: told so before each of these pauses.
    Raises: InvitationInvalid, InvitationExpired, InvitationUsed, ClockSkew, WrongAuthority, Unreachable; TooManyCalls
        after `patience_seconds`; UsageError when the home folder belongs to another silo; AlreadyRunning while
        `silo join` runs there: the line is not spent then.
    """
    invitation = decode_invitation(line)
    if (kept := _enrolled(home, invitation, now=now, force=force)) is not None:
        return kept
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # An agent would go on as the silo that it has begun as, until its certificate ends, and a renewal that is under way
    # would put that silo's next certificate over the new one.
    with SiloHome(home).stopped(f"silo enroll LINE{home_option(home)}{' --force' if force else ''}"):
        if (kept := _enrolled(home, invitation, now=now, force=force)) is not None:  # by another command, just now
            return kept
        return await _exchanged(invitation, home, now=now, use_http_proxy=use_http_proxy,
                                timeout_seconds=timeout_seconds, patience_seconds=patience_seconds,
                                on_trouble=on_trouble)


def _enrolled(home: Path, invitation: InvitationLine, *, now: float, force: bool) -> Identity | None:
    """The identity that this very line has brought already. Raises: as `_kept`."""
    kept = _kept(home, invitation, force=force)
    if kept is None or kept.about.invitation != token_hash(invitation.token).hex() or now >= kept.not_after_unix:
        return None
    return kept


async def _exchanged(invitation: InvitationLine, home: Path, *, now: float, use_http_proxy: bool,
                     timeout_seconds: float, patience_seconds: float,
                     on_trouble: Callable[[SemisiloError], None]) -> Identity:
    hashed = token_hash(invitation.token).hex()
    key = pending_key(home, hashed[:32])
    request = pb.EnrollRequest(token=invitation.token, certificate_request_der=make_request(key))
    request.silo_time.seconds, request.silo_time.nanos = int(now), int(now % 1 * 1e9)
    _record(home, message("enrolment", request.SerializeToString(), update_id=f"enrolment {hashed[:32]}",
                          text=f"public key for silo '{invitation.silo}' of federation '{invitation.federation}', the "
                               "invitation's token, and this machine's clock"))
    authority_pem = certificate_pem(load_certificate(invitation.authority_der))
    channel = grpc.aio.secure_channel(
        invitation.enrollment_address, channel_credentials(authority_pem=authority_pem),
        options=channel_options(
            invitation.federation,
            use_http_proxy=use_http_proxy and not goes_around_proxy(invitation.enrollment_address),
            message_limit_bytes=_MESSAGE_LIMIT_BYTES))
    end, pause = time.monotonic() + patience_seconds, 1.0
    try:
        stub: Any = pb_grpc.EnrollmentServiceStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                response = await stub.Enroll(request, timeout=timeout_seconds)
                break
            except grpc.RpcError as error:
                said = from_rpc_error(error)
                wait = max(pause, said.retry_seconds)
                if not isinstance(said, TooManyCalls) or time.monotonic() + wait > end:
                    raise await _explain(said, invitation, authority_pem, now=now,
                                         use_http_proxy=use_http_proxy) from None
                on_trouble(said)
                await asyncio.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    finally:
        await channel.close()
    if response.authority_der != invitation.authority_der:
        raise WrongAuthority("The coordinator's answer comes from another authority than the invitation's.",
                             remedy="Ask the coordinator's operator for a new line.")
    about = FederationFile(federation=invitation.federation, silo=invitation.silo, address=invitation.address,
                           enrollment_address=invitation.enrollment_address, invitation=hashed, renew_unix=0.0)
    _forget_contact(home)
    identity = _install(home, about, key=key, der=response.certificate_der, authority_pem=authority_pem,
                        renew_unix=float(response.renew_time.seconds), now=now)
    drop_pending_keys(home)
    return identity


async def renew_if_due(home: Path, stub: pb_grpc.EnrollmentServiceStub, now: float, *,
                       timeout_seconds: float = 20.0) -> Identity | None:
    """Renews the certificate, with a new key, when its time has come; call it every hour or so.

    Args:
        stub: on a channel that shows the present certificate (`open_channel`).
    Returns: the new identity, or None when it is not due. The old certificate stays valid to its end, so a running
        transfer may finish before the channel is opened anew.
    Raises: what the coordinator says, which decides whether it is too late; ClockSkew when the new certificate is not
        valid by this machine's clock: then the old one stays; Unreachable: try again later.
    """
    identity = load_identity(home)
    if now < identity.about.renew_unix:
        return None
    key = pending_key(home, "renew")
    untyped: Any = stub
    request = pb.RenewCertificateRequest(certificate_request_der=make_request(key))
    _record(home, message("renewal", request.SerializeToString(), text="public key for the next certificate",
                          update_id=f"renewal {fingerprint(key.public_key()).hex()[:32]}"))
    try:
        response = await untyped.RenewCertificate(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
    renewed = _install(home, identity.about, key=key, der=response.certificate_der,
                       authority_pem=identity.authority_pem, renew_unix=float(response.renew_time.seconds), now=now)
    drop_pending_keys(home)
    return renewed


async def leave_federation(identity: Identity, home: SiloHome, *, use_http_proxy: bool = True,
                           timeout_seconds: float = 20.0) -> float:
    """Ends this silo's membership at the coordinator. Safe to repeat.

    Returns: when the coordinator noted it, Unix seconds.
    Raises: what the coordinator says (SiloLeft: with another certificate); Unreachable; OSError when the record of
        disclosures cannot be written, and then nothing is sent.
    """
    DisclosureLog(home.disclosures).record(message(
        "leaving", pb.LeaveRequest().SerializeToString(), text="that this silo leaves the federation",
        update_id=f"leaving {identity.about.invitation[:32]}"))
    async with open_channel(identity, use_http_proxy=use_http_proxy) as channel:
        stub: Any = pb_grpc.EnrollmentServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            response = await stub.Leave(pb.LeaveRequest(), timeout=timeout_seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise SemisiloError(
                    "The coordinator's version does not know that a silo can leave.",
                    remedy="Clean up here with: silo leave --offline, and ask the coordinator's operator to run: "
                           f"coordinator revoke {identity.silo}") from None
            raise from_rpc_error(error) from None
    return float(response.left_time.seconds + response.left_time.nanos / 1e9)


def open_channel(identity: Identity, *, address: str | None = None, use_http_proxy: bool = True) -> grpc.aio.Channel:
    """A channel to the coordinator's work port that shows this silo's certificate. One per process is enough."""
    address = address or identity.address
    return grpc.aio.secure_channel(
        address, channel_credentials(authority_pem=identity.authority_pem, own=identity.credentials),
        options=channel_options(identity.federation, use_http_proxy=use_http_proxy and not goes_around_proxy(address)))


def _record(home: Path, disclosure: Disclosure) -> None:
    """Before it leaves. Raises: OSError: then nothing is sent."""
    DisclosureLog(SiloHome(home).disclosures).record(disclosure)


def _forget_contact(home: Path) -> None:
    """The coordinator of this invitation has not answered yet, whoever did before: the first foreign certificate is a
    wrong address then. Its own clock, which certificates are dated by, may differ from this machine's."""
    status = StatusFile(SiloHome(home).status)
    if status.now.last_contact_unix:
        status.update(now_unix=status.now.updated_unix, last_contact_unix=0.0)


def _kept(home: Path, invitation: InvitationLine, *, force: bool) -> Identity | None:
    """The identity that the line would replace.

    Raises: UsageError when it is another one and `force` is not set.
    """
    if not has_identity(home):
        return None
    try:
        kept = load_identity(home)
    except SemisiloError:
        if force:
            return None
        raise
    pinned = load_certificate(kept.authority_pem) == load_certificate(invitation.authority_der)
    if pinned and (kept.federation, kept.silo) == (invitation.federation, invitation.silo):
        return kept
    if force:
        return None
    whose = f"silo '{kept.silo}' in federation '{kept.federation}'"
    other = "" if pinned or kept.federation != invitation.federation else " under another authority"
    raise UsageError(f"{home} is the home of {whose}; the line is for silo '{invitation.silo}' in federation "
                     f"'{invitation.federation}'{other}.", remedy="Choose another home folder, or give --force.")


def _install(home: Path, about: FederationFile, *, key: ec.EllipticCurvePrivateKey, der: bytes, authority_pem: bytes,
             renew_unix: float, now: float) -> Identity:
    """Checks what the coordinator has issued and makes it the silo's identity.

    Raises: WrongAuthority; ClockSkew, and then nothing is replaced.
    """
    try:
        certificate = load_certificate(der)
    except StorageDamaged:
        raise WrongAuthority("The coordinator's answer holds no certificate.",
                             remedy="Check that coordinator and silo run the same version of semisilo.") from None
    check_silo_certificate(certificate, load_certificate(authority_pem), silo=about.silo, public_key=key.public_key())
    begin, end = not_before_unix(certificate), not_after_unix(certificate)
    if not begin <= now <= end:
        raise ClockSkew(f"The coordinator has issued a certificate from {utc_text(begin)} to {utc_text(end)}; this "
                        f"machine's clock says {utc_text(now)}.",
                        remedy="Compare the clocks of both machines, and set the wrong one.")
    if not begin < renew_unix < end:
        renew_unix = begin + (end - begin) * 2 / 3
    checked = FederationFile(federation=about.federation, silo=about.silo, address=about.address,
                             enrollment_address=about.enrollment_address, invitation=about.invitation,
                             renew_unix=renew_unix)
    return install_identity(home, checked, key=key, certificate_pem=certificate_pem(certificate),
                            authority_pem=authority_pem)


async def _explain(said: SemisiloError, invitation: InvitationLine, authority_pem: bytes, *, now: float,
                   use_http_proxy: bool) -> SemisiloError:
    """Why Enroll failed. The port is shut when no invitation is open, so a late line meets no coordinator at all."""
    if not isinstance(said, (Unreachable, ConnectionRefusedByPeer)):
        return said
    address = invitation.enrollment_address
    found = await asyncio.to_thread(diagnose_connection, address, authority_pem=authority_pem,
                                    federation=invitation.federation, own_files=None, now=now,
                                    use_http_proxy=use_http_proxy)
    if isinstance(found, Unreachable) and invitation.expires_unix <= now:
        return InvitationExpired(
            f"Nothing answers at {address}, and by this machine's clock the invitation for silo '{invitation.silo}' "
            f"expired on {utc_text(invitation.expires_unix)}.",
            remedy=f"Ask the coordinator's operator to run: coordinator invite {invitation.silo}")
    if isinstance(found, Unreachable):
        return Unreachable(found.text, remedy=f"{found.remedy} The port is open only while an invitation is: if this "
                                              "line has been used, ask for a new one.".strip())
    return found
