"""How far studies are, in a handful of queries however long a study is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.progress import (
    RoundCounts,
    last_phase,
    last_studies,
    open_phase,
    phases_of_round,
    round_heads,
    round_outcomes,
    silo_totals,
    study_progress,
)
from semisilo.coordinator.ledger.records import PhaseHead, RoundHead
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from tests.coordinator.ledger_fixture import PHASE, SECONDS_PER_ROUND, Filled, accuracy_after, fill_study, study_config


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """Three rounds are committed; in the fourth one of three silos has answered."""
    made = fill_study(tmp_path / "fed", rounds=9, done=3, collecting=True)
    yield made
    made.ledger.close()


def test_heads_counts_and_lengths_of_rounds_leave_round_0_out(filled: Filled) -> None:
    found = study_progress(filled.ledger, "first")
    assert found.last_round == 4
    assert found.round_opened_unix == filled.ledger.round("first", 4).opened_unix
    assert found.last_seconds == pytest.approx(SECONDS_PER_ROUND)
    assert found.metrics == {"accuracy": accuracy_after(3)}
    assert set(found.rounds) == {RoundCounts(state=RoundState.COMPLETED, count=3, seconds=3 * SECONDS_PER_ROUND),
                                 RoundCounts(state=RoundState.COLLECTING, count=1, seconds=0.0)}


def test_of_a_study_without_rounds_nothing_is_known(filled: Filled) -> None:
    filled.ledger.queue_study("second", study_config(rounds=1))
    found = study_progress(filled.ledger, "second")
    assert (found.last_round, found.round_opened_unix, found.last_seconds, found.metrics, found.rounds) == (
        None, None, None, {}, ())
    assert open_phase(filled.ledger, "second") is None
    assert last_phase(filled.ledger, "second", 1) is None
    assert phases_of_round(filled.ledger, "second", 1) == []


def test_sums_of_rounds_that_are_over_are_those_of_their_tasks(filled: Filled) -> None:
    ledger = filled.ledger
    outcomes = round_outcomes(ledger, "first")
    assert sorted(outcomes) == [1, 2, 3], "the fourth is still open"
    for number in outcomes:
        assert outcomes[number] == {str(state): count for state, count in Counter(
            ledger.task_states("first", number, 0).values()).items()}
    totals = silo_totals(ledger, "first")
    assert sum(total.asked for total in totals.values()) == 9
    assert sum(total.updated for total in totals.values()) == sum(each.get("updated", 0) for each in outcomes.values())
    assert round_outcomes(ledger, "first", first=3) == {3: outcomes[3]}


def test_heads_are_what_whole_rounds_say(filled: Filled) -> None:
    for head, row in zip(round_heads(filled.ledger, "first"), filled.ledger.rounds("first"), strict=True):
        assert {name: getattr(row, name) for name in RoundHead.__slots__} == {
            name: getattr(head, name) for name in RoundHead.__slots__}
    assert [head.number for head in round_heads(filled.ledger, "first", first=3)] == [3, 4]


def test_the_open_phase_counts_the_tasks_of_each_state_until_it_closes(filled: Filled) -> None:
    ledger = filled.ledger
    found = open_phase(ledger, "first")
    assert found is not None
    assert (found.name, found.tasks) == (PHASE, {TaskState.UPDATED: 1, TaskState.OPEN: 2})
    assert found.deadline_unix == ledger.phase("first", 4, 0).deadline_unix
    head, row = last_phase(ledger, "first", 4), ledger.phase("first", 4, 0)
    assert isinstance(head, PhaseHead)
    assert {name: getattr(head, name) for name in PhaseHead.__slots__} == {
        name: getattr(row, name) for name in PhaseHead.__slots__}
    assert phases_of_round(ledger, "first", 4) == [ledger.phase("first", 4, 0)]
    ledger.close_phase(ledger.phase("first", 4, 0))
    assert open_phase(ledger, "first") is None
    assert last_phase(ledger, "first", 4) is not None


def test_studies_that_have_not_ended_are_always_listed_and_of_the_others_the_last_few(filled: Filled) -> None:
    ledger = filled.ledger
    for name in ("second", "third", "fourth"):
        ledger.queue_study(name, study_config(rounds=1))
    for name in ("first", "second", "fourth"):
        ledger.set_study_state(name, StudyState.STOPPED)
    assert [row.name for row in last_studies(ledger, ended=0)] == ["third"]
    assert [row.name for row in last_studies(ledger, ended=1)] == ["third", "fourth"]
    assert [row.name for row in last_studies(ledger, ended=9)] == ["first", "second", "third", "fourth"]
    for _ in range(3):  # to the end of the queue, each time
        ledger.requeue_study("second", study_config(rounds=1))
        ledger.set_study_state("second", StudyState.STOPPED)
    assert [row.name for row in last_studies(ledger, ended=2)] == ["third", "fourth", "second"]
