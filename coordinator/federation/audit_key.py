"""The key that signs heads of the audit trail: `audit.key` and `audit.pem` of the `authority` folder.

A key of its own, certified by the authority: neither that of TLS, which changes every two months, nor the authority's,
which is used seldom. When it is lost, another one is made; what the lost one has signed stays good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.audit.head import AuditHead, SignedHead
from semisilo.common.audit.signature import sign_head
from semisilo.common.errors import BadConfiguration, StorageDamaged
from semisilo.common.identity.certificates import (
    certificate_der,
    certificate_pem,
    issue_audit_certificate,
    load_certificate,
)
from semisilo.common.storage.durable import write_durably, write_secret
from semisilo.coordinator.federation.authority import load_authority, read_authority_file, read_authority_secret
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import keep_signed_head, last_restore

__all__ = ["AuditKey", "HeadSigner", "ensure_audit_key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditKey:
    """The key with its certificate."""

    key: ed25519.Ed25519PrivateKey = field(repr=False)
    certificate_der: bytes
    authority: x509.Certificate


def ensure_audit_key(folder: Path, *, now: float) -> AuditKey:
    """The key in an `authority` folder; made anew when it is missing, damaged, or of another authority.

    Key and certificate are two files; a kill between them leaves a pair that does not fit, which is fixed here.
    Raises: what `load_authority` raises; ClockSkew when by this clock the authority has ended.
    """
    authority = load_authority(folder)
    key_path, certificate_path = folder / "audit.key", folder / "audit.pem"
    kept = _usable(key_path, certificate_path, authority.certificate)
    if kept is not None:
        return kept
    key = ed25519.Ed25519PrivateKey.generate()
    certificate = issue_audit_certificate(authority.key, authority.certificate, key.public_key(), now=now)
    write_secret(key_path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                             serialization.NoEncryption()))
    write_durably(certificate_path, certificate_pem(certificate))
    return AuditKey(key=key, certificate_der=certificate_der(certificate), authority=authority.certificate)


def _usable(key_path: Path, certificate_path: Path, authority: x509.Certificate) -> AuditKey | None:
    try:
        certificate = load_certificate(read_authority_file(certificate_path))
        key = serialization.load_pem_private_key(read_authority_secret(key_path), password=None)
        certificate.verify_directly_issued_by(authority)
    except (StorageDamaged, BadConfiguration, InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return None
    if not isinstance(key, ed25519.Ed25519PrivateKey) or key.public_key() != certificate.public_key():
        return None
    return AuditKey(key=key, certificate_der=certificate_der(certificate), authority=authority)


class HeadSigner:
    """Signs the end of the audit trail whenever somebody is to have it, each end once."""

    def __init__(self, ledger: Ledger, key: AuditKey) -> None:
        self._ledger = ledger
        self._key = key
        self._restored_unix, self._backup_unix = last_restore(ledger)
        self._last: SignedHead | None = None

    def current(self) -> SignedHead | None:
        """The head of what is on disk for good; None while this process has written nothing that is.

        What could still be lost with the power is left out: a trail that went on from there would look forked.
        Raises: what the ledger raises when it cannot be written.
        """
        end = self._ledger.lasting_head
        if end is None:
            return None
        if self._last is None or self._last.head.number != end.number:
            head = AuditHead(number=end.number, chain=end.chain, unix=end.unix, restored_unix=self._restored_unix,
                             backup_unix=self._backup_unix)
            signed = sign_head(head, key=self._key.key, certificate_der=self._key.certificate_der,
                               authority=self._key.authority)
            keep_signed_head(self._ledger, signed)
            self._last = signed
        return self._last
