"""Heads of the audit trail: number and chain value of its last event, signed by the coordinator.

Whoever keeps one can prove later that the trail was cut or rewritten. Who may sign them is in
`semisilo.common.audit.signature`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AuditHead", "SignedHead", "micros"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditHead:
    """The end of an audit trail. Times are Unix seconds, exact to the microsecond."""

    number: int
    """Of the last event."""
    chain: str
    """Its chain value, hex."""
    unix: float
    """When it was written."""
    restored_unix: float = 0.0
    """When the federation last went on from a backup; 0 for never."""
    backup_unix: float = 0.0
    """When that backup was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedHead:
    """A head with its proof."""

    head: AuditHead
    signature: bytes
    certificate_der: bytes
    """Of the key that has signed."""


def micros(unix: float) -> int:
    """A time as heads have it: floats of both sides may differ in what is smaller."""
    return round(unix * 1e6)
