"""The roster in the ledger: a chain that follows who calls, who is revoked and who leaves."""

from __future__ import annotations

import contextlib
import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from semisilo.common.errors import BadRoster
from semisilo.common.secure_aggregation.roster import MAX_ROSTER, roster_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.secure_sums import roster
from semisilo.coordinator.ledger.secure_sums.roster import (
    held_identity,
    note_identity,
    remove_identity,
    roster_entries,
    roster_number,
)
from tests.coordinator.ledger_fixture import Filled, open_federation_with_silos

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return open_federation_with_silos(tmp_path)


def test_a_key_is_noted_once(filled: Filled) -> None:
    assert note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    assert not note_identity(filled.ledger, "hospital-a", KEY, now_unix=2.0)
    assert roster_number(filled.ledger) == 1
    assert roster_of(roster_entries(filled.ledger)).present == {"hospital-a": KEY}


def test_another_key_of_a_silo_is_a_removal_and_an_addition(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    assert note_identity(filled.ledger, "hospital-a", OTHER, now_unix=2.0)
    entries = roster_entries(filled.ledger)
    assert [(entry.identity, entry.change) for entry in entries] == [(KEY, "added"), (KEY, "removed"), (OTHER, "added")]
    assert roster_of(entries).present == {"hospital-a": OTHER}


def test_a_key_that_another_silo_has_is_refused_and_nothing_is_written(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    with pytest.raises(BadRoster, match="the identity of another"):
        note_identity(filled.ledger, "hospital-b", KEY, now_unix=2.0)
    assert roster_number(filled.ledger) == 1


def test_an_entry_that_was_taken_back_with_its_transaction_is_no_part_of_what_follows(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)

    def cut_off() -> None:
        with filled.ledger.transaction():
            note_identity(filled.ledger, "hospital-b", OTHER, now_unix=2.0)
            note_identity(filled.ledger, "hospital-b", b"p" * 32, now_unix=2.0)  # sees what the first has written
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cut_off()
    note_identity(filled.ledger, "hospital-b", OTHER, now_unix=3.0)
    assert roster_of(roster_entries(filled.ledger)).present == {"hospital-a": KEY, "hospital-b": OTHER}


def test_who_joins_last_of_many_costs_a_look_at_the_last_entry(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand silos that join one after the other would else have half a million entries checked."""
    read: list[int] = []
    original = roster.replay
    monkeypatch.setattr(roster, "replay", lambda seen, entries: read.append(len(entries)) or original(seen, entries))
    for number in range(20):
        note_identity(filled.ledger, f"silo-{number}", bytes([number]) * 32, now_unix=1.0)
    assert max(read) <= 1 + 1
    assert roster_number(filled.ledger) == 20


def test_an_entry_that_was_changed_in_the_file_is_noticed_by_the_next_process(filled: Filled) -> None:
    for number in range(3):
        note_identity(filled.ledger, f"silo-{number}", bytes([number]) * 32, now_unix=1.0)
    with filled.ledger.transaction() as db:
        db.execute("UPDATE silo_identity SET silo = 'hospital-a' WHERE number = 2")
    with closing(Ledger(filled.ledger.path)) as later, pytest.raises(BadRoster, match="Entry 2"):
        note_identity(later, "hospital-b", OTHER, now_unix=2.0)


@pytest.mark.parametrize("end", ["revoke", "leave"])
def test_who_is_revoked_or_leaves_is_removed(filled: Filled, end: str) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    getattr(filled.roster, end)("hospital-a")
    getattr(filled.roster, end)("hospital-b")  # has no key there
    assert roster_of(roster_entries(filled.ledger)).present == {}
    remove_identity(filled.ledger, "hospital-a", now_unix=3.0)
    assert roster_number(filled.ledger) == 2, "once"


def test_the_roster_of_an_earlier_moment_is_still_there(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    note_identity(filled.ledger, "hospital-b", OTHER, now_unix=2.0)
    assert roster_of(roster_entries(filled.ledger, number=1)).present == {"hospital-a": KEY}


DAY = 86400.0


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def changes(filled: Filled, silo: str, *, tries: int, first_unix: float, step_seconds: float = 0.0) -> int:
    """How many of so many new keys of a silo are taken."""
    taken = 0
    for number in range(tries):
        with contextlib.suppress(BadRoster):
            new = hashlib.sha256(f"{silo} {first_unix} {number}".encode()).digest()
            taken += note_identity(filled.ledger, silo, new, now_unix=first_unix + number * step_seconds)
    return taken


def test_a_silo_changes_its_key_a_few_times_in_a_row_and_then_once_a_day_also_after_a_restart(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1000.0)
    assert changes(filled, "hospital-a", tries=50, first_unix=1001.0) == 4
    with closing(Ledger(filled.ledger.path)) as later:  # what counts stands in the ledger
        with pytest.raises(BadRoster, match=r"may have another one in 2. h .* min") as raised:
            note_identity(later, "hospital-a", OTHER, now_unix=2000.0)
        assert "secure/identity.key" in raised.value.remedy
        assert "revoke and invite" in raised.value.remedy
    assert changes(filled, "hospital-a", tries=50, first_unix=1001.0 + DAY) == 1
    assert changes(filled, "hospital-a", tries=50, first_unix=1001.0 + 3 * DAY) == 2
    assert changes(filled, "hospital-a", tries=50, first_unix=1001.0 + 60 * DAY) == 4
    assert note_identity(filled.ledger, "hospital-b", KEY, now_unix=1001.0 + 60 * DAY), "others pay nothing for it"


def test_a_silo_goes_back_to_the_key_that_stands_for_it_at_any_time(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    changes(filled, "hospital-a", tries=9, first_unix=2.0)
    held = held_identity(filled.ledger, "hospital-a")
    assert held is not None
    assert not note_identity(filled.ledger, "hospital-a", held, now_unix=3.0)


def test_who_is_revoked_and_invited_again_has_another_key_at_once(filled: Filled) -> None:
    """The remedy: a hospital whose folder was lost again waits for nobody but its hub's operator."""
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    changes(filled, "hospital-a", tries=9, first_unix=2.0)
    filled.roster.revoke("hospital-a")
    assert note_identity(filled.ledger, "hospital-a", OTHER, now_unix=3.0)


def test_changes_that_a_clock_was_ahead_at_hold_up_nobody(filled: Filled) -> None:
    note_identity(filled.ledger, "hospital-a", KEY, now_unix=1.0)
    assert changes(filled, "hospital-a", tries=9, first_unix=40 * DAY) == 4
    assert note_identity(filled.ledger, "hospital-a", OTHER, now_unix=2.0)


def test_no_silo_uses_up_the_roster_however_long_it_takes(filled: Filled) -> None:
    filled.ledger.query("PRAGMA synchronous = OFF")
    for number in range(10):
        note_identity(filled.ledger, f"silo-{number}", key(number), now_unix=0.0)
    assert changes(filled, "silo-0", tries=200, first_unix=DAY, step_seconds=DAY) < 60
    alone = roster_number(filled.ledger)
    assert alone < MAX_ROSTER / 8
    with pytest.raises(BadRoster, match=f"has {alone} of {MAX_ROSTER} entries, has no room"):
        note_identity(filled.ledger, "silo-0", OTHER, now_unix=1000 * DAY)
    for number in range(1, 10):
        assert changes(filled, f"silo-{number}", tries=100, first_unix=300 * DAY, step_seconds=DAY) > 10
    assert roster_number(filled.ledger) < MAX_ROSTER * 0.7
    assert note_identity(filled.ledger, "hospital-a", KEY, now_unix=1000 * DAY), "a new silo finds room"
    assert note_identity(filled.ledger, "hospital-a", OTHER, now_unix=1000 * DAY), "and may lose its key"


def test_a_roster_never_grows_longer_than_silos_take(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "MAX_ROSTER", 8)
    monkeypatch.setattr(roster, "_FOR_REMOVALS", 3)
    for number in range(5):
        note_identity(filled.ledger, f"silo-{number}", key(number), now_unix=0.0)
    with pytest.raises(BadRoster, match="is full"):
        note_identity(filled.ledger, "silo-5", key(5), now_unix=0.0)
    for number in range(5):
        remove_identity(filled.ledger, f"silo-{number}", now_unix=1.0)
    assert roster_number(filled.ledger) == 8
