"""What every reader says of a study and of its open round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.config import canonical_json
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.study_facts import open_round_facts, study_facts
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.studies.participation import ParticipationFacts
from tests.coordinator.ledger_fixture import (
    LABELLED_ONLY,
    PHASE,
    SECONDS_PER_ROUND,
    SILOS,
    Filled,
    accuracy_after,
    fill_study,
    study_config,
)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """Three of nine rounds are committed; in the fourth one of three silos has answered."""
    made = fill_study(tmp_path / "fed", rounds=9, done=3, collecting=True)
    yield made
    made.ledger.close()


NOBODY = ParticipationFacts()


def test_a_running_study_has_its_round_accuracy_and_an_estimate_of_what_is_left(filled: Filled) -> None:
    rounds = filled.ledger.rounds("first")
    facts = study_facts(filled.ledger.study("first"), rounds, NOBODY, first_update=1,
                        now_unix=rounds[-1].opened_unix + 1)
    assert (facts.name, facts.state, facts.method, facts.round, facts.rounds) == ("first", "running", "semifl", 4, 9)
    assert (facts.accuracy, facts.labelled_only_accuracy) == (accuracy_after(3), LABELLED_ONLY)
    assert facts.seconds_left == pytest.approx(6 * SECONDS_PER_ROUND - 1), "six of nine rounds, the first a second old"


def test_a_study_that_has_not_begun_has_no_numbers_and_one_that_is_over_no_time_left(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.queue_study("second", study_config(rounds=5))
    facts = study_facts(ledger.study("second"), [], NOBODY, first_update=1, now_unix=0.0)
    assert (facts.state, facts.round, facts.rounds, facts.accuracy, facts.labelled_only_accuracy,
            facts.seconds_left) == ("queued", 0, 5, None, None, None)
    ledger.set_study_state("first", StudyState.STOPPED, reason="enough")
    over = study_facts(ledger.study("first"), ledger.rounds("first"), NOBODY, first_update=1, now_unix=0.0)
    assert (over.state, over.reason, over.seconds_left) == ("stopped", "enough", None)


def test_of_labels_alone_it_is_said_how_far_they_are_or_what_cut_them_short(filled: Filled) -> None:
    ledger = filled.ledger

    def said(labels_alone: str = "", *, study: str = "first") -> str:
        live = LiveStatus(pid=1, unix=0.0, study=study, labels_alone=labels_alone)
        return study_facts(ledger.study("first"), [], NOBODY, first_update=1, now_unix=0.0, live=live).labels_alone

    done = ledger.study("first").baseline
    assert done is not None
    assert said() == "", "all epochs, and by an earlier version"
    ledger.set_study_facts("first", baseline=replace(done, epochs=120, asked=400, ended="budget"))
    assert said() == "120 of 400 epochs: time budget"
    ledger.set_study_facts("first", baseline=replace(done, epochs=60, asked=400, ended="flat"))
    assert said() == "60 of 400 epochs: validation flat"
    with ledger.transaction() as db:
        db.execute("UPDATE study SET baseline_json = NULL")
    assert said() == "in work"
    assert said("12 of 400 epochs, about 40 min left") == "12 of 400 epochs, about 40 min left"
    assert said("12 of 400 epochs", study="second") == "in work"
    ledger.set_study_state("first", StudyState.STOPPED)
    assert said() == "not trained"
    config = ledger.study("first").config
    config["study"]["labelled_only_baseline"] = False
    with ledger.transaction() as db:
        db.execute("UPDATE study SET config_json = ?", (canonical_json(config),))
    assert said() == ""


def test_an_open_round_says_whom_it_waits_for_and_until_when(filled: Filled) -> None:
    ledger = filled.ledger
    facts = open_round_facts(ledger, ledger.study("first"), ledger.last_round("first"))
    assert facts is not None
    phase = ledger.phase("first", 4, 0)
    assert (facts.number, facts.state, facts.phase, facts.quorum) == (4, "collecting", PHASE, 2)
    assert (facts.deadline_unix, facts.limit_unix) == (phase.deadline_unix, phase.limit_unix)
    assert facts.tasks == {TaskState.OPEN: 2, TaskState.UPDATED: 1}
    assert facts.waiting_for == tuple(sorted(SILOS[1:], key=str.encode))


def test_while_nobody_works_there_is_no_deadline_and_after_the_round_nothing(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.close_phase(ledger.phase("first", 4, 0))
    facts = open_round_facts(ledger, ledger.study("first"), ledger.last_round("first"))
    assert facts is not None
    assert (facts.state, facts.deadline_unix, facts.limit_unix, facts.waiting_for) == ("aggregating", None, None, ())
    ledger.set_round_state("first", 4, RoundState.PREPARING, phase=1)
    between = open_round_facts(ledger, ledger.study("first"), ledger.last_round("first"))
    assert between is not None
    assert (between.phase, between.quorum, between.tasks) == ("", 0, {}), "the phase before is over"
    ledger.set_round_state("first", 4, RoundState.CANCELLED)
    assert open_round_facts(ledger, ledger.study("first"), ledger.last_round("first")) is None
    assert open_round_facts(ledger, ledger.study("first"), None) is None
