"""The roster in the ledger: a chain that follows who calls, who is revoked and who leaves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from semisilo.common.errors import BadRoster
from semisilo.common.secure_aggregation.roster import roster_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.secure_sums import roster
from semisilo.coordinator.ledger.secure_sums.roster import (
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
