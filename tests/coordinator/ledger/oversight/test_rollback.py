"""What the ledger does when a study goes back to an earlier round, and what it keeps of the rounds that are gone."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.coordinator.ledger.costs import costs_of, total_bytes
from semisilo.coordinator.ledger.events import find_events
from semisilo.coordinator.ledger.ledger import RoundGone
from semisilo.coordinator.ledger.migrations import MIGRATIONS
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice, notices_of
from semisilo.coordinator.ledger.oversight.rollback import (
    count_rollbacks,
    count_undoings,
    kept_after,
    oldest_return,
    past_answers,
    roll_back,
    rollbacks_of,
    take_cancelled_back,
)
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import add_site_evaluation, answers_of_study, site_evaluations
from semisilo.coordinator.ledger.tracking import TrackedRun, add_tracked_run, note_complete, note_told, tracked_run
from tests.coordinator.ledger_fixture import PHASE, SILOS, Filled, fill_study

CLASSES = (ClassResult(images=4, correct=2), ClassResult(images=4, correct=1))


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """Six rounds are over; in round 7 the first silo has answered and the others work."""
    found = fill_study(tmp_path / "federation", done=6, collecting=True)
    found.ledger.set_study_state("first", StudyState.PAUSED)
    return found


def test_rounds_that_are_gone_leave_every_table_and_stay_readable(filled: Filled) -> None:
    ledger = filled.ledger
    spent = total_bytes(costs_of(ledger, "first"), kind="payload")
    answers = answers_of_study(ledger, "first")
    for number in (2, 5):
        add_notice(ledger, NoticeKind.STANDS_OUT, study="first", round=number, silo=SILOS[0], text="it stands out")
        add_site_evaluation(ledger, SILOS[0], SiteEvaluation(study="first", round=number, labels_alone=False,
                                                             classes=CLASSES), now_unix=0.0)
    for target, told in (("here", 6), ("there", 4)):
        add_tracked_run(ledger, "first", target, run="r")
        note_told(ledger, "first", target, last_round=told)
        note_complete(ledger, "first", target, complete=True)
    with ledger.acting("command"):
        found = roll_back(ledger, "first", 4, operator="mona", reason="noise")
    assert (found.origin, found.to_round, [each.number for each in found.rounds]) == ("command", 4, [5, 6, 7])
    assert "went back to round 4" in found.text
    assert found.text.endswith("(mona): rounds 5 to 7 no longer count; noise")
    assert answers_of_study(ledger, "first") == [each for each in answers if each.round <= 4]
    past = past_answers(ledger, found.number)
    assert [(each.round, each.silo) for each in past] == [(number, silo) for number in (5, 6, 7) for silo in SILOS]
    assert {each.state for each in past if each.round == 7} == {TaskState.UPDATED, TaskState.CANCELLED}
    (event,) = find_events(ledger, kind="study_rolled_back", limit=2)
    assert event.detail == {"round": 4, "gone": [5, 6, 7], "operator": "mona", "reason": "noise", "origin": "command"}
    assert total_bytes(costs_of(ledger, "first"), kind="payload") == spent, "what was spent is spent"
    assert [each.round for each in notices_of(ledger, "first")] == [2]
    assert site_evaluations(ledger, "first", round=5)[SILOS[0]].round == 2
    assert tracked_run(ledger, "first", "here") is None, "it knows of rounds that are gone"
    assert tracked_run(ledger, "first", "there") == TrackedRun(run="r", last_round=4, complete=True)
    assert count_undoings(ledger, "first") == 1
    assert ledger.check_events() > 0


def test_whoever_still_works_for_a_round_that_is_gone_is_told_so(filled: Filled) -> None:
    ledger = filled.ledger
    phase = ledger.phase("first", 7, 0)
    roll_back(ledger, "first", 6, operator="", reason="")
    assert count_rollbacks(ledger, "first") == 1
    for work in (lambda: ledger.round("first", 7), lambda: ledger.phase("first", 7, 0),
                 lambda: ledger.close_phase(phase), lambda: ledger.open_phase(phase, []),
                 lambda: ledger.commit_round("first", 7, metrics={}),
                 lambda: ledger.open_round("first", 8, start_digest="", sample=(), phases=())):
        with pytest.raises(RoundGone):
            work()
    assert [row.number for row in ledger.rounds("first")] == list(range(7))


def test_going_back_twice_keeps_both_histories(filled: Filled) -> None:
    ledger = filled.ledger
    roll_back(ledger, "first", 5, operator="", reason="first")
    ledger.set_study_state("first", StudyState.STOPPED)
    roll_back(ledger, "first", 1, operator="", reason="second")
    assert [(each.to_round, [row.number for row in each.rounds]) for each in rollbacks_of(ledger, "first")] == [
        (5, [6, 7]), (1, [2, 3, 4, 5])]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_round_with_two_phases_of_one_name_goes_as_any_other(filled: Filled, cancelled: bool) -> None:
    """Round 1 of self-training measures statistics, trains, and measures them again: `rollback --to 0` and the queue
    after a stop ended with an error of the database."""
    ledger = filled.ledger
    first = ledger.phase("first", 7, 0)
    task = ledger.task(f"first/7/0-{PHASE}/{SILOS[0]}")
    assert task is not None
    ledger.close_phase(first)
    ledger.set_round_state("first", 7, RoundState.PREPARING)
    ledger.open_phase(replace(first, number=1), [
        replace(task.spec, task_id=f"first/7/1-{PHASE}/{silo}", silo=silo) for silo in SILOS])
    if cancelled:
        ledger.set_study_state("first", StudyState.STOPPED)
        ledger.cancel_round(ledger.round("first", 7))
        assert take_cancelled_back(ledger, "first") == 7
    else:
        roll_back(ledger, "first", 6, operator="", reason="")
    (found,) = rollbacks_of(ledger, "first")
    assert [(each.round, each.silo) for each in past_answers(ledger, found.number)] == \
        [(7, silo) for _ in range(2) for silo in SILOS]


def test_answers_that_an_earlier_version_has_put_aside_are_kept() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    version = next(number for number, text in enumerate(MIGRATIONS) if "past_answer_by_name" in text)
    for migration in MIGRATIONS[:version]:
        db.executescript(migration)
    db.execute("INSERT INTO past_answer VALUES (1, 's', 1, 'train', 'a', 'updated', '', 5, 0.5, 0.25, '{}')")
    for migration in MIGRATIONS[version:]:
        db.executescript(migration)
    assert db.execute("SELECT * FROM past_answer").fetchall() == [
        (1, "s", 1, 0, "train", "a", "updated", "", 5, 0.5, 0.25, "{}")]


def test_a_study_that_an_earlier_version_began_goes_back_to_what_is_known_of() -> None:
    """Before the migration the ledger did not note what strategies kept for silos after each round."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    version = next(number for number, text in enumerate(MIGRATIONS) if "kept_state" in text)
    for migration in MIGRATIONS[:version]:
        db.executescript(migration)
    db.execute("INSERT INTO study (name, position, state, config_json, queued_unix) VALUES ('s', 1, 'paused', '{}', 0)")
    for number in range(4):
        db.execute("INSERT INTO round (study, number, state, opened_unix, start_digest, state_digest)"
                   " VALUES ('s', ?, ?, 0, '', '')", (number, "completed" if number < 3 else "collecting"))
    db.execute("INSERT INTO silo_state (study, silo, last_folded_round, kept_digest) VALUES ('s', 'a', 1, 'k')")
    for migration in MIGRATIONS[version:]:
        db.executescript(migration)
    assert db.execute("SELECT oldest_return FROM study").fetchall() == [(2,)]
    assert db.execute("SELECT * FROM kept_state").fetchall() == [("s", "a", 1, "k")]


def test_what_was_kept_for_silos_is_known_after_each_round(filled: Filled) -> None:
    assert oldest_return(filled.ledger, "first") == 0
    with filled.ledger.transaction() as db:
        db.execute("DELETE FROM kept_state")
        db.executemany("INSERT INTO kept_state VALUES ('first', ?, ?, ?)",
                       [("a", 1, "a1"), ("a", 3, "a3"), ("b", 2, None), ("b", 6, "b6")])
    assert kept_after(filled.ledger, "first", 0) == {}
    assert kept_after(filled.ledger, "first", 5) == {"a": (3, "a3"), "b": (2, None)}
    roll_back(filled.ledger, "first", 2, operator="", reason="")
    assert filled.ledger.silo_states("first", ("a", "b", "c")) == {"a": (1, "a1"), "b": (2, None), "c": (0, None)}
