"""`coordinator verify`: what cuts, rewrites and restores leave in trail, signed head and silos' heads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.errors import UsageError
from semisilo.common.rpc.convert import head_to_proto
from semisilo.coordinator.federation.audit_check import AuditReport, verify
from semisilo.coordinator.federation.audit_key import HeadSigner, ensure_audit_key
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.federation.backup import back_up
from semisilo.coordinator.federation.folder import Federation, open_federation
from semisilo.coordinator.federation.restore import restore
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import note_start
from semisilo.silo.site.audit_heads import HeadRecord
from tests.coordinator.ledger_fixture import open_federation_with_silos


class Trail:
    """A federation of which a silo sees a head now and then."""

    def __init__(self, federation: Federation, heads: Path) -> None:
        self.federation = federation
        self.heads = heads
        self.key = ensure_audit_key(federation.authority, now=time.time())
        self.ledger = Ledger(federation.ledger)
        self.ledger.query("PRAGMA synchronous = OFF")
        self.signer = HeadSigner(self.ledger, self.key)

    def happen(self, count: int) -> None:
        for _ in range(count):
            self.ledger.event("something")

    def show(self) -> str:
        head = self.signer.current()
        assert head is not None
        return HeadRecord(self.heads, self.key.authority).saw(head_to_proto(head), study="s", round=1,
                                                              seen_unix=time.time()).problem

    def tamper(self, *statements: str) -> None:
        for name in ("event_is_append_only_1", "event_is_append_only_2"):
            self.ledger.query(f"DROP TRIGGER IF EXISTS {name}")
        for sql in statements:
            self.ledger.query(sql)

    def verify(self, *heads: Path) -> AuditReport:
        return verify(self.federation, self.ledger, heads)

    def close(self) -> None:
        self.ledger.close()


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[Trail]:
    filled = open_federation_with_silos(tmp_path / "hub")
    filled.ledger.close()
    create_authority(filled.federation.authority, filled.federation.name, now=time.time())
    made = Trail(filled.federation, tmp_path / "heads.jsonl")
    note_start(made.ledger)
    made.happen(3)
    made.show()
    made.happen(3)
    made.show()
    yield made
    made.close()


def test_an_honest_trail_is_signed_to_its_last_head_and_holds_those_of_silos(trail: Trail) -> None:
    trail.happen(2)
    found = trail.verify(trail.heads)
    assert (found.problems, found.notes) == ((), ())
    assert (found.events, found.signed, found.silo_heads) == (trail.ledger.check_events(), found.events - 2, 2)


def test_an_end_that_was_cut_off_shows_without_silos_and_with_them(trail: Trail) -> None:
    trail.tamper("DELETE FROM event WHERE number > (SELECT max(number) - 2 FROM event)")
    (alone,) = trail.verify().problems
    assert "the last signed head: event" in alone
    assert "missing: the trail ends at" in alone
    trail.tamper("DELETE FROM audit_head")
    problems = trail.verify(trail.heads).problems
    assert any("heads.jsonl: line 2" in problem and "missing" in problem for problem in problems), problems


def test_a_trail_that_was_rewritten_from_the_middle_on_is_found_though_it_is_sound(trail: Trail) -> None:
    trail.tamper("DELETE FROM event WHERE number > (SELECT max(number) - 5 FROM event)")
    trail.happen(20)
    trail.ledger.check_events()
    assert trail.show() == "", "it has grown beyond what the silo had seen"
    problems = trail.verify(trail.heads).problems
    assert ["line 1" in problems[0], "line 2" in problems[1], len(problems)] == [True, True, 2]
    assert all("rewritten" in problem for problem in problems)


def test_a_head_that_the_key_has_not_signed_is_found(trail: Trail) -> None:
    trail.tamper("UPDATE audit_head SET number = number - 1, chain = (SELECT chain FROM event WHERE event.number ="
                 " audit_head.number - 1)")
    (problem,) = trail.verify().problems
    assert "signature" in problem


def test_a_signed_head_that_was_removed_is_missed_where_tasks_were_given(trail: Trail) -> None:
    trail.tamper("DELETE FROM audit_head")
    assert trail.verify().problems == ()
    trail.tamper("PRAGMA foreign_keys = OFF", "INSERT INTO task (task_id, study, round, phase, silo, state, spec_json,"
                 " opened_unix, given_unix) VALUES ('t', 's', 1, 0, 'a', 'open', '{}', 1, 4e9)")
    (problem,) = trail.verify().problems
    assert problem == "the last signed head is missing: 1 tasks were given, each with one"


def test_an_altered_event_and_an_altered_row_are_each_a_line(trail: Trail) -> None:
    trail.tamper("UPDATE silo SET revoked_unix = 1 WHERE name = 'hospital-a'")
    (row,) = trail.verify().problems
    assert row.startswith("silo hospital-a: its revocation is there in the ledger")
    trail.tamper("UPDATE event SET unix = 1 WHERE number = 2")
    assert "event 2 was altered" in trail.verify().problems[0]


def test_a_restore_from_a_backup_explains_what_silos_have_seen_since(trail: Trail, tmp_path: Path) -> None:
    archive = Path(back_up(trail.federation, tmp_path / "safe", now=time.time()).archive)
    trail.happen(5)
    assert trail.show() == ""
    restore(archive, tmp_path / "new")
    again = Trail(open_federation(tmp_path / "new"), trail.heads)
    again.happen(1)
    assert again.show() == "", "the silo is told that it was restored"
    found = again.verify(trail.heads)
    assert found.problems == ()
    assert any("line 3" in note and "was lost when the coordinator was restored" in note for note in found.notes)
    again.close()


def test_heads_of_another_federation_are_none_of_this_one(trail: Trail, tmp_path: Path) -> None:
    other = open_federation_with_silos(tmp_path / "other")
    other.ledger.close()
    create_authority(other.federation.authority, other.federation.name, now=time.time())
    ledger = Ledger(other.federation.ledger)
    (problem,) = verify(other.federation, ledger, (trail.heads,)).problems
    assert "holds no head of federation" in problem
    ledger.close()


def test_a_file_that_is_not_there_is_a_wrong_usage(trail: Trail, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: no such file"):
        trail.verify(tmp_path / "nowhere")
