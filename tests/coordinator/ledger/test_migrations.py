"""The tables of the ledger: what every version leads to, and what they do by themselves."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.migrations import MIGRATIONS
from semisilo.coordinator.ledger.records import study_row
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.outcomes import outcomes_of

VERSION_1 = Path(__file__).with_name("ledger_version_1.sql")
ANSWERS = (("a", 0, "updated", ""), ("a", 1, "updated", ""), ("b", 0, "updated", ""), ("b", 1, "expired", "left early"),
           ("c", 0, "abstained", "no labels"), ("c", 1, "refused", "hours"))
"""(silo, phase, state, reason)"""
COST = "INSERT INTO cost VALUES ('s', 1, 'train', ?, 'up', ?, 'x', ?, 2, 0)"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    for migration in MIGRATIONS:
        made.executescript(migration)
    yield made
    made.close()


def schema(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and text of everything; columns that were added later stand in the text of their table."""
    return {(kind, name, " ".join(sql.split())) for kind, name, sql in db.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")}


def test_a_ledger_of_version_1_becomes_what_a_new_one_is(db: sqlite3.Connection) -> None:
    old = sqlite3.connect(":memory:", isolation_level=None)
    old.executescript(VERSION_1.read_text(encoding="utf-8"))
    assert schema(old) != schema(db)
    for migration in MIGRATIONS[1:]:
        old.executescript(migration)
    tables = {name for kind, name, _ in schema(db) if kind == "table"}
    assert {(kind, name) for kind, name, _ in schema(old)} == {(kind, name) for kind, name, _ in schema(db)}
    for table in tables:
        assert old.execute(f"PRAGMA table_info({table})").fetchall() == \
            db.execute(f"PRAGMA table_info({table})").fetchall()
    old.close()


def test_a_study_that_an_earlier_version_ended_has_no_paired_interval() -> None:
    before = next(number for number, text in enumerate(MIGRATIONS) if "paired_json" in text)
    old = sqlite3.connect(":memory:", isolation_level=None)
    for migration in MIGRATIONS[:before]:
        old.executescript(migration)
    old.execute("INSERT INTO study (name, position, state, config_json, queued_unix) VALUES ('s', 1, 'completed', '{}',"
                " 0)")
    for migration in MIGRATIONS[before:]:
        old.executescript(migration)
    old.row_factory = sqlite3.Row
    row = study_row(old.execute("SELECT * FROM study").fetchone())
    assert (row.name, row.paired) == ("s", None)
    old.close()


def test_every_table_refuses_values_of_another_type(db: sqlite3.Connection) -> None:
    tables = [sql for kind, _, sql in schema(db) if kind == "table"]
    assert len(tables) > 10
    assert [sql for sql in tables if "STRICT" not in sql.rpartition(")")[2]] == []


def test_costs_are_totalled_as_they_come_and_wire_bytes_by_day(db: sqlite3.Connection) -> None:
    for silo, kind, size in (("a", "wire", 10), ("a", "wire", 5), ("a", "payload", 7), ("b", "wire", 1)):
        db.execute(COST, (silo, kind, size))
    assert db.execute("SELECT silo, kind, bytes, count FROM cost_total ORDER BY silo, kind").fetchall() == [
        ("a", "payload", 7, 2), ("a", "wire", 15, 4), ("b", "wire", 1, 2)]
    assert db.execute("SELECT silo, sum(bytes) FROM wire_by_day GROUP BY silo ORDER BY silo").fetchall() == [
        ("a", 15), ("b", 1)]


def test_totals_of_a_ledger_from_before_they_were_kept_are_made_when_it_is_migrated() -> None:
    old = sqlite3.connect(":memory:", isolation_level=None)
    old.executescript(MIGRATIONS[0])
    for size in (10, 5):
        old.execute(COST, ("a", "wire", size))
    for migration in MIGRATIONS[1:]:
        old.executescript(migration)
    assert old.execute("SELECT silo, kind, bytes, count FROM cost_total").fetchall() == [("a", "wire", 15, 4)]
    old.close()


def test_sums_of_rounds_from_before_they_were_kept_are_those_that_would_have_been_kept() -> None:
    def filled(before: int) -> list[list[tuple[object, ...]]]:
        """The sums where `before` of the migrations were there when the rounds were played."""
        made = sqlite3.connect(":memory:", isolation_level=None)
        for migration in MIGRATIONS[:before]:
            made.executescript(migration)
        for number in (1, 2):
            made.execute("INSERT INTO round (study, number, state, opened_unix, start_digest, state_digest)"
                         " VALUES ('s', ?, 'evaluating', 0, '', '')", (number,))
            for silo, phase, state, reason in ANSWERS:
                task = f"{number}/{phase}/{silo}"
                made.execute("INSERT INTO task VALUES (?, 's', ?, ?, ?, ?, '{}', 0, 0, 1, ?, ?, '{}')",
                             (task, number, phase, silo, state, task if state == "updated" else None, reason))
                if state == "updated":
                    made.execute("INSERT INTO declared_update (update_id, task_id, digest, size_bytes, groups_json,"
                                 " example_count, metrics_json, training_seconds, declared_unix, accepted_unix, folded)"
                                 " VALUES (?, ?, '', 1, '{}', ?, '{}', 0, 0, 1, 1)",
                                 (task, task, 10 + phase))
            for silo in ("a", "a", "b"):
                made.execute("INSERT INTO cost VALUES ('s', ?, 'train', ?, 'up', 'payload', 'model', 5, 1, 0)",
                             (number, silo))
            made.execute("UPDATE round SET state = ?, closed_unix = 2 WHERE number = ?",
                         ("completed" if number == 1 else "failed", number))
        for migration in MIGRATIONS[before:]:
            made.executescript(migration)
        found = [made.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
                 for table in ("silo_total", "round_outcome", "round_total")]
        made.close()
        return found

    assert filled(5) == filled(len(MIGRATIONS)) == [
        [("s", "a", 2, 1, 11, "", 0), ("s", "b", 2, 0, 0, "left early", 2), ("s", "c", 2, 0, 0, "hours", 2)],
        [("s", 1, "expired", 1), ("s", 1, "refused", 1), ("s", 1, "updated", 1),
         ("s", 2, "expired", 1), ("s", 2, "refused", 1), ("s", 2, "updated", 1)],
        [("s", 1, "up", "payload", "model", 15, 3, 0, 2, 0), ("s", 2, "up", "payload", "model", 15, 3, 0, 2, 0)]]


def test_answers_stand_out_in_the_ledgers_sums_as_they_do_for_readers() -> None:
    newest = next(each for each in reversed(MIGRATIONS) if "TRIGGER round_is_totalled AFTER" in each)
    states = sorted(TaskState, key=lambda state: ["expired", "cancelled", "refused", "abstained", "open",
                                                  "updated", "answered"].index(state))
    for first, second in itertools.combinations(states, 2):
        assert outcomes_of([("a", second), ("a", first)]) == {"a": first}
    for rank, state in enumerate(states[:-1]):
        assert f"WHEN '{state}' THEN {rank}" in newest
