"""What silos answered, as the ledger tells it over rounds and studies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.methods.spec import STATISTICS
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.ledger.tasks import (
    add_site_evaluation,
    answer_states,
    answers_of_study,
    first_update,
    has_taken_part,
    is_committed,
    last_refusal,
    open_tasks,
    site_evaluations,
    sizes_of_last_updates,
    takes_in,
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
    query_plan,
    study_config,
)
from tests.each_of import each_of


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Six rounds: in round 3 the last silo abstains, in round 5 the first is late, in round 6 the second refuses; in
    round 7 the first has answered and the others work."""
    return fill_study(tmp_path_factory.mktemp("answers") / "federation", done=6, collecting=True)


def test_answers_come_by_round_and_silo_with_what_was_said(filled: Filled) -> None:
    found = answers_of_study(filled.ledger, "first")
    assert [(each.round, each.silo) for each in found] == [(number, silo) for number in range(1, 8) for silo in SILOS]
    assert {each.phase for each in found} == {PHASE}
    assert answers_of_study(filled.ledger, "first", counted=False) == [
        replace(each, example_count=None) for each in found]
    assert any(each.example_count for each in found)
    assert not any("declared_update" in step for step in query_plan(
        filled.ledger, lambda: answers_of_study(filled.ledger, "first", counted=False)))
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


def test_the_sizes_of_the_last_updates_are_found_by_their_round_alone(filled: Filled) -> None:
    """A silo that checks its settings waits for them, and so do all others: of half a million tasks for a second."""
    plan = [step for step in query_plan(filled.ledger, lambda: sizes_of_last_updates(filled.ledger, "first"))
            if " task " in step]
    assert plan
    assert [step for step in plan if "(study=? AND round=?" not in step] == []


def test_an_update_counts_once_its_round_is_committed(filled: Filled, tmp_path: Path) -> None:
    assert first_update(filled.ledger, "first") == 1
    ledger = open_federation_with_silos(tmp_path / "federation").ledger
    ledger.queue_study("s", study_config(rounds=3))
    open_collecting_round(ledger, "s", 1, SILOS)
    answer(ledger, "s", 1, SILOS[0], TaskState.UPDATED, ratio=0.5)
    assert first_update(ledger, "s") is None
    assert sizes_of_last_updates(ledger, "s") == []


@each_of(("accepted", "phase", "first"), [
    ("{}", PHASE, 1), ('{"accepted_step":1.0}', PHASE, 1), ('{"accepted_step":0.25}', PHASE, 1),
    ('{"accepted_step":0.0}', PHASE, 3), ('{"accepted_step":0.0}', STATISTICS, 1)])
def test_an_update_of_which_the_gate_accepted_nothing_was_not_taken_in(accepted: str, phase: str, first: int) -> None:
    """In the first two rounds. Batch-norm statistics that silos have measured are in the model whatever it accepts."""
    with TemporaryDirectory() as folder:
        ledger = fill_study(Path(folder) / "federation", done=3).ledger
        with ledger.transaction() as db:
            db.execute("UPDATE round SET metrics_json = ? WHERE study = 'first' AND number IN (1, 2)", (accepted,))
            db.execute("UPDATE phase SET name = ? WHERE study = 'first'", (phase,))
        assert first_update(ledger, "first") == first
        assert next(each.number for each in ledger.rounds("first") if takes_in(
            each.metrics, answers_of_study(ledger, "first", first=each.number, last=each.number))) == first


# Site evaluations -----------------------------------------------------------------------------------------------------


def evaluation(round: int, correct: int = 5, *, labels_alone: bool = False) -> SiteEvaluation:
    return SiteEvaluation(study="first", round=round, labels_alone=labels_alone, classes=(
        ClassResult(images=8, correct=correct, auroc=0.75), ClassResult(images=2, correct=1, auroc=0.75)))


def test_of_a_site_the_wanted_model_counts_or_else_the_newest(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "federation", done=2).ledger
    for silo, found in (("b", evaluation(1)), ("b", evaluation(2)), ("a", evaluation(0)), ("a", evaluation(1)),
                        ("b", evaluation(0, labels_alone=True))):
        assert add_site_evaluation(ledger, silo, found, now_unix=1.0)
    assert site_evaluations(ledger, "first", round=1) == {"a": evaluation(1), "b": evaluation(1)}
    assert site_evaluations(ledger, "first", round=2) == {"a": evaluation(1), "b": evaluation(2)}
    assert site_evaluations(ledger, "first", round=0, labels_alone=True) == {
        "a": evaluation(1), "b": evaluation(0, labels_alone=True)}
    assert list(site_evaluations(ledger, "first", round=1)) == ["a", "b"]
    assert site_evaluations(ledger, "second", round=1) == {}


def test_what_a_site_says_of_a_model_first_stays(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "federation", done=2).ledger
    assert add_site_evaluation(ledger, "a", evaluation(1), now_unix=1.0)
    assert not add_site_evaluation(ledger, "a", evaluation(1, correct=8), now_unix=2.0)
    assert site_evaluations(ledger, "first", round=1) == {"a": evaluation(1)}


def test_who_has_taken_part_has_answered_with_an_update_or_an_abstention(filled: Filled) -> None:
    assert [has_taken_part(filled.ledger, "first", silo) for silo in (*SILOS, "stranger")] == [True] * 3 + [False]
    assert not has_taken_part(filled.ledger, "second", SILOS[0])
    assert [is_committed(filled.ledger, "first", number) for number in (0, 6, 7, 8)] == [True, True, False, False]


def test_open_tasks_are_found_without_reading_the_others(filled: Filled) -> None:
    """A study may have half a million tasks."""
    plan = [step for step in query_plan(filled.ledger, lambda: open_tasks(filled.ledger)) if " task " in step]
    assert plan
    assert all("INDEX open_task_by_" in step for step in plan)
