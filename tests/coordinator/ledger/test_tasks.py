"""What silos answered, as the ledger tells it over rounds and studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.ledger.tasks import (
    answer_states,
    answers_of_study,
    has_updates,
    last_refusal,
    sizes_of_last_updates,
    training_seconds,
)
from tests.coordinator.ledger_fixture import (
    PAYLOAD_UP,
    PHASE,
    SILOS,
    Filled,
    answer,
    fill_study,
    open_collecting_round,
    open_federation_with_silos,
    study_config,
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Six rounds: in round 3 the last silo abstains, in round 5 the first is late, in round 6 the second refuses; in
    round 7 the first has answered and the others work."""
    return fill_study(tmp_path_factory.mktemp("answers") / "federation", done=6, collecting=True)


def test_answers_come_by_round_and_silo_with_what_was_said(filled: Filled) -> None:
    found = answers_of_study(filled.ledger, "first")
    assert [(each.round, each.silo) for each in found] == [(number, silo) for number in range(1, 8) for silo in SILOS]
    assert {each.phase for each in found} == {PHASE}
    third = answers_of_study(filled.ledger, "first", first=3, last=3)
    assert third == [each for each in found if each.round == 3]
    assert [each.state for each in third] == [TaskState.UPDATED, TaskState.UPDATED, TaskState.ABSTAINED]
    assert third[0].example_count == int(470 * third[0].metrics["label_ratio"])
    assert (third[2].example_count, third[2].metrics) == (None, {"label_ratio": 0.0})


def test_a_round_or_study_that_is_not_there_has_no_answers(filled: Filled) -> None:
    assert answers_of_study(filled.ledger, "first", first=0, last=0) == []
    assert answers_of_study(filled.ledger, "first", first=8, last=8) == []
    assert answers_of_study(filled.ledger, "second") == []


@pytest.mark.parametrize(("number", "states"), [
    (0, set()), (1, {TaskState.UPDATED}), (3, {TaskState.UPDATED, TaskState.ABSTAINED}),
    (5, {TaskState.UPDATED, TaskState.EXPIRED}), (6, {TaskState.UPDATED, TaskState.REFUSED}),
    (7, {TaskState.UPDATED, TaskState.OPEN})])
def test_the_states_of_a_round_are_told_once_each(filled: Filled, number: int, states: set[TaskState]) -> None:
    assert answer_states(filled.ledger, "first", number) == states


def test_the_last_refusal_of_a_round_names_the_silo_and_its_reason(filled: Filled) -> None:
    found = last_refusal(filled.ledger, "first", 6)
    assert found is not None
    assert (found.silo, found.reason) == (SILOS[1], "METHOD_NOT_PERMITTED: silo.toml does not list semifl")
    assert last_refusal(filled.ledger, "first", 5) is None


def test_training_time_is_that_of_accepted_updates_and_none_without_one(filled: Filled) -> None:
    assert training_seconds(filled.ledger, "first", SILOS[0], 1) == 1.5
    assert training_seconds(filled.ledger, "first", SILOS[2], 3) is None
    assert training_seconds(filled.ledger, "first", "stranger", 1) is None


def test_the_sizes_of_the_last_updates_are_those_of_the_last_committed_round(filled: Filled) -> None:
    # Round 7 is open; in round 6 one of three silos has refused.
    assert sizes_of_last_updates(filled.ledger, "first") == [PAYLOAD_UP, PAYLOAD_UP]
    assert sizes_of_last_updates(filled.ledger, "second") == []


def test_an_update_counts_once_its_round_is_committed(filled: Filled, tmp_path: Path) -> None:
    assert has_updates(filled.ledger, "first")
    ledger = open_federation_with_silos(tmp_path / "federation").ledger
    ledger.queue_study("s", study_config(rounds=3))
    open_collecting_round(ledger, "s", 1, SILOS)
    answer(ledger, "s", 1, SILOS[0], TaskState.UPDATED, ratio=0.5)
    assert not has_updates(ledger, "s")
    assert sizes_of_last_updates(ledger, "s") == []
