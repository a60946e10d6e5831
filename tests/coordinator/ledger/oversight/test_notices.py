"""Notices about silos: the last of each kind, and an event for each."""

from __future__ import annotations

import json
from pathlib import Path

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice, count_notices, notices_of
from semisilo.coordinator.ledger.roster import LedgerRoster, SimulatedMember


def ledger_in(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.sqlite", waits=False)


def test_readers_see_the_last_notice_of_each_kind_and_how_many_there_were(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    for number in (1, 2):
        add_notice(ledger, NoticeKind.STANDS_OUT, study="s", round=number, silo="b", text=f"norm {number}")
    add_notice(ledger, NoticeKind.LEFT_OUT, study="s", round=2, silo="a", text="left out")
    add_notice(ledger, NoticeKind.STANDS_OUT, study="other", round=9, silo="b", text="elsewhere")
    found = notices_of(ledger, "s")
    assert [each.line for each in found] == ["a, round 2: left out", "b, round 2: norm 2 (2 times)"]
    assert count_notices(ledger, "s") == {**dict.fromkeys(NoticeKind, 0), NoticeKind.STANDS_OUT: 2,
                                          NoticeKind.LEFT_OUT: 1}
    events = ledger.query("SELECT kind, detail_json FROM event WHERE study = 's' ORDER BY number")
    assert [row["kind"] for row in events] == ["silo_stands_out", "silo_stands_out", "silo_left_out"]
    assert json.loads(events[0]["detail_json"]) == {"round": 1, "silo": "b", "text": "norm 1"}


def announce(roster: LedgerRoster, silo: str, images: int) -> None:
    roster.joined(silo, version="0", methods=(), labelled_count=0, unlabelled_count=images, memory_study="",
                  memory_round=0)


def test_a_silo_whose_images_double_or_halve_from_one_call_to_the_next_is_told_of(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    roster = LedgerRoster(ledger)
    roster.admit([SimulatedMember(name="a", labelled_count=0, unlabelled_count=100)], version="0", methods=())
    for images in (100, 150, 200, 190, 10**9, 100):
        announce(roster, "a", images)
    found = notices_of(ledger, "s", since_unix=0.0)
    assert [(each.silo, each.times, each.text) for each in found] == [
        ("a", 2, "it announces 100 images, and announced 1000000000 before")]
    assert notices_of(ledger, "s") == (), "outside of studies"
    announce(roster, "a", 95)
    assert notices_of(ledger, "s", since_unix=0.0)[0].times == 2, "a control"


def test_a_silo_cannot_fill_the_ledger_with_jumps(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    roster = LedgerRoster(ledger)
    roster.admit([SimulatedMember(name="a", labelled_count=0, unlabelled_count=100)], version="0", methods=())
    for number in range(200):
        announce(roster, "a", 100 if number % 2 else 10**6)
    assert count_notices(ledger, "")[NoticeKind.COUNT_JUMP] <= 21
