"""The ledger: what its methods write, all or nothing, and what counts when. `test_database.py` is about its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import TaskClosed, UnknownName
from semisilo.common.methods.contract import ModelSettings, Phase, TaskSpec
from semisilo.common.methods.numerics import Numerics, NumericsRecord
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import (
    DeclaredUpdate,
    FrozenStudy,
    HistoryPoint,
    LabelledOnlyResult,
    PhaseRow,
    TaskRow,
)
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from tests.coordinator.ledger.test_database import dump_of, opened, synchronous_in
from tests.coordinator.ledger_fixture import digest, open_collecting_round, query_plan, study_config

SILOS = ("alpha", "beta")
FROZEN = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.25,)), num_labelled=4,
                     num_validation=0, num_test=3, num_parameters=5, dense_bytes=20)
NUMERICS = NumericsRecord(device="cpu", torch="2", cpu_capability="AVX2", threads=1, deterministic=True)
BASELINE = LabelledOnlyResult(metrics={"accuracy": 0.5}, epochs=1, lr=0.1, batch_size=10, steps=1, num_labelled=4,
                              history=(HistoryPoint(1, 0.7, 0.5),))
TWO_PHASES = (Phase("train"), Phase("statistics", asks="roster", quorum="any"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = opened(tmp_path)
    yield made
    made.close()


def task_of(ledger: Ledger, silo: str = "alpha", *, round: int = 1, phase: int = 0) -> TaskRow:
    return next(task for task in ledger.tasks("s", round, phase) if task.silo == silo)


def declared(task: TaskRow, name: str = "a") -> DeclaredUpdate:
    return DeclaredUpdate(update_id=digest(name)[:32], task_id=task.task_id, digest=digest(name), size_bytes=100,
                          groups={"model": 64}, example_count=10, metrics={"loss": 1.0}, training_seconds=0.5,
                          declared_unix=1.0, accepted_unix=None, folded=False)


def collecting(ledger: Ledger, number: int = 1, silos: tuple[str, ...] = SILOS) -> None:
    if not ledger.studies():
        ledger.queue_study("s", study_config(rounds=3))
        ledger.open_round("s", 0, start_digest="", sample=(), phases=())
        ledger.set_round_state("s", 0, RoundState.EVALUATING, state_digest=digest("state 0"))
        ledger.commit_round("s", 0, metrics={"accuracy": 0.5})
    open_collecting_round(ledger, "s", number, silos)


# Transactions ---------------------------------------------------------------------------------------------------------


def test_answers_and_ends_of_rounds_last_and_announcements_need_not(tmp_path: Path) -> None:
    """What a silo was told to be accepted, and what a round became, must be there after a power cut. What was lost of
    the others is done again."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    collecting(ledger)
    statements: list[str] = []
    with ledger.transaction() as db:
        db.set_trace_callback(statements.append)
    task = task_of(ledger)

    def is_full(write: Callable[[], object]) -> bool:
        was_full = synchronous_in(ledger) == 2
        statements.clear()
        write()
        levels = [text for text in statements if text.startswith("PRAGMA synchronous =")]
        assert statements[-1] == "COMMIT", statements
        return levels[-1] == "PRAGMA synchronous = FULL" if levels else was_full

    assert not is_full(lambda: ledger.task_given(task.task_id))
    assert is_full(lambda: ledger.replace_payloads(task, task.spec.payloads)), "the silo asks for them by name"
    assert not is_full(lambda: ledger.declare_update(declared(task)))
    assert is_full(lambda: ledger.accept_update(declared(task), task))
    assert not is_full(lambda: ledger.close_phase(ledger.phase("s", 1, 0)))
    assert is_full(lambda: ledger.set_round_state("s", 1, RoundState.EVALUATING, state_digest=digest("state 1")))
    assert is_full(lambda: ledger.commit_round("s", 1, metrics={"accuracy": 0.5}))
    assert is_full(lambda: ledger.event("seen"))
    ledger.close()


def test_every_method_that_writes_several_rows_is_all_or_nothing(ledger: Ledger) -> None:
    collecting(ledger)
    dump = dump_of(ledger)
    with pytest.raises(sqlite3.IntegrityError):  # the same phase again: its row is in the way
        ledger.open_phase(ledger.phase("s", 1, 0), [])
    with pytest.raises(AssertionError):  # after the row of the update the round cannot move
        ledger.commit_round("s", 1, metrics={})
    assert dump_of(ledger) == dump


# Studies --------------------------------------------------------------------------------------------------------------


def test_studies_run_in_the_order_of_the_queue_and_an_unknown_one_names_those_there_are(ledger: Ledger) -> None:
    for name in ("zeta", "alpha"):
        ledger.queue_study(name, study_config(rounds=1))
    assert [row.name for row in ledger.studies()] == ["zeta", "alpha"]
    with pytest.raises(UnknownName, match="'alfa'") as caught:
        ledger.study("alfa")
    assert "zeta, alpha" in caught.value.remedy
    with pytest.raises(sqlite3.IntegrityError):
        ledger.queue_study("zeta", study_config(rounds=1))


def test_a_requeued_study_forgets_its_end_and_before_its_first_commit_what_was_measured(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    ledger.set_study_state("s", StudyState.PREPARING)
    ledger.set_study_facts("s", frozen=FROZEN, numerics=NUMERICS, baseline=BASELINE)
    ledger.set_study_state("s", StudyState.FAILED, reason="no images")
    failed = ledger.study("s")
    assert (failed.reason, failed.ended_unix is not None, failed.frozen) == ("no images", True, FROZEN)
    ledger.requeue_study("s", study_config(rounds=9))
    row = ledger.study("s")
    assert (row.state, row.reason, row.ended_unix) == (StudyState.QUEUED, "", None)
    assert (row.frozen, row.numerics, row.baseline) == (None, None, None)
    assert row.config["study"]["rounds"] == 9


def test_a_requeued_study_with_a_commit_keeps_what_is_frozen(ledger: Ledger) -> None:
    collecting(ledger)
    ledger.set_study_facts("s", frozen=FROZEN, numerics=NUMERICS, baseline=BASELINE)
    ledger.set_study_state("s", StudyState.STOPPED)
    ledger.requeue_study("s", study_config(rounds=3))
    row = ledger.study("s")
    assert (row.frozen, row.numerics, row.baseline) == (FROZEN, NUMERICS, BASELINE)
    assert ledger.committed_digest("s") == digest("state 0")


@pytest.mark.parametrize("committed", [False, True])
def test_a_study_that_is_queued_again_keeps_when_it_began_once_it_has_a_round(
        ledger: Ledger, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """Durations and rounds by time began with the last time that it was queued."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    ledger.queue_study("s", {})
    ledger.set_study_state("s", StudyState.PREPARING)
    if committed:
        ledger.open_round("s", 0, start_digest="", sample=(), phases=())
        ledger.set_round_state("s", 0, RoundState.EVALUATING, state_digest="0" * 64)
        ledger.commit_round("s", 0, metrics={})
    ledger.set_study_state("s", StudyState.STOPPED)
    monkeypatch.setattr("time.time", lambda: 5000.0)
    ledger.requeue_study("s", {})
    ledger.set_study_state("s", StudyState.PREPARING)
    assert ledger.study("s").started_unix == (1000.0 if committed else 5000.0)


def test_only_an_ended_study_can_be_queued_again(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    ledger.set_study_state("s", StudyState.PREPARING)
    with pytest.raises(AssertionError):
        ledger.requeue_study("s", study_config(rounds=9))
    assert ledger.study("s").config["study"]["rounds"] == 3


def test_a_refused_study_is_seen_with_its_latest_reason(ledger: Ledger) -> None:
    ledger.refuse_study("s", "key misspelt")
    ledger.refuse_study("s", "another key misspelt")
    row = ledger.study("s")
    assert (row.state, row.reason, row.config) == (StudyState.FAILED, "another key misspelt", {})
    ledger.requeue_study("s", study_config(rounds=3))
    assert ledger.study("s").reason == ""


# Tasks and updates ----------------------------------------------------------------------------------------------------


def test_silos_come_in_byte_order_of_their_names(ledger: Ledger) -> None:
    collecting(ledger, silos=("b", "a-1", "a", "a1"))
    assert [task.silo for task in ledger.tasks("s", 1, 0)] == ["a", "a-1", "a1", "b"]


def test_an_open_task_of_a_study_hides_none_of_another(ledger: Ledger) -> None:
    collecting(ledger)
    ledger.queue_study("t", study_config(rounds=3))
    open_collecting_round(ledger, "t", 1, SILOS)
    found = {study: ledger.open_task("alpha", study=study) for study in ("s", "t", "u")}
    assert {study: None if task is None else task.study for study, task in found.items()} == {
        "s": "s", "t": "t", "u": None}


def test_a_repeated_declaration_changes_nothing_and_another_one_takes_its_place(ledger: Ledger) -> None:
    collecting(ledger)
    task = task_of(ledger)
    first, second = declared(task, "a"), declared(task, "b")
    assert ledger.declare_update(first) == []
    assert ledger.declare_update(replace(first, size_bytes=7)) == []
    assert ledger.declared_update(first.update_id) == first
    assert ledger.declare_update(second) == [first.update_id]
    assert ledger.declared_update(first.update_id) is None
    assert ledger.unfinished_updates("s", 1) == [second.update_id]
    ledger.accept_update(second, task)
    assert ledger.unfinished_updates("s", 1) == []


def test_an_accepted_update_answers_its_task_and_is_folded_in_silo_order(ledger: Ledger) -> None:
    collecting(ledger)
    for silo in reversed(SILOS):
        update = declared(task_of(ledger, silo), silo)
        ledger.declare_update(update)
        ledger.accept_update(update, task_of(ledger, silo))
    accepted = ledger.accepted_updates("s", 1, 0)
    assert [task.silo for task, _ in accepted] == ["alpha", "beta"]
    assert all(task.state is TaskState.UPDATED and task.update_id == update.update_id
               and update.accepted_unix is not None for task, update in accepted)


def test_an_update_is_accepted_once_and_folded_once(ledger: Ledger) -> None:
    collecting(ledger)
    task, update = task_of(ledger), declared(task_of(ledger))
    ledger.declare_update(update)
    ledger.accept_update(update, task)
    with pytest.raises(AssertionError, match="accepted once"):
        ledger.accept_update(update, task)
    with ledger.transaction() as db:  # as a mistake of ours would leave it
        db.execute("UPDATE declared_update SET folded = 1")
    ledger.close_phase(ledger.phase("s", 1, 0))
    ledger.set_round_state("s", 1, RoundState.EVALUATING, state_digest=digest("state 1"))
    with pytest.raises(AssertionError, match="folded once"):
        ledger.commit_round("s", 1, metrics={})
    assert ledger.round("s", 1).state is RoundState.EVALUATING


def test_an_update_of_a_silo_that_was_revoked_meanwhile_by_another_process_is_not_recorded(
        tmp_path: Path, ledger: Ledger) -> None:
    collecting(ledger)
    task = task_of(ledger)
    update = declared(task)
    ledger.declare_update(update)
    other = opened(tmp_path)
    assert other.cancel_tasks("alpha", reason="silo revoked") == 1
    other.close()
    events = ledger.check_events()
    with pytest.raises(TaskClosed):
        ledger.accept_update(update, task)  # the row was read before
    assert task_of(ledger).state is TaskState.CANCELLED
    assert ledger.declared_update(update.update_id) == update
    assert ledger.check_events() == events


def test_closing_a_phase_expires_open_tasks_only(ledger: Ledger) -> None:
    collecting(ledger)
    ledger.close_task(task_of(ledger), TaskState.ABSTAINED, reason="none")
    ledger.close_phase(ledger.phase("s", 1, 0))
    assert {task.silo: task.state for task in ledger.tasks("s", 1, 0)} == {
        "alpha": TaskState.ABSTAINED, "beta": TaskState.EXPIRED}
    assert ledger.round("s", 1).state is RoundState.AGGREGATING
    assert ledger.phase("s", 1, 0).closed_unix is not None


# Rounds with several phases -------------------------------------------------------------------------------------------


def run_phase(ledger: Ledger, number: int, answers: Mapping[str, TaskState], kept: Mapping[str, str | None]) -> None:
    """One phase of round 1: its tasks, the answers, and the fold of the updates."""
    row = ledger.round("s", 1)
    template = open_spec(ledger)
    specs = [replace(template, silo=silo, phase=row.phases[number].name, task_id=f"s/1/{number}/{silo}")
             for silo in answers]
    ledger.open_phase(PhaseRow(study="s", round=1, number=number, name=row.phases[number].name, quorum=1,
                               opened_unix=1.0, deadline_unix=2.0, limit_unix=3.0, closed_unix=None, expects={}), specs)
    for silo, state in answers.items():
        task = task_of(ledger, silo, phase=number)
        if state is TaskState.UPDATED:
            update = declared(task, task.task_id)
            ledger.declare_update(update)
            ledger.accept_update(update, task)
        elif state is not TaskState.EXPIRED:
            ledger.close_task(task, state)
    ledger.close_phase(ledger.phase("s", 1, number))
    with ledger.transaction():
        ledger.folded("s", 1, {task.silo: kept[task.silo] for task, _ in ledger.accepted_updates("s", 1, number)})
        if number + 1 < len(row.phases):
            ledger.set_round_state("s", 1, RoundState.PREPARING, state_digest=digest(f"after {number}"),
                                   phase=number + 1)
        else:
            ledger.set_round_state("s", 1, RoundState.EVALUATING, state_digest=digest(f"after {number}"))


def open_spec(ledger: Ledger) -> TaskSpec:
    return TaskSpec(task_id="", study="s", round=1, rounds=3, phase="", silo="", method="semifl", settings={},
                    model=ModelSettings(classes=("a", "b")), numerics=Numerics(), augmentation=AugmentationSettings(),
                    image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), payloads=(), last_folded_round=0,
                    seed=1)


def two_phase_round(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    ledger.open_round("s", 1, start_digest=digest("start"), sample=SILOS, phases=TWO_PHASES)


UPDATED, EXPIRED, REFUSED, ABSTAINED, CANCELLED = (TaskState.UPDATED, TaskState.EXPIRED, TaskState.REFUSED,
                                                   TaskState.ABSTAINED, TaskState.CANCELLED)


def test_what_is_folded_counts_only_once_the_round_is_committed(ledger: Ledger) -> None:
    two_phase_round(ledger)
    run_phase(ledger, 0, dict.fromkeys(SILOS, UPDATED), dict.fromkeys(SILOS, "k1"))
    assert ledger.silo_state("s", "alpha") == (0, None)
    assert ledger.silo_state("s", "alpha", round=1) == (0, "k1")  # what the next phase of the round goes on from
    assert ledger.silo_state("s", "alpha", round=2) == (0, None)
    run_phase(ledger, 1, dict.fromkeys(SILOS, UPDATED), {"alpha": "k2", "beta": None})
    assert ledger.kept_digests("s") == {"k1", "k2"}
    ledger.commit_round("s", 1, metrics={"accuracy": 0.6})
    assert ledger.silo_state("s", "alpha") == (1, "k2")
    assert ledger.silo_state("s", "beta") == (1, "k1")  # the second phase kept nothing new
    assert all(row["folded"] for row in ledger.query("SELECT folded FROM declared_update"))


@pytest.mark.parametrize("missed", [EXPIRED, REFUSED, CANCELLED])
@pytest.mark.parametrize("phase", [0, 1])
def test_a_silo_that_missed_one_phase_of_the_round_is_left_as_it_was(ledger: Ledger, phase: int,
                                                                    missed: TaskState) -> None:
    two_phase_round(ledger)
    for number in (0, 1):
        run_phase(ledger, number, {"alpha": UPDATED, "beta": missed if number == phase else UPDATED},
                  dict.fromkeys(SILOS, f"k{number}"))
    ledger.commit_round("s", 1, metrics={})
    assert ledger.silo_state("s", "alpha") == (1, "k1")
    assert ledger.silo_state("s", "beta") == (0, None)
    assert ledger.kept_digests("s") == {"k1"}


@pytest.mark.parametrize(("first", "second", "expected"), [
    (ABSTAINED, ABSTAINED, (0, None)), (ABSTAINED, UPDATED, (1, "k1")), (UPDATED, ABSTAINED, (1, "k0"))])
def test_an_abstention_is_an_answer_and_takes_nothing_back(ledger: Ledger, first: TaskState, second: TaskState,
                                                          expected: tuple[int, str | None]) -> None:
    two_phase_round(ledger)
    for number, state in enumerate((first, second)):
        run_phase(ledger, number, {"alpha": UPDATED, "beta": state}, dict.fromkeys(SILOS, f"k{number}"))
    ledger.commit_round("s", 1, metrics={})
    assert ledger.silo_state("s", "beta") == expected


def test_a_silo_that_was_asked_in_the_second_phase_only_counts_with_that(ledger: Ledger) -> None:
    two_phase_round(ledger)
    run_phase(ledger, 0, {"alpha": UPDATED}, {"alpha": "k0"})
    run_phase(ledger, 1, dict.fromkeys(SILOS, UPDATED), dict.fromkeys(SILOS, "k1"))
    ledger.commit_round("s", 1, metrics={})
    assert ledger.silo_state("s", "beta") == (1, "k1")


def test_of_a_failed_round_nothing_is_kept_and_the_model_stays(ledger: Ledger) -> None:
    two_phase_round(ledger)
    run_phase(ledger, 0, dict.fromkeys(SILOS, UPDATED), dict.fromkeys(SILOS, "k0"))
    ledger.fail_round(ledger.round("s", 1), reason="no quorum")
    row = ledger.round("s", 1)
    assert (row.state, row.state_digest, row.reason) == (RoundState.FAILED, digest("start"), "no quorum")
    assert ledger.silo_state("s", "alpha", round=1) == (0, None)
    assert ledger.kept_digests("s") == set()


def test_what_a_cancelled_round_has_put_aside_is_never_taken_into_a_later_one(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    ledger.folded("s", 1, {"alpha": "of the cancelled round"})
    ledger.folded("s", 2, {"alpha": None})
    assert ledger.silo_state("s", "alpha", round=2) == (0, None)
    ledger.folded("s", 2, {"alpha": "k"})
    ledger.folded("s", 2, {"alpha": None})  # a later phase of the same round
    assert ledger.silo_state("s", "alpha", round=2) == (0, "k")


def test_a_commit_takes_nothing_that_an_earlier_round_has_put_aside(ledger: Ledger) -> None:
    """As of a silo that was in a round which was cancelled, and is not asked in the next one."""
    two_phase_round(ledger)
    ledger.folded("s", 0, {"beta": "of the cancelled round"})
    for number in (0, 1):
        run_phase(ledger, number, {"alpha": UPDATED}, {"alpha": f"k{number}"})
    ledger.commit_round("s", 1, metrics={})
    assert ledger.silo_state("s", "alpha") == (1, "k1")
    assert ledger.silo_state("s", "beta") == (0, None)


def test_the_committed_state_is_that_of_the_last_completed_round(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    assert ledger.committed_digest("s") == ""
    for number, state in enumerate((RoundState.COMPLETED, RoundState.COMPLETED, RoundState.FAILED)):
        ledger.open_round("s", number, start_digest=f"start {number}", sample=(), phases=())
        ledger.set_round_state("s", number, RoundState.EVALUATING, state_digest=f"end {number}")
        ledger.set_round_state("s", number, state)
    assert ledger.committed_digest("s") == "end 1"
    last = ledger.last_round("s")
    assert last is not None
    assert (last.number, last.state) == (2, RoundState.FAILED)


def test_what_is_asked_for_each_silo_is_found_by_an_index(ledger: Ledger) -> None:
    """With a thousand silos and a thousand rounds behind them a look at every row would take most of a round."""
    collecting(ledger)
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    ledger.open_task("alpha")
    ledger.open_task("alpha", study="s")
    ledger.open_tasks("s", 1, 0)
    ledger.count_answers("s", 1, 0)
    ledger.awaited_updates()
    LedgerRoster(ledger).silo_status("alpha")
    LedgerRoster(ledger).accepts("alpha", 7)
    LedgerRoster(ledger).silos()
    ledger._db.set_trace_callback(None)
    plans = {sql: [str(row["detail"]) for row in ledger.query(f"EXPLAIN QUERY PLAN {sql}")]
             for sql in asked if sql.startswith("SELECT")}
    assert len(plans) >= 6
    scans = {step for steps in plans.values() for step in steps
             if step.startswith("SCAN") and "INDEX" not in step and step != "SCAN silo"}
    assert scans == set(), plans  # all silos are wanted when the roster is listed


def test_a_phase_waits_for_the_silos_that_have_not_answered_and_counts_answers_without_refusals(
        ledger: Ledger) -> None:
    silos = ("zeta", "alpha", "beta", "gamma", "delta")
    collecting(ledger, silos=silos)
    assert ledger.open_tasks("s", 1, 0) == sorted(silos)
    assert ledger.count_answers("s", 1, 0) == 0
    for silo, state in (("alpha", TaskState.ABSTAINED), ("beta", TaskState.REFUSED), ("gamma", TaskState.EXPIRED),
                        ("delta", TaskState.CANCELLED)):
        ledger.close_task(task_of(ledger, silo), state)
    assert ledger.open_tasks("s", 1, 0) == ["zeta"]
    assert ledger.count_answers("s", 1, 0) == 1, "of the others none has brought anything"
    assert ledger.count_refusals("s", 1, 0) == 1
    some = ((), ("alpha",), ("beta", "alpha", "zeta"), ("beta",))
    assert [ledger.count_answers("s", 1, 0, of=of) for of in some] == [0, 1, 1, 0]


def test_answers_of_some_silos_are_counted_without_those_of_others(ledger: Ledger) -> None:
    collecting(ledger)
    step, *_ = query_plan(ledger, lambda: ledger.count_answers("s", 1, 0, of=("alpha",)))
    assert step.endswith("(study=? AND round=? AND phase=? AND silo=?)")
