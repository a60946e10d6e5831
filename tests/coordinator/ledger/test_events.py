"""What the audit trail says of a study, and the end of its chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.events import (
    begun_again_event,
    is_model_noted,
    last_ended_rounds,
    note_model_not_written,
    note_model_written,
    round_ended_event,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import Filled, digest, fill_study


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
    assert is_model_noted(ledger, "first", digest("4"))
    assert not is_model_noted(ledger, "first", digest("3"))
    assert not is_model_noted(ledger, "second", digest("4"))


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
