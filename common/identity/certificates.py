"""Names, keys, requests and certificates: pure functions, no disk and no network.

Everything is elliptic-curve P-256 with SHA-256, but for the key of audit heads, which is Ed25519. Times are Unix
seconds (UTC). A federation has one authority, whose certificate is pinned by every silo. The coordinator's certificate
carries the DNS name `coordinator.<federation>.semisilo`, a silo's the URI
`urn:semisilo:<federation>:silo:<name>`: those names decide, the subjects are for people to read.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from semisilo.common.errors import BadPayload, ClockSkew, StorageDamaged, UsageError, WrongAuthority
from semisilo.common.text.names import nearest_name

__all__ = [
    "AUTHORITY_SECONDS",
    "BACKDATE_SECONDS",
    "CLOCK_LIMIT_SECONDS",
    "COORDINATOR_RENEW_SECONDS",
    "COORDINATOR_SECONDS",
    "SILO_RENEW_SECONDS",
    "SILO_SECONDS",
    "audit_name",
    "certificate_der",
    "certificate_pem",
    "check_clocks",
    "check_name",
    "check_silo_certificate",
    "coordinator_name",
    "federation_of_authority",
    "fingerprint",
    "is_name",
    "issue_audit_certificate",
    "issue_coordinator_certificate",
    "issue_silo_certificate",
    "key_from_pem",
    "key_to_pem",
    "load_certificate",
    "make_authority",
    "make_key",
    "make_request",
    "not_after_unix",
    "not_before_unix",
    "read_request",
    "silo_uri",
    "silo_uri_of",
    "split_silo_uri",
    "utc_text",
]

_DAY = 86400.0
AUTHORITY_SECONDS = 3652 * _DAY
"""Life of the authority: ten years, leap days included."""
COORDINATOR_SECONDS = 90 * _DAY
"""Life of the coordinator's certificate."""
COORDINATOR_RENEW_SECONDS = 60 * _DAY
"""Age at which `coordinator serve` issues the next one."""
SILO_SECONDS = 30 * _DAY
"""Life of a silo's certificate."""
SILO_RENEW_SECONDS = 20 * _DAY
"""Age at which a silo asks for the next one."""
BACKDATE_SECONDS = 600.0
"""Certificates begin this much before they are made, so that small differences between clocks do no harm. More than
CLOCK_LIMIT_SECONDS, so that every clock which `check_clocks` lets pass accepts them."""
CLOCK_LIMIT_SECONDS = 300.0
"""Clocks further apart than this are refused at enrolment."""

_REQUEST_LIMIT_BYTES = 16384
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_URI = re.compile(r"urn:semisilo:([a-z0-9][a-z0-9-]{0,62}):silo:([a-z0-9][a-z0-9-]{0,62})")
_DOCUMENT_SIGNING = x509.ObjectIdentifier("1.3.6.1.5.5.7.3.36")  # RFC 9336
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_KEY_USAGE_NONE = {
    "digital_signature": False, "content_commitment": False, "key_encipherment": False, "data_encipherment": False,
    "key_agreement": False, "key_cert_sign": False, "crl_sign": False, "encipher_only": False, "decipher_only": False,
}


def is_name(name: object) -> bool:
    """Whether it is a name of a silo or federation: 1 to 63 of a-z, 0-9 and hyphens, not beginning with a hyphen."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str, *, what: str = "name") -> str:
    """Returns the name of a silo or federation if it is one.

    Raises: UsageError when it is none (`is_name`).
    """
    if not is_name(name):
        near = nearest_name(name[:200])
        raise UsageError(f"The {what} {name[:80]!r} is not allowed.",
                         remedy="Use 1 to 63 of a-z, 0-9 and '-', beginning with a letter or digit, for example"
                                f" '{near or 'hospital-a'}'.")
    return name


def coordinator_name(federation: str) -> str:
    """The DNS name in the coordinator's certificate; silos check it instead of the address, which may change."""
    return f"coordinator.{federation}.semisilo"


def audit_name(federation: str) -> str:
    """The DNS name in the certificate of the key that signs heads of the audit trail."""
    return f"audit.{federation}.semisilo"


def silo_uri(federation: str, silo: str) -> str:
    """The URI in a silo's certificate."""
    return f"urn:semisilo:{federation}:silo:{silo}"


def split_silo_uri(uri: str) -> tuple[str, str] | None:
    """(federation, silo) of a silo's URI; None for anything else."""
    match = _URI.fullmatch(uri)
    return (match[1], match[2]) if match else None


def utc_text(unix: float) -> str:
    """A time as people read it, "2026-01-31 12:00:05 UTC"; "an impossible date" where no calendar has it."""
    try:
        return f"{_datetime(unix):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return "an impossible date"


def check_clocks(*, silo_unix: float, coordinator_unix: float, limit_seconds: float = CLOCK_LIMIT_SECONDS) -> None:
    """Compares the clocks of a silo and of the coordinator.

    Raises: ClockSkew, naming both and which way they differ, when they are more than `limit_seconds` apart.
    """
    difference = silo_unix - coordinator_unix
    if abs(difference) <= limit_seconds:
        return
    way = "ahead" if difference > 0 else "behind"
    raise ClockSkew(f"The silo's clock says {utc_text(silo_unix)}, the coordinator's {utc_text(coordinator_unix)}: "
                    f"the silo's is {_span_text(abs(difference))} {way}.",
                    remedy="Set the wrong one, for example with NTP, and try again.")


# Keys and requests


def make_key() -> ec.EllipticCurvePrivateKey:
    """A new private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS#8 PEM without a password; whoever writes it to disk uses `semisilo.common.storage.durable.write_secret`."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())


def key_from_pem(pem: bytes, *, where: str = "private key") -> ec.EllipticCurvePrivateKey:
    """The key of a PEM file.

    Raises: StorageDamaged when it is not a P-256 private key; the text never holds a part of it.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise StorageDamaged(f"{where}: not a private key in PEM form.", remedy="Restore it from a backup.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise StorageDamaged(f"{where}: not a P-256 key.", remedy="Restore it from a backup.")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> bytes:
    """SHA-256 of the key's SubjectPublicKeyInfo; 32 bytes."""
    spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()


def make_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PKCS#10 request, DER. Its subject is empty: the name comes from the invitation, never from the request."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


def read_request(der: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a request whose sender has proved to hold the private one. Nothing else in it is looked at.

    Raises: BadPayload when it is larger than 16 KiB, not a request, not P-256, or not signed by its own key.
    """
    if len(der) > _REQUEST_LIMIT_BYTES:
        raise BadPayload(f"The certificate request has {len(der)} bytes; {_REQUEST_LIMIT_BYTES} are allowed.")
    try:
        request = x509.load_der_x509_csr(der)
        key = request.public_key()
        # The type first: a stranger must not make us check a signature of a giant RSA key.
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise BadPayload("The key of the certificate request is not on the curve P-256.")
        proved = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise BadPayload("The certificate request cannot be read.") from None
    if not proved:
        raise BadPayload("The certificate request is not signed by its own key.")
    return key


# Certificates


def make_authority(federation: str, *, now: float) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A federation's authority: its key and its own certificate.

    It may sign end certificates only (path length 0), and DNS names only below `<federation>.semisilo`, so that a
    stolen authority is of no use anywhere else. URIs are not constrained: RFC 5280 (4.2.1.10) defines that for URIs
    with a host, and refuses those without one, as every urn is.
    Raises: UsageError for a federation name that is not allowed.
    """
    check_name(federation, what="federation name")
    key = make_key()
    name = _subject(federation, "semisilo authority")
    builder = _builder(name, name, key.public_key(), key.public_key(), now=now, seconds=AUTHORITY_SECONDS)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**_KEY_USAGE_NONE, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(f"{federation}.semisilo")], None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def issue_coordinator_certificate(authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate,
                                  public_key: ec.EllipticCurvePublicKey, *, now: float,
                                  seconds: float = COORDINATOR_SECONDS) -> x509.Certificate:
    """The coordinator's certificate: good for TLS servers only, with the DNS name of its federation."""
    federation = federation_of_authority(authority)
    names = x509.SubjectAlternativeName([x509.DNSName(coordinator_name(federation))])
    return _issue(authority_key, authority, public_key, _subject(federation, "coordinator"), names,
                  ExtendedKeyUsageOID.SERVER_AUTH, now=now, seconds=seconds)


def issue_audit_certificate(authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate,
                            public_key: ed25519.Ed25519PublicKey, *, now: float) -> x509.Certificate:
    """The certificate of the key that signs heads of the audit trail: good for documents only, neither for TLS servers
    nor for clients, as long as the authority lasts."""
    federation = federation_of_authority(authority)
    names = x509.SubjectAlternativeName([x509.DNSName(audit_name(federation))])
    return _issue(authority_key, authority, public_key, _subject(federation, "audit"), names, _DOCUMENT_SIGNING,
                  now=now, seconds=AUTHORITY_SECONDS)


def issue_silo_certificate(authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate,
                           public_key: ec.EllipticCurvePublicKey, silo: str, *, now: float,
                           seconds: float = SILO_SECONDS) -> x509.Certificate:
    """A silo's certificate: good for TLS clients only, with the silo's URI.

    Raises: UsageError for a silo name that is not allowed.
    """
    federation = federation_of_authority(authority)
    check_name(silo, what="silo name")
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(silo_uri(federation, silo))])
    return _issue(authority_key, authority, public_key, _subject(federation, silo), names,
                  ExtendedKeyUsageOID.CLIENT_AUTH, now=now, seconds=seconds)


def federation_of_authority(authority: x509.Certificate) -> str:
    """The federation that an authority's certificate speaks for.

    Raises: WrongAuthority when it is no authority of semisilo's.
    """
    names = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    federation = str(names[0].value) if len(names) == 1 else ""
    try:
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        constraints = None
    if not _NAME.fullmatch(federation) or constraints is None or not constraints.ca:
        raise WrongAuthority("The certificate is not that of a federation's authority.")
    return federation


def check_silo_certificate(certificate: x509.Certificate, authority: x509.Certificate, *, silo: str,
                           public_key: ec.EllipticCurvePublicKey) -> None:
    """Checks what the authority has issued before a silo trusts its own identity to it. Dates are not looked at.

    Raises: WrongAuthority, saying what does not fit: the signature, the name or the key.
    """
    federation = federation_of_authority(authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise WrongAuthority(f"The certificate for silo '{silo}' was not issued by the authority of federation "
                             f"'{federation}'.") from None
    found = silo_uri_of(certificate)
    if found != silo_uri(federation, silo):
        raise WrongAuthority(f"The certificate carries the name {found[:160]!r} instead of "
                             f"'{silo_uri(federation, silo)}'.")
    if _spki(certificate) != fingerprint(public_key):
        raise WrongAuthority(f"The certificate for silo '{silo}' belongs to another key.")


def silo_uri_of(certificate: x509.Certificate) -> str:
    """The only URI among a certificate's names; empty when there is none, several, or anything unreadable."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return ""
    return str(uris[0]) if len(uris) == 1 and len(list(names)) == 1 else ""


def load_certificate(data: bytes, *, where: str = "certificate") -> x509.Certificate:
    """A certificate from PEM or DER.

    Raises: StorageDamaged when it is neither.
    """
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise StorageDamaged(f"{where}: not a certificate.", remedy="Restore it from a backup.") from None


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """PEM of a certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_der(certificate: x509.Certificate) -> bytes:
    """DER of a certificate."""
    return certificate.public_bytes(serialization.Encoding.DER)


def not_after_unix(certificate: x509.Certificate) -> float:
    """The last moment of a certificate, Unix seconds."""
    return (certificate.not_valid_after_utc - _EPOCH).total_seconds()


def not_before_unix(certificate: x509.Certificate) -> float:
    """The first moment of a certificate, Unix seconds."""
    return (certificate.not_valid_before_utc - _EPOCH).total_seconds()


def _datetime(unix: float) -> datetime.datetime:
    # Whole seconds: X.509 has no smaller ones.
    return _EPOCH + datetime.timedelta(seconds=math.floor(unix))


def _span_text(seconds: float) -> str:
    for length, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


def _subject(federation: str, common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
                      x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _spki(certificate: x509.Certificate) -> bytes:
    key = certificate.public_key()
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else b""


def _builder(subject: x509.Name, issuer: x509.Name,
             public_key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
             issuer_key: ec.EllipticCurvePublicKey, *, now: float, seconds: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_datetime(now - BACKDATE_SECONDS)).not_valid_after(_datetime(now + seconds))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _issue(authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate,
           public_key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey, subject: x509.Name,
           names: x509.SubjectAlternativeName,
           use: x509.ObjectIdentifier, *, now: float, seconds: float) -> x509.Certificate:
    # Nothing outlives the authority: a certificate that does is refused by every verifier once the authority ends.
    seconds = min(seconds, not_after_unix(authority) - now)
    if seconds <= 0:
        # No wrong usage: a clock that runs ahead when a machine starts is soon set right, and a service tries again.
        raise ClockSkew(f"The federation's authority ended on {utc_text(not_after_unix(authority))}, and the"
                        f" coordinator's clock says {utc_text(now)}.",
                        remedy="Set that clock if it is wrong; else make a new federation: coordinator init")
    builder = _builder(subject, authority.subject, public_key, authority_key.public_key(), now=now, seconds=seconds)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_KEY_USAGE_NONE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
