"""The files of a federation's `authority` folder: `ca.key`, `ca.pem`, `coordinator.key`, `coordinator.pem`. Those of
the audit trail's key are in `semisilo.coordinator.federation.audit_key`. While a certificate is renewed, and after a
failure then, `coordinator.next.key` is there as well.

Tests: tests/coordinator/federation/test_enrollment.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from semisilo.common.errors import BadConfiguration, ClockSkew, StorageDamaged, UsageError
from semisilo.common.identity.certificates import (
    BACKDATE_SECONDS,
    COORDINATOR_RENEW_SECONDS,
    certificate_pem,
    federation_of_authority,
    fingerprint,
    issue_coordinator_certificate,
    key_from_pem,
    key_to_pem,
    load_certificate,
    make_authority,
    make_key,
    not_after_unix,
    not_before_unix,
    utc_text,
)
from semisilo.common.rpc.tls import Credentials
from semisilo.common.storage.durable import sync_folder, write_durably, write_secret

__all__ = ["AuthorityKeys", "CoordinatorCertificate", "create_authority", "ensure_coordinator_certificate",
           "load_authority", "read_authority_file", "read_authority_secret"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorityKeys:
    """A federation's authority in memory."""

    federation: str
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """The authority's certificate, PEM: what both sides pin."""
        return certificate_pem(self.certificate)


def create_authority(folder: Path, federation: str, *, now: float) -> AuthorityKeys:
    """Makes a federation's authority in `folder`, once. An attempt that was cut short is begun again.

    Raises: UsageError when the folder has one already, or the federation's name is not allowed.
    """
    if (folder / "ca.pem").exists():
        raise UsageError(f"{folder} holds an authority already.",
                         remedy="Choose another folder; a new authority would lock out every silo of this one.")
    key, certificate = make_authority(federation, now=now)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The certificate last: while it is missing, no line has been sent out that pins this key.
    write_secret(folder / "ca.key", key_to_pem(key))
    write_durably(folder / "ca.pem", certificate_pem(certificate))
    sync_folder(folder.parent)
    return AuthorityKeys(federation=federation, key=key, certificate=certificate)


def load_authority(folder: Path) -> AuthorityKeys:
    """The authority in a folder.

    Raises: StorageDamaged when a file is missing or the two do not belong together; BadConfiguration when others than
        the owner may read the key.
    """
    certificate = load_certificate(read_authority_file(folder / "ca.pem"), where=str(folder / "ca.pem"))
    key = key_from_pem(read_authority_secret(folder / "ca.key"), where=str(folder / "ca.key"))
    if not _belong_together(key, certificate):
        raise StorageDamaged(f"{folder}: ca.key is not the key of ca.pem.", remedy="Restore both from one backup.")
    return AuthorityKeys(federation=federation_of_authority(certificate), key=key, certificate=certificate)


def ensure_coordinator_certificate(folder: Path, now: float) -> Credentials:
    """The coordinator's credentials; issued anew when missing, damaged, of another authority, or near their end.

    Key and certificate are two files. The new key lies beside the old one until its certificate is there, so there is a
    pair that fits at every instant, whatever fails or is killed.
    Raises: what `load_authority` raises; ClockSkew when by this clock the authority has ended, or is not made yet;
        OSError.
    """
    authority = load_authority(folder)
    key_path, next_path, certificate_path = _files_in(folder)
    if _usable(authority, next_path, certificate_path, now=now) is not None:
        os.replace(next_path, key_path)
        sync_folder(folder)
    kept = _usable(authority, key_path, certificate_path, now=now)
    if kept is not None:
        return kept
    if now < not_before_unix(authority.certificate):
        raise ClockSkew(f"This machine's clock says {utc_text(now)}, which is before this federation's authority was "
                        f"made ({utc_text(not_before_unix(authority.certificate) + BACKDATE_SECONDS)}).",
                        remedy="Set the clock.")
    key = make_key()
    certificate = issue_coordinator_certificate(authority.key, authority.certificate, key.public_key(), now=now)
    made = Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(certificate))
    write_secret(next_path, made.key_pem)
    write_durably(certificate_path, made.certificate_pem)
    os.replace(next_path, key_path)
    sync_folder(folder)
    return made


def _files_in(folder: Path) -> tuple[Path, Path, Path]:
    """The coordinator's key, its next one, and its certificate."""
    return folder / "coordinator.key", folder / "coordinator.next.key", folder / "coordinator.pem"


def _still_valid(folder: Path, now: float) -> Credentials | None:
    """The credentials that lie in the folder, until they end."""
    authority = load_authority(folder)
    key_path, next_path, certificate_path = _files_in(folder)
    return next((found for key in (key_path, next_path)
                 if (found := _usable(authority, key, certificate_path, now=now, to_the_end=True)) is not None), None)


class CoordinatorCertificate:
    """What `coordinator serve` shows at every handshake; `refresh` now and then keeps it from expiring."""

    def __init__(self, folder: Path, *, now: float) -> None:
        """Where no new certificate can be written, the present one serves to its end; `refresh` tries again.

        Raises: what `ensure_coordinator_certificate` raises, where there is none.
        """
        self._folder = folder
        try:
            self._current = ensure_coordinator_certificate(folder, now)
        except OSError:
            if (present := _still_valid(folder, now)) is None:
                raise
            self._current = present

    def current(self) -> Credentials:
        """The credentials; the same object until they change. Safe from any thread."""
        return self._current

    @property
    def not_after_unix(self) -> float:
        """When the present certificate ends, Unix seconds."""
        return not_after_unix(load_certificate(self._current.certificate_pem))

    def refresh(self, now: float) -> bool:
        """Issues the next certificate when it is time (once an hour is plenty); whether it did.

        Raises: what `ensure_coordinator_certificate` raises; the credentials stay.
        """
        fresh = ensure_coordinator_certificate(self._folder, now)
        if fresh == self._current:
            return False
        self._current = fresh
        return True


def _usable(authority: AuthorityKeys, key_path: Path, certificate_path: Path, *, now: float,
            to_the_end: bool = False) -> Credentials | None:
    """A pair that fits; until it is to be renewed, or with `to_the_end` until it ends."""
    try:
        certificate = load_certificate(read_authority_file(certificate_path))
        key_pem = read_authority_secret(key_path)
        fits = _belong_together(key_from_pem(key_pem), certificate)
        certificate.verify_directly_issued_by(authority.certificate)
    except (StorageDamaged, BadConfiguration, InvalidSignature, ValueError, TypeError):
        return None
    begin, end = not_before_unix(certificate), not_after_unix(certificate)
    age, life = now - begin - BACKDATE_SECONDS, end - begin - BACKDATE_SECONDS
    # A shorter life (the authority's end is near) is renewed at two thirds of it as well.
    fresh = begin <= now and age < (life if to_the_end else min(COORDINATOR_RENEW_SECONDS, life * 2 / 3))
    return Credentials(key_pem=key_pem, certificate_pem=certificate_pem(certificate)) if fits and fresh else None


def _belong_together(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    public = certificate.public_key()
    return isinstance(public, ec.EllipticCurvePublicKey) and fingerprint(public) == fingerprint(key.public_key())


def read_authority_file(path: Path) -> bytes:
    """The content of a file of the folder. Raises: StorageDamaged when it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StorageDamaged(f"{path}: no such file.",
                             remedy="Run the command in a federation folder, or restore the file from a backup."
                             ) from None


def read_authority_secret(path: Path) -> bytes:
    """The same of a private key. Raises: BadConfiguration when others than the owner may read it."""
    content = read_authority_file(path)
    if os.name == "posix" and path.stat().st_mode & 0o007:
        raise BadConfiguration(f"{path}: every user of this machine may read this private key.",
                               remedy=f"Run: chmod 600 {path}")
    return content
