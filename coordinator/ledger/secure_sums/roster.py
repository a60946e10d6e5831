"""The roster in the ledger: which key stands for which silo in secure sums, as a hash chain.

Tests: tests/coordinator/ledger/secure_sums/test_roster.py.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from semisilo.common.secure_aggregation.roster import ADDED, REMOVED, Roster, RosterEntry, append, replay
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["held_identity", "note_identity", "remove_identity", "roster_entries", "roster_number"]


def note_identity(ledger: Ledger, silo: str, identity: bytes, *, now_unix: float) -> bool:
    """Says in the roster that a silo takes part with a key, where that does not stand there.

    Returns: whether it is new.
    Raises: BadRoster when another silo has that key.
    """
    held = held_identity(ledger, silo)
    if held == identity:
        return False
    with ledger.part():
        roster = _roster(ledger)
        if held is not None:
            roster = _append(ledger, roster, silo, held, REMOVED, now_unix=now_unix)
        _append(ledger, roster, silo, identity, ADDED, now_unix=now_unix)
    return True


def remove_identity(ledger: Ledger, silo: str, *, now_unix: float) -> None:
    """Says in the roster that a silo takes part no more; nothing where it has no key there."""
    if (held := held_identity(ledger, silo)) is not None:
        with ledger.part():
            _append(ledger, _roster(ledger), silo, held, REMOVED, now_unix=now_unix)


def roster_number(ledger: Ledger) -> int:
    """Number of the last entry; 0 before the first."""
    return int(ledger.query("SELECT coalesce(max(number), 0) AS number FROM silo_identity")[0]["number"])


def roster_entries(ledger: Ledger, *, first: int = 0, number: int | None = None) -> tuple[RosterEntry, ...]:
    """All entries from `first` on and up to one, or to the last, in order."""
    rows = ledger.query("SELECT * FROM silo_identity WHERE number >= ? AND number <= ? ORDER BY number", first,
                        2**62 if number is None else number)
    return tuple(RosterEntry(number=row["number"], silo=row["silo"], identity=row["identity"], change=row["change"],
                             chain=row["chain"]) for row in rows)


def held_identity(ledger: Ledger, silo: str) -> bytes | None:
    """The key that stands for a silo; None where none does. Asked at every call of a silo."""
    rows = ledger.query("SELECT identity, change FROM silo_identity WHERE silo = ? ORDER BY number DESC LIMIT 1", silo)
    return bytes(rows[0]["identity"]) if rows and rows[0]["change"] == ADDED else None


_SEEN: WeakKeyDictionary[Ledger, Roster] = WeakKeyDictionary()
"""The roster as this process last found it in a ledger: who joins is appended to it, and of a thousand silos that join
one after the other each would have all entries checked again."""


def _roster(ledger: Ledger) -> Roster:
    """The roster in the ledger, its entries checked. Raises: BadRoster."""
    seen = _SEEN.get(ledger, Roster())
    entries = roster_entries(ledger, first=seen.head.number)
    if seen.head.number and (not entries or entries[0].chain != seen.head.chain):  # a transaction was taken back
        seen, entries = Roster(), roster_entries(ledger)
    _SEEN[ledger] = found = replay(seen, entries)
    return found


def _append(ledger: Ledger, roster: Roster, silo: str, identity: bytes, change: str, *, now_unix: float) -> Roster:
    roster, entry = append(roster, silo=silo, identity=identity, change=change)
    with ledger.part() as db:
        db.execute("INSERT INTO silo_identity VALUES (?, ?, ?, ?, ?, ?)",
                   (entry.number, silo, identity, change, entry.chain, now_unix))
        ledger.event("silo_identity", silo=silo, number=entry.number, identity=identity.hex(), change=change)
    return roster
