"""The chain of the audit trail: every event carries a SHA-256 over the one before and itself.

So the last one speaks for all. Pure functions; simulations use them too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from semisilo.common.config import canonical_json

__all__ = ["RESTORED", "ChainWalk", "ChainedEvent", "Restore", "link"]

RESTORED = "restored"
"""Kind of the event with which a federation goes on from a backup: its detail has `backup_made_unix`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainedEvent:
    """One event as it was written."""

    number: int
    """From 1, without a gap."""
    unix: float
    kind: str
    study: str
    detail_json: str
    """The canonical JSON that went into the chain."""
    chain: str
    """SHA-256, hex."""

    @property
    def detail(self) -> dict[str, object]:
        """What it is about: each kind of event has its own fields, and those of old versions stay readable."""
        found: dict[str, object] = json.loads(self.detail_json)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """The federation went on from a backup: what happened after the backup is not in the chain."""

    number: int
    """Of the event that says so: the first one that is new."""
    unix: float
    backup_unix: float
    """When the backup was made."""


def link(previous: str, *, number: int, unix: float, kind: str, study: str, detail_json: str) -> str:
    """The chain value of an event.

    Args:
        previous: that of the event before; '' for the first.
    """
    return hashlib.sha256(canonical_json([previous, number, unix, kind, study, detail_json]).encode()).hexdigest()


class ChainWalk:
    """Recomputes a chain event by event, from the first one on."""

    def __init__(self, wanted: Collection[int] = ()) -> None:
        """
        Args:
            wanted: numbers of events whose chain values are kept.
        """
        self.number = 0
        """Events that were found sound."""
        self.chain = ""
        """Of the last of them."""
        self.values: dict[int, str] = {}
        """Number -> chain value, of those that are wanted."""
        self.restores: list[Restore] = []
        self._wanted = frozenset(wanted)

    def step(self, event: ChainedEvent) -> str:
        """Takes the next event; returns what is wrong with it, or an empty text."""
        if event.number != self.number + 1:
            return f"event {self.number + 1} is missing"
        if link(self.chain, number=event.number, unix=event.unix, kind=event.kind, study=event.study,
                detail_json=event.detail_json) != event.chain:
            return f"event {event.number} was altered"
        self.number, self.chain = event.number, event.chain
        if event.number in self._wanted:
            self.values[event.number] = event.chain
        if event.kind == RESTORED:
            backup = event.detail.get("backup_made_unix")
            self.restores.append(Restore(number=event.number, unix=event.unix,
                                         backup_unix=float(backup) if isinstance(backup, (int, float)) else 0.0))
        return ""
