"""Shared by the tests of identity: a roster in memory, a federation on disk, and its two ports on 127.0.0.1."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc.aio

from semisilo.common.errors import InvitationUsed, UnknownSilo
from semisilo.common.identity.certificates import certificate_pem, issue_silo_certificate, key_to_pem, make_key
from semisilo.common.rpc.tls import Credentials, listen, server_credentials, server_options
from semisilo.coordinator.federation.authority import AuthorityKeys, CoordinatorCertificate, create_authority
from semisilo.coordinator.federation.enrollment import Authority, EnrollmentSettings, Invitation, SiloStatus
from semisilo.coordinator.rpc.enrollment_service import EnrollService, RenewalService
from semisilo.coordinator.rpc.silo_calls import SiloCalls


@dataclass
class MemoryRoster:
    """`semisilo.coordinator.federation.enrollment.Roster` in dictionaries; the ledger's is tested beside the ledger."""

    invitations: dict[bytes, Invitation] = field(default_factory=dict)
    serials: dict[str, set[int]] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    gone: dict[str, float] = field(default_factory=dict)
    """Silos that have left -> when."""
    issued: set[tuple[str, int]] = field(default_factory=set)

    def add_invitation(self, *, silo: str, token_hash: bytes, expires_unix: float) -> None:
        for known, invitation in list(self.invitations.items()):
            if invitation.silo == silo and invitation.used_key_fingerprint is None:
                del self.invitations[known]
        self.invitations[token_hash] = Invitation(silo=silo, expires_unix=expires_unix)

    def invitation(self, token_hash: bytes) -> Invitation | None:
        return self.invitations.get(token_hash)

    def use_invitation(self, token_hash: bytes, *, key_fingerprint: bytes, certificate_der: bytes, serial: int,
                       not_after_unix: float) -> None:
        invitation = self.invitations[token_hash]
        if invitation.used_key_fingerprint is not None:
            raise InvitationUsed("used")
        self.invitations[token_hash] = replace(invitation, used_key_fingerprint=key_fingerprint,
                                               certificate_der=certificate_der)
        self.serials[invitation.silo] = {serial}
        self.issued.add((invitation.silo, serial))
        self.revoked.discard(invitation.silo)
        self.gone.pop(invitation.silo, None)

    def add_certificate(self, *, silo: str, serial: int, not_after_unix: float) -> None:
        self.serials[silo].add(serial)
        self.issued.add((silo, serial))

    def silo_status(self, silo: str) -> SiloStatus | None:
        if silo not in self.serials:
            return None
        return SiloStatus(revoked=silo in self.revoked, left_unix=self.gone.get(silo))

    def accepts(self, silo: str, serial: int) -> bool:
        return serial in self.serials.get(silo, ())

    def standing(self, silo: str, serial: int) -> tuple[SiloStatus | None, bool]:
        return self.silo_status(silo), self.accepts(silo, serial)

    def leave(self, silo: str) -> float:
        if silo not in self.gone:
            self.serials[silo].clear()
        return self.gone.setdefault(silo, time.time())

    def has_issued(self, silo: str, serial: int) -> bool:
        return (silo, serial) in self.issued

    def revoke(self, silo: str) -> None:
        if silo not in self.serials:
            raise UnknownSilo(silo)
        self.serials[silo].clear()
        self.revoked.add(silo)

    def open_invitations(self, now_unix: float) -> int:
        return sum(invitation.used_key_fingerprint is None and invitation.expires_unix > now_unix
                   for invitation in self.invitations.values())


@dataclass
class Federation:
    """A coordinator's side: folder, authority, roster, and once `serving`, two addresses."""

    folder: Path
    keys: AuthorityKeys
    roster: MemoryRoster
    authority: Authority
    address: str = "127.0.0.1:1"
    enrollment_address: str = "127.0.0.1:1"

    def invite(self, silo: str = "hospital-a", *, now: float | None = None, life_seconds: float | None = None) -> str:
        return self.authority.invite(silo, address=self.address, enrollment_address=self.enrollment_address,
                                     now=time.time() if now is None else now, life_seconds=life_seconds)

    def silo_credentials(self, silo: str, *, now: float, seconds: float = 3600.0, known: bool = True) -> Credentials:
        """Credentials made without enrolment, for example with dates of choice; in the roster if `known`."""
        key = make_key()
        certificate = issue_silo_certificate(self.keys.key, self.keys.certificate, key.public_key(), silo, now=now,
                                             seconds=seconds)
        if known:
            self.roster.serials.setdefault(silo, set()).add(certificate.serial_number)
        return Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(certificate))


def make_federation(folder: Path, name: str = "lung", *, now: float | None = None,
                    settings: EnrollmentSettings | None = None,
                    monotonic: Callable[[], float] = time.monotonic) -> Federation:
    keys = create_authority(folder, name, now=time.time() if now is None else now)
    roster = MemoryRoster()
    return Federation(folder=folder, keys=keys, roster=roster,
                      authority=Authority(keys=keys, roster=roster, settings=settings, monotonic=monotonic))


@contextlib.asynccontextmanager
async def serving(federation: Federation, *, shown: Callable[[], Credentials] | None = None,
                  clock: Callable[[], float] = time.time) -> AsyncIterator[Federation]:
    """Both ports for real: enrolment without, work with certificates of silos (renewal is the RPC served there)."""
    shown = shown or CoordinatorCertificate(federation.folder, now=time.time()).current
    enrollment = grpc.aio.server(options=server_options(strangers=True))
    work = grpc.aio.server(options=server_options())
    EnrollService(federation.authority, clock=clock).add_to(enrollment)
    RenewalService(federation.authority, federation.roster, clock=clock).add_to(
        work, SiloCalls(federation.keys.federation))
    federation.enrollment_address = f"127.0.0.1:{listen(enrollment, '127.0.0.1:0', server_credentials(shown))}"
    federation.address = "127.0.0.1:{}".format(listen(
        work, "127.0.0.1:0", server_credentials(shown, silo_authority_pem=federation.keys.pem)))
    await enrollment.start()
    await work.start()
    try:
        yield federation
    finally:
        await enrollment.stop(0)
        await work.stop(0)
