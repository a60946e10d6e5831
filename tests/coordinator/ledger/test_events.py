"""What the audit trail says of a study, and the end of its chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.events import (
    begun_again_event,
    event_kinds,
    find_events,
    has_paused_itself,
    is_model_noted,
    is_model_written,
    last_ended_rounds,
    late_tasks,
    note_model_not_written,
    note_model_written,
    round_ended_event,
    study_notes,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import Filled, digest, fill_study, query_plan


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "federation", done=4, complete=False)


@pytest.mark.parametrize("written", [True, False])
def test_a_model_is_noted_for_its_own_state_and_study_only(filled: Filled, written: bool) -> None:
    ledger = filled.ledger
    assert not is_model_noted(ledger, "first", digest("4"))
    if written:
        note_model_written(ledger, "first", digest("4"))
    else:
        note_model_not_written(ledger, "first", digest("4"), reason="a file is missing")
    for known, expected in ((is_model_noted, True), (is_model_written, written)):
        assert known(ledger, "first", digest("4")) is expected
        assert not known(ledger, "first", digest("3"))
        assert not known(ledger, "second", digest("4"))


@pytest.mark.parametrize("written", [True, False])
def test_the_model_that_was_written_is_that_of_the_last_note_and_none_after_going_back(filled: Filled, written: bool
                                                                                       ) -> None:
    """One file lies there: that of an earlier end is over once another was written, or could not be."""
    ledger = filled.ledger
    note_model_written(ledger, "first", digest("3"))
    if written:
        note_model_written(ledger, "first", digest("4"))
    else:
        note_model_not_written(ledger, "first", digest("4"), reason="a file is missing")
    assert not is_model_written(ledger, "first", digest("3"))
    assert not is_model_noted(ledger, "first", digest("3"))
    note_model_written(ledger, "first", digest("4"))
    assert is_model_written(ledger, "first", digest("4"))
    ledger.event("study_rolled_back", study="first", round=3, origin="command")
    assert not is_model_noted(ledger, "first", digest("4"))


def test_rounds_that_are_over_come_latest_first_without_round_0_and_failed_ones_count(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.open_round("first", 5, start_digest=digest("4"), sample=(), phases=())
    assert last_ended_rounds(ledger, "first", 3) == [4, 3, 2]
    ledger.fail_round(ledger.round("first", 5), reason="nobody answered")
    assert last_ended_rounds(ledger, "first", 3) == [5, 4, 3]
    assert last_ended_rounds(ledger, "first", 100) == [5, 4, 3, 2, 1]
    assert last_ended_rounds(ledger, "second", 3) == []


def test_a_resume_comes_after_the_rounds_before_it_and_before_those_after_it(filled: Filled) -> None:
    ledger = filled.ledger
    assert begun_again_event(ledger, "first") < round_ended_event(ledger, "first", 1) \
        < round_ended_event(ledger, "first", 4)
    operate.pause(ledger, origin="command")
    assert begun_again_event(ledger, "first") < round_ended_event(ledger, "first", 1)
    operate.resume(ledger, origin="command")
    assert begun_again_event(ledger, "first") > round_ended_event(ledger, "first", 4)
    assert begun_again_event(ledger, "second") == 0


def test_a_study_that_is_queued_again_begins_again(filled: Filled) -> None:
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    filled.ledger.requeue_study("first", filled.ledger.study("first").config)
    assert begun_again_event(filled.ledger, "first") > round_ended_event(filled.ledger, "first", 4)


def test_the_last_event_is_the_end_of_the_chain(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.last_event() is None
    ledger.event("first_thing")
    one = ledger.last_event()
    ledger.event("second_thing")
    two = ledger.last_event()
    assert one is not None
    assert two is not None
    assert (one.number, two.number) == (1, 2) == (1, ledger.check_events())
    assert one.chain != two.chain


# How they are found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [
    lambda ledger: is_model_noted(ledger, "first", digest("4")),
    lambda ledger: is_model_written(ledger, "first", digest("4")),
    lambda ledger: has_paused_itself(ledger, "first"),
    lambda ledger: ledger.paused_since("first"),
    lambda ledger: begun_again_event(ledger, "first"),
    lambda ledger: round_ended_event(ledger, "first", 3),
    lambda ledger: late_tasks(ledger, "first"),
    lambda ledger: study_notes(ledger, "first"),
    lambda ledger: event_kinds(ledger, "first"),
    lambda ledger: find_events(ledger, study="first", kind="study_note", silo="hospital-a", limit=10)])
def test_a_question_about_a_study_does_not_read_all_events(
        filled: Filled, question: Callable[[Ledger], object]) -> None:
    """They are asked while silos wait for their answers, and a large study leaves more than half a million events."""
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    question(filled.ledger)  # what is noted once is noted now
    plan = query_plan(filled.ledger, lambda: question(filled.ledger))
    found = [step for step in plan if "event" in step]
    assert found
    assert [step for step in found if "INDEX event_by_study (study=?" not in step] == []


def test_what_happened_last_to_a_study_is_found_by_kind_and_silo_in_order(filled: Filled) -> None:
    kinds = dict(event_kinds(filled.ledger, "first"))
    assert kinds["round_opened"] == 5
    opened = find_events(filled.ledger, study="first", kind="round_opened", limit=3)
    assert [event.detail["round"] for event in opened] == [4, 3, 2]
    earlier = find_events(filled.ledger, study="first", kind="round_opened", before=opened[-1].number, limit=3)
    assert [event.detail["round"] for event in earlier] == [1, 0]
    of_one = find_events(filled.ledger, study="first", kind="task_updated", silo="hospital-b", limit=100)
    assert {event.detail["silo"] for event in of_one} == {"hospital-b"}
    assert len(of_one) < kinds["task_updated"]
