"""The authority of a federation folder, which makes invitations: what commands, the page and `serve` sign with.

Tests: tests/coordinator/federation/test_operate.py.
"""

from __future__ import annotations

from semisilo.common.config import parse_duration
from semisilo.common.errors import BadConfiguration
from semisilo.coordinator.federation.authority import load_authority
from semisilo.coordinator.federation.enrollment import Authority, EnrollmentSettings
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.roster import LedgerRoster

__all__ = ["authority_of"]


def authority_of(federation: Federation, roster: LedgerRoster) -> Authority:
    """The federation's authority, which signs and revokes.

    Raises: StorageDamaged for files that are missing; BadConfiguration when they are another federation's.
    """
    life = parse_duration(federation.config.limits.invitation_life, where="invitation_life")
    keys = load_authority(federation.authority)
    if keys.federation != federation.name:
        raise BadConfiguration(f'{federation.folder / "federation.toml"}: [federation]: name = "{federation.name}", but'
                               f" {federation.authority} was made for '{keys.federation}'.",
                               remedy=f'Write name = "{keys.federation}" again.')
    return Authority(keys=keys, roster=roster,
                     settings=EnrollmentSettings(invitation_seconds=life))
