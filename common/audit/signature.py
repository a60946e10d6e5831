"""Who signs heads of the audit trail, and whether one is signed.

The key is Ed25519: signing takes 30 microseconds, and the same head always has the same signature. Its certificate
comes from the federation's authority, which every silo has pinned. It carries the DNS name
`audit.<federation>.semisilo`.

Tests: tests/common/audit/test_head.py.
"""

from __future__ import annotations

import functools

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from semisilo.common.audit.head import AuditHead, SignedHead, micros
from semisilo.common.config import canonical_json
from semisilo.common.errors import StorageDamaged, WrongAuthority
from semisilo.common.identity.certificates import audit_name, federation_of_authority, fingerprint, load_certificate

__all__ = ["authority_id", "check_head", "sign_head"]

_DOMAIN = b"semisilo audit head v1\0"


@functools.lru_cache(maxsize=16)
def authority_id(authority: x509.Certificate) -> str:
    """Tells an authority from all others: the fingerprint of its key, hex."""
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise WrongAuthority("The certificate is not that of a federation's authority.")
    return fingerprint(key).hex()


def sign_head(head: AuditHead, *, key: ed25519.Ed25519PrivateKey, certificate_der: bytes,
              authority: x509.Certificate) -> SignedHead:
    """Signs a head for one federation: it is good for no other, and the signature for no other purpose."""
    return SignedHead(head=head, signature=key.sign(_message(head, authority)), certificate_der=certificate_der)


def check_head(signed: SignedHead, authority: x509.Certificate) -> None:
    """Whether the coordinator of this authority has signed the head. Dates of certificates are not looked at: a head is
    evidence for as long as it is kept.

    Raises: WrongAuthority, saying what does not fit.
    """
    key = _audit_key(signed.certificate_der, authority)
    try:
        key.verify(signed.signature, _message(signed.head, authority))
    except InvalidSignature:
        raise WrongAuthority(f"The signature of audit head {signed.head.number} is wrong.") from None


@functools.lru_cache(maxsize=16)
def _audit_key(certificate_der: bytes, authority: x509.Certificate) -> ed25519.Ed25519PublicKey:
    try:
        certificate = load_certificate(certificate_der)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = certificate.public_key()
    except (StorageDamaged, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension,
            ValueError, TypeError):
        raise WrongAuthority("The certificate of the audit head is not one of this federation's authority.") from None
    if [str(name.value) for name in names] != [audit_name(federation_of_authority(authority))] \
            or not isinstance(key, ed25519.Ed25519PublicKey):
        raise WrongAuthority("The certificate of the audit head is not one for audit heads.")
    return key


@functools.lru_cache(maxsize=16)
def _federation(authority: x509.Certificate) -> str:
    return federation_of_authority(authority)


def _message(head: AuditHead, authority: x509.Certificate) -> bytes:
    return _DOMAIN + canonical_json([
        _federation(authority), authority_id(authority), head.number, head.chain, micros(head.unix),
        micros(head.restored_unix), micros(head.backup_unix)]).encode()
