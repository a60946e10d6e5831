"""Invitations and memberships as the roster keeps them: typed values that need no cryptography to be read."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Invitation", "SiloStatus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """An invitation as the roster keeps it."""

    silo: str
    expires_unix: float
    used_key_fingerprint: bytes | None = None
    """`common.identity.fingerprint` of the key that used it; None while it is open."""
    certificate_der: bytes | None = field(default=None, repr=False)
    """What was issued for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloStatus:
    """What every RPC asks of a silo."""

    revoked: bool
    valid_serials: frozenset[int]
    """Serials issued and neither revoked nor replaced by a later invitation; expiry is not looked at."""
    left_unix: float | None = None
    """When it left on its own wish; None while it is a member."""
