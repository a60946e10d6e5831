"""What the ledger keeps of experiment trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tracking import (
    TrackedRun,
    TrackedStudy,
    add_tracked_run,
    note_complete,
    note_told,
    studies_with_results,
    tracked_run,
)
from tests.coordinator.ledger_fixture import Filled, fill_study, study_config


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "federation", done=3, complete=False)


def test_a_run_is_kept_for_each_study_and_tracker(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.queue_study("second", study_config(rounds=2))
    assert tracked_run(ledger, "first", "http://a") is None
    assert add_tracked_run(ledger, "first", "http://a", run="r1") == TrackedRun(run="r1")
    add_tracked_run(ledger, "first", "http://b", run="r2")
    add_tracked_run(ledger, "second", "http://a", run="r3")
    note_told(ledger, "first", "http://a", last_round=2)
    note_complete(ledger, "first", "http://a", complete=True)
    assert tracked_run(ledger, "first", "http://a") == TrackedRun(run="r1", last_round=2, complete=True)
    assert tracked_run(ledger, "first", "http://b") == TrackedRun(run="r2", last_round=-1, complete=False)
    assert tracked_run(ledger, "second", "http://a") == TrackedRun(run="r3")
    note_complete(ledger, "first", "http://a", complete=False)  # the study goes on
    assert tracked_run(ledger, "first", "http://a") == TrackedRun(run="r1", last_round=2)


def test_a_tracker_that_was_told_of_a_round_while_the_study_went_back_behind_it_is_forgotten(filled: Filled) -> None:
    """Rounds that are done again would be told to a run that has others of their numbers, or not at all."""
    ledger = filled.ledger
    for target in ("http://a", "http://b"):
        add_tracked_run(ledger, "first", target, run="r")
        note_told(ledger, "first", target, last_round=1)
    ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(ledger, "first", 2, operator="mona", reason="noise")
    note_told(ledger, "first", "http://a", last_round=3)
    assert tracked_run(ledger, "first", "http://a") is None
    assert tracked_run(ledger, "first", "http://b") == TrackedRun(run="r", last_round=1)


def test_studies_with_results_say_how_far_they_have_come(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.queue_study("second", study_config(rounds=2))  # without a committed round
    assert studies_with_results(ledger) == [
        TrackedStudy(name="first", state=StudyState.RUNNING, last_round=3, ended_unix=None,
                     labels_alone=True)]
    ledger.open_round("first", 4, start_digest="", sample=(), phases=())  # open: no result yet
    ledger.set_study_state("first", StudyState.STOPPED)
    (found,) = studies_with_results(ledger)
    assert (found.state, found.last_round) == (StudyState.STOPPED, 3)
    assert found.ended_unix == ledger.study("first").ended_unix
