"""The audit trail of the page: the chain is checked a stretch at a time, and the newest events that fit are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring import audit_trail
from semisilo.coordinator.monitoring.audit_trail import MOST_EVENTS, ChainCheck, events_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Ten events: two of a silo, the others of study s."""
    made = Ledger(tmp_path / "ledger.sqlite", waits=False)
    for number in range(1, 11):
        if number in (3, 7):
            made.event("silo_joined", silo="alpha")
        else:
            made.event("round_opened", study="s", round=number)
    yield made
    made.close()


def altered(ledger: Ledger, sql: str) -> None:
    for row in ledger.query("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'event'"):
        ledger.query(f"DROP TRIGGER {row['name']}")
    ledger.query(sql)


def checked(check: ChainCheck, ledger: Ledger) -> ChainCheck:
    while check.go_on(ledger):
        pass
    return check


def test_nothing_is_known_until_every_event_was_looked_at(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "_STRETCH", 4)
    check = ChainCheck()
    assert check.go_on(ledger)
    assert (check.intact, check.checked) == (None, 4)
    assert check.go_on(ledger)
    assert not check.go_on(ledger)
    assert (check.intact, check.checked, check.kinds) == (True, 10, {"round_opened", "silo_joined"})
    ledger.event("study_completed", study="s")
    assert checked(check, ledger).checked == 11, "it goes on where it was"


@pytest.mark.parametrize(("sql", "said"), [
    ("UPDATE event SET detail_json = '{}' WHERE number = 5", "event 5 was altered"),
    ("UPDATE event SET chain = 'ab' WHERE number = 5", "event 5 was altered"),
    ("DELETE FROM event WHERE number = 5", "event 5 is missing")])
def test_what_was_altered_or_removed_is_named_and_stays_known(ledger: Ledger, sql: str, said: str) -> None:
    altered(ledger, sql)
    check = checked(ChainCheck(), ledger)
    assert (check.intact, check.problem, check.checked) == (False, said, 4)
    check.again()
    assert checked(check, ledger).problem == said


def test_an_end_that_was_cut_off_shows_against_what_was_seen_before(ledger: Ledger) -> None:
    check = checked(ChainCheck(), ledger)
    altered(ledger, "DELETE FROM event WHERE number > 8")
    assert checked(ChainCheck(), ledger).intact is True, "alone the rest is a sound chain"
    check.again()
    assert checked(check, ledger).problem == "event 10 was altered or removed since it was checked"


def test_the_newest_events_that_fit_are_shown_and_whether_there_are_more(ledger: Ledger) -> None:
    check = checked(ChainCheck(), ledger)
    found = events_of(ledger, check, limit=3)
    assert [event.number for event in found.events] == [10, 9, 8]
    assert (found.more, found.first_number, found.chain_intact, found.checked) == (True, 8, True, 10)
    before = events_of(ledger, check, before=3, limit=3)
    assert ([event.number for event in before.events], before.more) == ([2, 1], False)
    assert [event.number for event in events_of(ledger, check, silo="alpha").events] == [7, 3]
    assert [event.number for event in events_of(ledger, check, kind="silo_joined").events] == [7, 3]
    assert len(events_of(ledger, check, study="s").events) == 8
    assert events_of(ledger, check, study="nobody").events == ()
    assert len(events_of(ledger, check, limit=0).events) == 1
    assert len(events_of(ledger, check, limit=10 * MOST_EVENTS).events) == 10
