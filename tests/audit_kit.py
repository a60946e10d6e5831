"""Shared by the tests of the audit trail: an authority, its audit key, and heads that it has signed."""

from __future__ import annotations

import functools

from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.audit.chain import ChainedEvent, ChainWalk, link
from semisilo.common.audit.head import AuditHead, SignedHead
from semisilo.common.audit.signature import sign_head
from semisilo.common.config import canonical_json
from semisilo.common.identity.certificates import certificate_der, issue_audit_certificate, make_authority
from semisilo.coordinator.federation.audit_key import AuditKey

NOW = 1_800_000_000.0


def audit_key(federation: str = "lung") -> AuditKey:
    """The audit key of a federation; each other name makes another authority."""
    return _audit_key(federation)


@functools.cache
def _audit_key(federation: str) -> AuditKey:
    ca_key, ca = make_authority(federation, now=NOW)
    key = ed25519.Ed25519PrivateKey.generate()
    return AuditKey(key=key, authority=ca, certificate_der=certificate_der(
        issue_audit_certificate(ca_key, ca, key.public_key(), now=NOW)))


def signed(number: int, chain: str = "", *, key: AuditKey | None = None, unix: float = NOW, restored_unix: float = 0.0,
           backup_unix: float = 0.0) -> SignedHead:
    """A head as the coordinator hands it out; its chain value is made of its number where none is given."""
    key = audit_key() if key is None else key
    head = AuditHead(number=number, chain=chain or f"{number:064x}", unix=unix, restored_unix=restored_unix,
                     backup_unix=backup_unix)
    return sign_head(head, key=key.key, certificate_der=key.certificate_der, authority=key.authority)


def trail(*kinds: str, fork: str = "") -> list[ChainedEvent]:
    """A sound trail with an event of each kind; `fork` makes it another one."""
    details: dict[str, dict[str, object]] = {"restored": {"backup_made_unix": NOW - 100.0}}
    return timed_trail(*((NOW + number, kind, details.get(kind, {"fork": fork}))
                         for number, kind in enumerate(kinds, 1)))


def timed_trail(*written: tuple[float, str, dict[str, object]]) -> list[ChainedEvent]:
    """A sound trail with events of these times, kinds and details."""
    events: list[ChainedEvent] = []
    for number, (unix, kind, detail) in enumerate(written, 1):
        text = canonical_json(detail)
        chain = link(events[-1].chain if events else "", number=number, unix=unix, kind=kind, study="",
                     detail_json=text)
        events.append(ChainedEvent(number=number, unix=unix, kind=kind, study="", detail_json=text, chain=chain))
    return events


def walked(events: list[ChainedEvent], *wanted: int) -> ChainWalk:
    """A walk over all of a sound trail."""
    walk = ChainWalk(wanted)
    assert [walk.step(event) for event in events] == [""] * len(events)
    return walk
