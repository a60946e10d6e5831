"""The authority of a federation folder, which makes invitations: what commands, the page and `serve` sign with."""

from __future__ import annotations

from common.config import parse_duration
from common.errors import BadConfiguration
from coordinator.authority import load_authority
from coordinator.enrollment import Authority, EnrollmentSettings
from coordinator.federation import Federation
from coordinator.roster import LedgerRoster

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
