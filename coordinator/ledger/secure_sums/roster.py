"""The roster in the ledger: which key stands for which silo in secure sums, as a hash chain.

Tests: tests/coordinator/ledger/secure_sums/test_roster.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from semisilo.common.errors import BadRoster
from semisilo.common.secure_aggregation.roster import ADDED, MAX_ROSTER, REMOVED, Roster, RosterEntry, append, replay
from semisilo.common.text.describe import describe_seconds
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["held_identity", "note_identity", "remove_identity", "roster_entries", "roster_number"]


_CHANGES_AT_ONCE, _CHANGE_SECONDS = 4, 86400.0
"""A silo may take another key so often in a row, then once in this time. A key is lost with the folder that holds it,
and every one stays in the roster for good."""
_SHARE_OF_ROOM = 40
"""A change leaves so many entries free for each that its silo has by then. So no silo uses up the roster, however long
it takes: one alone comes to 106 of 4096 entries, and ten that do nothing else come to 872 together."""
_FOR_REMOVALS = 64
"""Entries that are kept for silos that are revoked or leave."""


def note_identity(ledger: Ledger, silo: str, identity: bytes, *, now_unix: float) -> bool:
    """Says in the roster that a silo takes part with a key, where that does not stand there.

    Returns: whether it is new.
    Raises: BadRoster when another silo has that key, the silo has changed its own too often, or the roster has no room.
    """
    held = held_identity(ledger, silo)
    if held == identity:
        return False
    _check_room(ledger, silo, now_unix=now_unix, change=held is not None)
    with ledger.part():
        roster = _roster(ledger)
        if held is not None:
            roster = _append(ledger, roster, silo, held, REMOVED, now_unix=now_unix)
        _append(ledger, roster, silo, identity, ADDED, now_unix=now_unix)
    return True


def remove_identity(ledger: Ledger, silo: str, *, now_unix: float) -> None:
    """Says in the roster that a silo takes part no more; nothing where it has no key there."""
    # A roster that is longer than silos take would end every sum. The silo is asked nothing more in any case.
    if (held := held_identity(ledger, silo)) is not None and roster_number(ledger) < MAX_ROSTER:
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


def _check_room(ledger: Ledger, silo: str, *, now_unix: float, change: bool) -> None:
    """Raises: BadRoster where a silo may not have another key now, by what stands in the ledger."""
    number = roster_number(ledger)
    if not change:
        if number + 1 > MAX_ROSTER - _FOR_REMOVALS:
            raise BadRoster(f"The roster of keys is full: it has {number} entries, and no further silo can take part in"
                            " secure sums.", remedy="Found another federation for further silos.")
        return
    rows = ledger.query("SELECT change, unix FROM silo_identity WHERE silo = ? ORDER BY number", silo)
    again = ("Put secure/identity.key of its home back from a backup, or have the coordinator's operator revoke and"
             " invite it again.")
    # What a clock that was set ahead has noted says nothing of when it was.
    if (wait := _seconds_to_change([row["unix"] for row in rows if row["change"] == ADDED][1:], now_unix)) > 0:
        raise BadRoster(f"Silo '{silo}' changes its key for secure sums too often: it may have another one in"
                        f" {describe_seconds(wait)}.", remedy=again)
    own = len(rows) + 2  # the one before is removed, and the new one added
    if own * _SHARE_OF_ROOM > MAX_ROSTER - _FOR_REMOVALS - (number + 2):
        raise BadRoster(f"Silo '{silo}' has changed its key for secure sums so often that the roster, which has"
                        f" {number} of {MAX_ROSTER} entries, has no room for another.", remedy=again)


def _seconds_to_change(changes_unix: Sequence[float], now_unix: float) -> float:
    """How long a silo must wait that has changed its key at these times; 0 where it may do so now."""
    used, then = 0.0, 0.0
    for unix in changes_unix:
        if unix <= now_unix:
            used, then = max(0.0, used - max(0.0, unix - then) / _CHANGE_SECONDS) + 1, max(then, unix)
    used = max(0.0, used - (now_unix - then) / _CHANGE_SECONDS)
    return max(0.0, used + 1 - _CHANGES_AT_ONCE) * _CHANGE_SECONDS


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
