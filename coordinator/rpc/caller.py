"""Who is calling: the silo that the peer's certificate names, and whether it still may.

gRPC verifies the chain once, when a connection opens, and goes on using the connection after the certificate has ended;
so expiry, serial and revocation are checked here on every RPC.

Tests: tests/coordinator/federation/test_enrollment.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import grpc.aio
from cryptography import x509

from semisilo.common.errors import (
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    SiloLeft,
    UnknownSilo,
    WrongAuthority,
)
from semisilo.common.identity.certificates import not_after_unix, not_before_unix, silo_uri_of, split_silo_uri, utc_text
from semisilo.coordinator.federation.enrollment import Roster

__all__ = ["CallerCertificate", "caller_silo", "check_caller"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallerCertificate:
    """What the caller of an RPC has proved. The authority's signature is checked by TLS."""

    silo: str
    serial: int
    not_before_unix: float
    not_after_unix: float


def caller_silo(context: grpc.aio.ServicerContext[Any, Any], federation: str) -> CallerCertificate:
    """The caller of an RPC, from the certificate of its connection and nothing else.

    Raises: WrongAuthority when there is no certificate, or it does not name a silo of this federation.
    """
    pems = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pems) != 1:
        raise WrongAuthority("The caller shows no certificate.", remedy="Enrol first: silo enroll <invitation line>")
    found = _parse(bytes(pems[0]))
    if found is None:
        raise WrongAuthority("The caller's certificate does not name a silo.",
                             remedy="Enrol first: silo enroll <invitation line>")
    its_federation, caller = found
    if its_federation != federation:
        raise WrongAuthority(f"The caller's certificate is for federation '{its_federation}', this is '{federation}'.",
                             remedy="Check the address, or enrol in this federation: silo enroll <invitation line>")
    return caller


def check_caller(certificate: CallerCertificate, roster: Roster, now: float) -> None:
    """Whether the caller may be served at this moment; call it on every RPC, and again during long ones.

    Raises: CertificateExpired, ClockSkew (not valid yet), UnknownSilo, CertificateRevoked, SiloLeft; each with its
        remedy.
    """
    silo = certificate.silo
    invite = f"Ask the coordinator's operator to run: coordinator invite {silo}"
    if now > certificate.not_after_unix:
        raise CertificateExpired(f"The certificate of silo '{silo}' ended on {utc_text(certificate.not_after_unix)}.",
                                 remedy=invite)
    if now < certificate.not_before_unix:
        raise ClockSkew(f"The certificate of silo '{silo}' begins on {utc_text(certificate.not_before_unix)}, but the "
                        f"coordinator's clock says {utc_text(now)}.",
                        remedy="Ask the coordinator's operator to set its clock.")
    status, is_accepted = roster.standing(silo, certificate.serial)
    if status is None:
        raise UnknownSilo(f"There is no silo '{silo}' in this federation.", remedy=invite)
    if status.revoked:
        raise CertificateRevoked(f"The operator of the coordinator has revoked silo '{silo}'.",
                                 remedy=f"If that was a mistake: {invite[0].lower()}{invite[1:]}")
    if status.left_unix is not None:
        raise SiloLeft(f"Silo '{silo}' has left this federation on {utc_text(status.left_unix)}.", remedy=invite)
    if not is_accepted:
        raise CertificateRevoked(f"This certificate of silo '{silo}' has been replaced by a newer invitation.",
                                 remedy=f"Use the newer identity, or {invite[0].lower()}{invite[1:]}")


@functools.lru_cache(maxsize=16_384)
def _parse(pem: bytes) -> tuple[str, CallerCertificate] | None:
    """(federation, caller); cached, because every RPC of a connection shows the same bytes."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion):
        return None
    names = split_silo_uri(silo_uri_of(certificate))
    if names is None:
        return None
    return names[0], CallerCertificate(silo=names[1], serial=certificate.serial_number,
                                       not_before_unix=not_before_unix(certificate),
                                       not_after_unix=not_after_unix(certificate))
