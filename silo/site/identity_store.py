"""The silo's identity on disk: private key, certificate, pinned authority and addresses, always of one piece.

    home/identity              -> identities/3     a link; replacing it is the one step that changes the identity
    home/identities/3/         key.pem (0600)  certificate.pem  ca.pem  federation.json
    home/identities/pending/   keys made for a request that has not been answered yet
    home/.identity.copied/     where a copy that followed links made a folder of the link: that folder, until it is
                               replaced

A kill at any instant leaves the old identity or the new one, never a key beside another key's certificate.

Tests: tests/silo/membership/test_enrollment.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass, replace
from json import JSONDecodeError, loads
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from semisilo.common.audit.signature import authority_id
from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import BadConfiguration, StorageDamaged, UsageError
from semisilo.common.identity.certificates import (
    key_from_pem,
    key_to_pem,
    load_certificate,
    make_key,
    not_after_unix,
    not_before_unix,
)
from semisilo.common.rpc.tls import Credentials
from semisilo.common.storage.durable import sync_folder, sync_found, write_durably, write_secret
from semisilo.silo.site.home import home_option

__all__ = ["FederationFile", "Identity", "drop_pending_keys", "has_identity", "install_identity", "load_identity",
           "move_identity", "pending_key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationFile:
    """`federation.json`: which federation, as whom, where, until when."""

    federation: str
    silo: str
    address: str
    """Where work is served, "host:port"."""
    enrollment_address: str
    """Where this identity was enrolled; nothing goes there again without a new invitation, which has its own."""
    renew_unix: float
    """When the certificate should be renewed."""
    invitation: str
    """SHA-256 of the token that this identity began with, hex: the same line again changes nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who this silo is."""

    about: FederationFile
    credentials: Credentials
    authority_pem: bytes
    not_before_unix: float
    not_after_unix: float
    folder: Path
    """Where its files are; another one after every renewal."""

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.about.federation

    @property
    def silo(self) -> str:
        """The silo's name."""
        return self.about.silo

    @property
    def address(self) -> str:
        """Where work is served."""
        return self.about.address

    @property
    def authority(self) -> str:
        """`authority_id` of the federation's."""
        return authority_id(load_certificate(self.authority_pem))


def has_identity(home: Path) -> bool:
    """Whether the home folder holds an identity, usable or not."""
    return any(each.is_symlink() or each.exists() for each in (home / "identity", _copied(home)))


def load_identity(home: Path) -> Identity:
    """The identity of a home folder.

    Raises: UsageError when there is none; StorageDamaged when a file is missing or damaged; BadConfiguration when
        others than the owner may read the key.
    """
    if not has_identity(home):
        raise UsageError(f"{home} holds no identity of a silo.",
                         remedy="Enrol first: silo enroll <the line from the coordinator's operator>"
                                + home_option(home))
    try:
        return _read(_current(home))
    except FileNotFoundError:
        pass
    try:
        return _read(_current(home))  # a renewal in another process has just swept the folder that we read
    except FileNotFoundError as error:
        raise StorageDamaged(f"{error.filename}: no such file.",
                             remedy="Restore it from a backup, or enrol again with --force.") from None


def install_identity(home: Path, about: FederationFile, *, key: ec.EllipticCurvePrivateKey, certificate_pem: bytes,
                     authority_pem: bytes) -> Identity:
    """Makes this the identity of the home folder, in one step, and sweeps the one before.

    Raises: OSError, with the identity unchanged.
    """
    root = _root(home)
    numbers = [int(entry.name) for entry in root.iterdir() if entry.name.isdigit()]
    number = str(1 + max(numbers, default=0))
    staging = root / f".{number}.{secrets.token_hex(4)}.tmp"
    staging.mkdir(mode=0o700)
    write_secret(staging / "key.pem", key_to_pem(key))
    write_durably(staging / "certificate.pem", certificate_pem)
    write_durably(staging / "ca.pem", authority_pem)
    write_durably(staging / "federation.json", canonical_json(about).encode())
    os.rename(staging, root / number)
    sync_folder(root)
    _point(home, number)
    _sweep(home, keep=number)
    return _read(root / number)


def move_identity(home: Path, identity: Identity, address: str) -> Identity:
    """The same identity with another address of the coordinator's, in one step.

    Raises: OSError, with the identity unchanged.
    """
    return install_identity(home, replace(identity.about, address=address),
                            key=key_from_pem(identity.credentials.key_pem), authority_pem=identity.authority_pem,
                            certificate_pem=identity.credentials.certificate_pem)


def pending_key(home: Path, purpose: str) -> ec.EllipticCurvePrivateKey:
    """The key for a request: made and on disk before it is first used, and the same one until it has been answered.

    Args:
        purpose: names the request, for example "renew" or the beginning of a token's hash; letters, digits, hyphens.
    """
    assert re.fullmatch(r"[a-z0-9-]{1,64}", purpose), purpose
    folder = _root(home) / "pending"
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / f"{purpose}.key.pem"
    sync_found(path)  # an invitation that is spent with it must not outlive it
    with contextlib.suppress(FileNotFoundError, StorageDamaged):
        return key_from_pem(path.read_bytes(), where=str(path))
    key = make_key()
    write_secret(path, key_to_pem(key))
    sync_folder(_root(home))
    return key


def drop_pending_keys(home: Path) -> None:
    """Forgets keys whose requests have been answered."""
    shutil.rmtree(_root(home) / "pending", ignore_errors=True)


def _root(home: Path) -> Path:
    root = home / "identities"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root


def _current(home: Path) -> Path:
    # Resolved once, so that all four files come from the same folder.
    link = home / "identity"
    return Path(os.path.realpath(link if link.is_symlink() or link.exists() else _copied(home)))


def _copied(home: Path) -> Path:
    return home / ".identity.copied"


def _point(home: Path, number: str) -> None:
    link = home / f".identity.{secrets.token_hex(4)}.tmp"
    os.symlink(os.path.join("identities", number), link)
    if (home / "identity").is_dir() and not (home / "identity").is_symlink():
        # `scp -r` follows links, and a link does not replace a folder. Killed in between, the folder is the identity
        # under its other name.
        shutil.rmtree(_copied(home), ignore_errors=True)
        os.rename(home / "identity", _copied(home))
        sync_folder(home)
    os.replace(link, home / "identity")
    sync_folder(home)


def _sweep(home: Path, *, keep: str) -> None:
    for entry in _root(home).iterdir():
        if entry.name not in (keep, "pending"):
            shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(_copied(home), ignore_errors=True)
    for link in home.glob(".identity.*.tmp"):
        link.unlink(missing_ok=True)


def _read(folder: Path) -> Identity:
    key_path, certificate_path = folder / "key.pem", folder / "certificate.pem"
    key_pem = key_path.read_bytes()
    if os.name == "posix" and key_path.stat().st_mode & 0o007:
        raise BadConfiguration(f"{key_path}: every user of this machine may read this private key.",
                               remedy=f"Run: chmod 600 {key_path}")
    key_from_pem(key_pem, where=str(key_path))
    certificate_pem = certificate_path.read_bytes()
    certificate = load_certificate(certificate_pem, where=str(certificate_path))
    authority_pem = (folder / "ca.pem").read_bytes()
    load_certificate(authority_pem, where=str(folder / "ca.pem"))
    about_path = folder / "federation.json"
    try:
        about = from_dict(FederationFile, loads(about_path.read_bytes()), where=str(about_path))
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise StorageDamaged(f"{about_path}: not valid JSON.",
                             remedy="Restore it from a backup, or enrol again with --force.") from None
    return Identity(about=about, authority_pem=authority_pem, folder=folder,
                    credentials=Credentials(key_pem=key_pem, certificate_pem=certificate_pem),
                    not_before_unix=not_before_unix(certificate), not_after_unix=not_after_unix(certificate))
