"""The roster of identities: a chain that every silo replays, so that all see the same silos come and go.

The coordinator writes it; it cannot change or drop an entry that a silo has seen, nor show two silos different rosters
without one of them, or the engineers who compare the heads, noticing. Each entry carries a SHA-256 over the one before
and itself. The head's digest goes into the context of the masks: silos with different rosters produce noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from semisilo.common.config import canonical_json
from semisilo.common.errors import BadRoster
from semisilo.common.secure_aggregation.messages import IDENTITY_BYTES

__all__ = ["ADDED", "EMPTY", "MAX_ROSTER", "REMOVED", "Roster", "RosterEntry", "RosterHead", "append", "replay",
           "roster_of"]

ADDED = "added"
REMOVED = "removed"
MAX_ROSTER = 4096
"""Entries that a federation's roster may have: it goes to every silo with every sum, 100 bytes each."""
_ENTRY = b"semisilo roster entry v1\0"
_HEAD = b"semisilo roster head v1\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterEntry:
    """One change: an identity begins to stand for a silo, or ceases to."""

    number: int
    """From 1, without a gap."""
    silo: str
    identity: bytes
    """Ed25519 public key. Of a removal: the one that is removed."""
    change: str
    """ADDED or REMOVED. A new identity of a silo is a removal and an addition."""
    chain: bytes
    """SHA-256 over the chain value before and this entry: 32 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterHead:
    """The end of a roster, as a silo remembers it."""

    number: int
    """Of the last entry; 0 for an empty roster."""
    chain: bytes
    """Its chain value; empty for an empty roster."""

    def digest(self) -> bytes:
        """32 bytes, for the context of masks."""
        return hashlib.sha256(_HEAD + canonical_json([self.number, self.chain.hex()]).encode()).digest()


EMPTY = RosterHead(number=0, chain=b"")


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """What a chain says up to its head: kept by a silo, and gone on from."""

    head: RosterHead = EMPTY
    present: Mapping[str, bytes] = field(default_factory=dict)
    """Silo -> its identity, of those that are in the federation now."""


def append(roster: Roster, *, silo: str, identity: bytes, change: str) -> tuple[Roster, RosterEntry]:
    """The next entry, and the roster with it. At the coordinator.

    Raises: BadRoster when the silo is there already, or was not, or not with this identity.
    """
    number = roster.head.number + 1
    entry = RosterEntry(number=number, silo=silo, identity=identity, change=change,
                        chain=_link(roster.head.chain, number=number, silo=silo, identity=identity, change=change))
    return _step(roster, entry), entry


def roster_of(entries: Sequence[RosterEntry]) -> Roster:
    """The roster that a whole chain makes: for whoever has seen none of it before.

    Raises: BadRoster, as `replay` does.
    """
    return replay(Roster(), entries)


def replay(roster: Roster, entries: Sequence[RosterEntry]) -> Roster:
    """Goes on from what was seen, with entries that may begin anywhere at or before the next one.

    Entries up to the remembered head are compared with it where they can be: the one of its number must have its chain
    value. To be given nothing new is no fault: a chain never grows shorter, but an answer may be.

    Args:
        roster: what this silo remembers; `Roster()` for nothing.
        entries: in order and without a gap, as a coordinator has sent them.
    Raises: BadRoster, naming the entry, for a gap, an entry that was changed, or a chain that is another than the one
        whose head is remembered (a fork).
    """
    known = head = roster.head
    present = dict(roster.present)
    taken = set(present.values())
    for entry in entries:
        if entry.number < 1:
            raise BadRoster(f"The roster has an entry {entry.number}; the first one is 1.")
        if entry.number < known.number:
            continue
        if entry.number == known.number:
            if entry.chain != known.chain:
                raise BadRoster(f"The roster is another one than this silo has seen: entry {entry.number} has the "
                                f"chain value {entry.chain.hex()[:16]} and had {known.chain.hex()[:16]}.",
                                remedy=_FORK_REMEDY)
            continue
        if entry.number != head.number + 1:
            raise BadRoster(f"Entry {head.number + 1} of the roster is missing: {entry.number} follows.")
        right = _link(head.chain, number=entry.number, silo=entry.silo, identity=entry.identity,
                      change=entry.change)
        if entry.chain != right:
            raise BadRoster(f"Entry {entry.number} of the roster does not continue what this silo has seen: it was "
                            "changed, or the roster is another one.", remedy=_FORK_REMEDY)
        _change(present, taken, entry)
        head = RosterHead(number=entry.number, chain=entry.chain)
    if entries and entries[-1].number < known.number:
        raise BadRoster(f"The roster ends at entry {entries[-1].number}; this silo has seen {known.number}.",
                        remedy=_FORK_REMEDY)
    return Roster(head=head, present=present)


_FORK_REMEDY = ("If the coordinator went on from a backup, its operator says so; then compare identities with the "
                "other sites and accept the roster anew. If not, somebody shows silos different rosters.")


def _link(chain: bytes, *, number: int, silo: str, identity: bytes, change: str) -> bytes:
    return hashlib.sha256(
        _ENTRY + canonical_json([chain.hex(), number, silo, identity.hex(), change]).encode()).digest()


def _step(roster: Roster, entry: RosterEntry) -> Roster:
    present = dict(roster.present)
    _change(present, set(present.values()), entry)
    return Roster(head=RosterHead(number=entry.number, chain=entry.chain), present=present)


def _change(present: dict[str, bytes], taken: set[bytes], entry: RosterEntry) -> None:
    """Changes who is present as an entry says; `taken` are their identities. Raises: BadRoster."""
    held = present.get(entry.silo)
    if len(entry.identity) != IDENTITY_BYTES or entry.change not in (ADDED, REMOVED):
        raise BadRoster(f"Entry {entry.number} of the roster is not a change of an identity.")
    if entry.change == ADDED:
        if held is not None:
            raise BadRoster(f"Entry {entry.number} of the roster adds silo '{entry.silo}', which is there.")
        if entry.identity in taken:
            raise BadRoster(f"Entry {entry.number} of the roster gives silo '{entry.silo}' the identity of another.")
        present[entry.silo] = entry.identity
        taken.add(entry.identity)
    else:
        if held != entry.identity:
            raise BadRoster(f"Entry {entry.number} of the roster removes an identity that silo '{entry.silo}' does not "
                            "have.")
        del present[entry.silo]
        taken.discard(entry.identity)
