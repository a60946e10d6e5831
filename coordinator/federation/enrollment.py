"""Who may join: invitations, the first certificate, renewal. Transport-free;
`semisilo.coordinator.rpc.enrollment_service` puts it on gRPC.

A silo's name comes from the invitation, later from its certificate; never from a request. Tokens are kept as SHA-256
only. All times are Unix seconds by the coordinator's clock.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from semisilo.common.errors import (
    BadConfiguration,
    CertificateRevoked,
    InvitationExpired,
    InvitationInvalid,
    InvitationUsed,
    SiloLeft,
    TooManyCalls,
    UnknownSilo,
    UsageError,
)
from semisilo.common.identity.certificates import (
    SILO_RENEW_SECONDS,
    SILO_SECONDS,
    certificate_der,
    check_clocks,
    check_name,
    fingerprint,
    issue_silo_certificate,
    load_certificate,
    not_after_unix,
    not_before_unix,
    read_request,
    utc_text,
)
from semisilo.common.identity.invitation import InvitationLine, encode_invitation, token_hash
from semisilo.common.text.describe import describe_seconds
from semisilo.coordinator.federation.authority import AuthorityKeys
from semisilo.coordinator.federation.token_bucket import TokenBucket
from semisilo.coordinator.ledger.roster import Invitation, SiloStatus

__all__ = ["Authority", "EnrollmentSettings", "Invitation", "Issued", "Roster", "SiloStatus"]

_log = logging.getLogger(__name__)
_TOKEN_LIMIT_BYTES = 256
_HOUR = 3600.0
_DAY = 24 * _HOUR
_RENEWALS_AT_ONCE = 8
"""Renewals of one silo; then one in a twentieth of the time after which silos renew, which is a day. A silo needs one
in all that time: the others are for trials and restores."""
_RENEWALS_PER_LIFE = 20


class Roster(Protocol):
    """What the authority keeps. Each call is one transaction."""

    def add_invitation(self, *, silo: str, token_hash: bytes, expires_unix: float) -> None:
        """Records an invitation; an open one of the same silo no longer works."""

    def invitation(self, token_hash: bytes) -> Invitation | None:
        """The invitation of a token, used or not; None when there is none."""

    def use_invitation(self, token_hash: bytes, *, key_fingerprint: bytes, certificate_der: bytes, serial: int,
                       not_after_unix: float) -> None:
        """Marks it used, records the certificate, lets the silo into the roster un-revoked, ends its earlier
        certificates.

        Raises: InvitationUsed when another call was first.
        """

    def add_certificate(self, *, silo: str, serial: int, not_after_unix: float) -> None:
        """Records a renewed certificate; the one before stays valid until it expires."""

    def silo_status(self, silo: str) -> SiloStatus | None:
        """None when the roster has no such silo."""

    def accepts(self, silo: str, serial: int) -> bool:
        """Whether a certificate was issued to a silo and is neither revoked nor replaced by a later invitation; its
        dates are not looked at."""

    def standing(self, silo: str, serial: int) -> tuple[SiloStatus | None, bool]:
        """`silo_status` and `accepts` together. Asked on every RPC, so it must be quick, however many certificates
        there are."""

    def revoke(self, silo: str) -> None:
        """Ends a silo's membership; its serials never become valid again.

        Raises: UnknownSilo.
        """

    def leave(self, silo: str) -> float:
        """Ends a silo's membership on its own wish; returns when it left first. Raises: UnknownSilo."""

    def has_issued(self, silo: str, serial: int) -> bool:
        """Whether a certificate was ever issued to a silo, whatever became of it."""

    def open_invitations(self, now_unix: float) -> int:
        """How many invitations can still be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrollmentSettings:
    """How long invitations and certificates last."""

    invitation_seconds: float = 24 * _HOUR
    """Life of an invitation: long enough for a colleague's working day, short enough for a line sent by mail."""
    certificate_seconds: float = SILO_SECONDS
    """Life of a silo's certificate; revocation does not wait for it."""
    renew_seconds: float = SILO_RENEW_SECONDS
    """Age at which silos renew. The rest is how long a silo may be away without a new invitation."""

    def __post_init__(self) -> None:
        if not 60 <= self.invitation_seconds <= 30 * _DAY:
            raise ValueError("invitation_seconds: must be between one minute and 30 days.")
        if not 60 <= self.certificate_seconds <= 400 * _DAY:
            raise ValueError("certificate_seconds: must be between one minute and 400 days.")
        if not 0 < self.renew_seconds < self.certificate_seconds:
            raise ValueError("renew_seconds: must be above 0 and below certificate_seconds.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """A certificate for a silo."""

    silo: str
    certificate_der: bytes = field(repr=False)
    renew_unix: float


@dataclass(slots=True)
class _Renewals:
    """What one silo has renewed since the coordinator's start."""

    rate: TokenBucket
    key_fingerprint: bytes = b""
    serial: int = 0
    issued: Issued | None = None
    """The last one, for that key."""


class Authority:
    """Invites, signs and renews for one federation."""

    def __init__(self, *, keys: AuthorityKeys, roster: Roster, settings: EnrollmentSettings | None = None,
                 monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._roster = roster
        self._settings = settings or EnrollmentSettings()
        self._monotonic = monotonic
        self._renewals: dict[str, _Renewals] = {}

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self._keys.federation

    @property
    def certificate_der(self) -> bytes:
        """The authority's own certificate."""
        return certificate_der(self._keys.certificate)

    def invite(self, silo: str, *, address: str, enrollment_address: str, now: float,
               life_seconds: float | None = None) -> str:
        """The line to send to a silo; an earlier open one of the same silo stops working. It is kept nowhere.

        Raises: UsageError for a name that is not allowed or a life of no length; BadConfiguration for addresses that no
            line can carry.
        """
        check_name(silo, what="silo name")
        if life_seconds is not None and life_seconds <= 0:
            raise UsageError("The invitation would have ended before it is sent.",
                             remedy='Give it a life, for example "2h".')
        for text in (address, enrollment_address):
            if not (text.isascii() and text.isprintable() and " " not in text and 3 <= len(text) <= 300):
                raise BadConfiguration(f"{text[:300]!r} is not an address.",
                                       remedy='Write "host:port" in federation.toml, for example "hub.example:8443".')
        token = secrets.token_urlsafe(32)
        expires = now + (self._settings.invitation_seconds if life_seconds is None else life_seconds)
        line = encode_invitation(InvitationLine(
            address=address, enrollment_address=enrollment_address, federation=self.federation, silo=silo, token=token,
            expires_unix=expires, authority_der=self.certificate_der))
        self._roster.add_invitation(silo=silo, token_hash=token_hash(token), expires_unix=expires)
        return line

    def enroll(self, *, token: str, request_der: bytes, silo_unix: float, now: float) -> Issued:
        """Exchanges a token for a certificate. Safe to repeat with the same key; another key is refused.

        The request is checked before the token is looked up, and the token by its hash, so neither answer nor time
        tells a stranger how close a guess was.
        Raises: BadPayload, InvitationInvalid, InvitationUsed, InvitationExpired, ClockSkew.
        """
        public_key = read_request(request_der)
        key_fingerprint = fingerprint(public_key)
        hashed = token_hash(token[: _TOKEN_LIMIT_BYTES + 1])
        invitation = self._roster.invitation(hashed)
        if invitation is None or len(token) > _TOKEN_LIMIT_BYTES:
            raise InvitationInvalid("The coordinator does not know this invitation: it was replaced by a newer one, "
                                    "withdrawn, or never made here.",
                                    remedy="Ask the coordinator's operator for a new line: coordinator invite NAME")
        if invitation.used_key_fingerprint is not None:
            return self._repeat(invitation, key_fingerprint, now=now)
        if invitation.expires_unix <= now:
            raise InvitationExpired(f"The invitation for silo '{invitation.silo}' expired on "
                                    f"{utc_text(invitation.expires_unix)}.", remedy=_invite(invitation.silo))
        check_clocks(silo_unix=silo_unix, coordinator_unix=now)
        certificate = issue_silo_certificate(self._keys.key, self._keys.certificate, public_key, invitation.silo,
                                             now=now, seconds=self._settings.certificate_seconds)
        issued = Issued(silo=invitation.silo, certificate_der=certificate_der(certificate),
                        renew_unix=self._renew_unix(not_after_unix(certificate)))
        self._roster.use_invitation(hashed, key_fingerprint=key_fingerprint, certificate_der=issued.certificate_der,
                                    serial=certificate.serial_number, not_after_unix=not_after_unix(certificate))
        _log.info("silo '%s' has enrolled; its certificate lasts until %s", issued.silo,
                  utc_text(not_after_unix(certificate)))
        return issued

    def renew(self, silo: str, *, request_der: bytes, now: float) -> Issued:
        """The next certificate of a silo whose caller has been checked
        (`semisilo.coordinator.rpc.caller.check_caller`). A repeat with the same key gets the same one.

        Raises: BadPayload; UnknownSilo and CertificateRevoked when it was revoked in between; TooManyCalls when it has
            had so many lately.
        """
        public_key = read_request(request_der)
        status = self._roster.silo_status(silo)
        if status is None:
            raise UnknownSilo(f"There is no silo '{silo}' in this federation.", remedy=_invite(silo))
        if status.left_unix is not None:
            raise SiloLeft(f"Silo '{silo}' has left this federation.", remedy=_invite(silo))
        if status.revoked:
            raise CertificateRevoked(f"Silo '{silo}' has been revoked.", remedy=_invite(silo))
        if (again := self._renewed(silo, fingerprint(public_key), now=now)) is not None:
            return again
        certificate = issue_silo_certificate(self._keys.key, self._keys.certificate, public_key, silo, now=now,
                                             seconds=self._settings.certificate_seconds)
        end = not_after_unix(certificate)
        self._roster.add_certificate(silo=silo, serial=certificate.serial_number, not_after_unix=end)
        _log.info("silo '%s' has renewed its certificate until %s", silo, utc_text(end))
        issued = Issued(silo=silo, certificate_der=certificate_der(certificate), renew_unix=self._renew_unix(end))
        known = self._renewals[silo]
        known.key_fingerprint, known.serial, known.issued = fingerprint(public_key), certificate.serial_number, issued
        return issued

    def _renewed(self, silo: str, key_fingerprint: bytes, *, now: float) -> Issued | None:
        """What the silo was given for this key already; None when there is one to be made: also where that one begins
        later, since this clock was ahead when it was made, and the silo can do nothing with it until then.

        Raises: TooManyCalls when it has had so many lately.
        """
        seconds = self._settings.renew_seconds / _RENEWALS_PER_LIFE
        known = self._renewals.setdefault(silo, _Renewals(TokenBucket(_RENEWALS_AT_ONCE, 1 / seconds)))
        if known.issued is not None and known.key_fingerprint == key_fingerprint \
                and self._roster.accepts(silo, known.serial) \
                and _is_valid(known.issued.certificate_der, now):
            return known.issued
        if wait := known.rate.take(self._monotonic()):
            raise TooManyCalls(f"Silo '{silo}' has renewed its certificate {_RENEWALS_AT_ONCE} times or more lately:"
                               f" the next one is given in {describe_seconds(wait)}.",
                               remedy="The last one stays valid.", retry_seconds=wait)
        return None

    def revoke(self, silo: str) -> None:
        """Ends a silo's membership; its next RPC is refused.

        Raises: UnknownSilo.
        """
        self._roster.revoke(silo)
        _log.info("silo '%s' has been revoked", silo)

    def leave(self, silo: str) -> float:
        """Ends a silo's membership on its own wish; returns when it left first, Unix seconds. Safe to repeat.

        Raises: UnknownSilo.
        """
        left = self._roster.leave(silo)
        _log.info("silo '%s' has left the federation", silo)
        return left

    def _repeat(self, invitation: Invitation, key_fingerprint: bytes, *, now: float) -> Issued:
        """The silo did not get our first answer. Whoever holds the key may have the certificate again: it is public."""
        if invitation.used_key_fingerprint == key_fingerprint and invitation.certificate_der is not None:
            end = not_after_unix(load_certificate(invitation.certificate_der))
            if end > now:
                return Issued(silo=invitation.silo, certificate_der=invitation.certificate_der,
                              renew_unix=self._renew_unix(end))
        raise InvitationUsed(f"The invitation for silo '{invitation.silo}' has been used already.",
                             remedy=f"If that was not you, tell the coordinator's operator. {_invite(invitation.silo)}")

    def _renew_unix(self, end: float) -> float:
        return end - (self._settings.certificate_seconds - self._settings.renew_seconds)


def _is_valid(certificate_der: bytes, now: float) -> bool:
    certificate = load_certificate(certificate_der)
    return not_before_unix(certificate) <= now < not_after_unix(certificate)


def _invite(silo: str) -> str:
    return f"Ask the coordinator's operator to run: coordinator invite {silo}"
