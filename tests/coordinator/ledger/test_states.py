"""The state machines as data: whatever is not in the tables is refused, in the function and in the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.ledger import Ledger, RoundGone
from semisilo.coordinator.ledger.states import (
    ROUND_TRANSITIONS,
    STUDY_TRANSITIONS,
    TASK_TRANSITIONS,
    RoundState,
    StudyState,
    TaskState,
    check_transition,
)
from tests.coordinator.ledger_fixture import open_collecting_round, study_config
from tests.each_of import each_of

TABLES: list[tuple[type[StrEnum], frozenset[tuple[StrEnum, StrEnum]]]] = [
    (RoundState, ROUND_TRANSITIONS), (StudyState, STUDY_TRANSITIONS), (TaskState, TASK_TRANSITIONS)]  # type: ignore[list-item]


def pairs(*, legal: bool) -> list[tuple[frozenset[tuple[StrEnum, StrEnum]], StrEnum, StrEnum]]:
    found = []
    for states, table in TABLES:
        for before, after in itertools.product(states, states):
            if ((before, after) in table) is legal:
                found.append((table, before, after))
    return found


@each_of(("table", "before", "after"), pairs(legal=False))
def test_a_pair_that_is_not_in_the_table_is_refused(table: frozenset[tuple[StrEnum, StrEnum]], before: StrEnum,
                                                    after: StrEnum) -> None:
    with pytest.raises(AssertionError, match=f"{before} -> {after} is not a legal transition"):
        check_transition(table, before, after)


@each_of(("table", "before", "after"), pairs(legal=True))
def test_a_pair_in_the_table_passes(table: frozenset[tuple[StrEnum, StrEnum]], before: StrEnum,
                                    after: StrEnum) -> None:
    check_transition(table, before, after)


def test_nothing_follows_the_end() -> None:
    """Only a study may be tried again, or go back to an earlier round, and only through the queue; and an update that
    was accepted may be left out when its phase is closed."""
    ends = {id(ROUND_TRANSITIONS): {RoundState.COMPLETED, RoundState.FAILED, RoundState.CANCELLED},
            id(STUDY_TRANSITIONS): set[StrEnum](),
            id(TASK_TRANSITIONS): set(TaskState) - {TaskState.OPEN}}
    assert [pair for _, table in TABLES for pair in table if pair[0] in ends[id(table)]] == [
        (TaskState.UPDATED, TaskState.REFUSED)]
    over = (StudyState.COMPLETED, StudyState.FAILED, StudyState.STOPPED)
    assert {pair for pair in STUDY_TRANSITIONS if pair[0] in over} == {(state, StudyState.QUEUED) for state in over}


def test_every_state_but_the_first_can_be_reached_and_every_active_one_can_fail() -> None:
    for states, table in TABLES:
        reached = {after for _, after in table}
        assert set(states) - reached <= {next(iter(states))}
    for state in (RoundState.PREPARING, RoundState.COLLECTING, RoundState.AGGREGATING, RoundState.EVALUATING):
        assert {(state, RoundState.FAILED), (state, RoundState.CANCELLED)} <= ROUND_TRANSITIONS


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    opened.query("PRAGMA synchronous = OFF")
    opened.queue_study("s", study_config(rounds=3))
    yield opened
    opened.close()


def forced(ledger: Ledger, table: str, state: StrEnum) -> None:
    with ledger.transaction() as db:
        db.execute(f"UPDATE {table} SET state = ?", (state,))


def test_the_ledger_refuses_every_illegal_move_of_a_study_and_changes_nothing(ledger: Ledger) -> None:
    for before, after in itertools.product(StudyState, StudyState):
        if before is after or (before, after) in STUDY_TRANSITIONS:
            continue
        forced(ledger, "study", before)
        events = ledger.check_events()
        with pytest.raises(AssertionError):
            ledger.set_study_state("s", after)
        assert ledger.study("s").state is before
        assert ledger.check_events() == events


def test_the_ledger_refuses_every_illegal_move_of_a_round_and_changes_nothing(ledger: Ledger) -> None:
    ledger.open_round("s", 0, start_digest="", sample=(), phases=())
    for before, after in itertools.product(RoundState, RoundState):
        if (before, after) in ROUND_TRANSITIONS:
            continue
        forced(ledger, "round", before)
        row, events = ledger.round("s", 0), ledger.check_events()
        # An operator may cancel a round while a step of it is under way; every other move is a mistake of ours.
        with pytest.raises(RoundGone if before is RoundState.CANCELLED else AssertionError):
            ledger.set_round_state("s", 0, after, state_digest="f" * 64, metrics={"accuracy": 1.0}, phase=7)
        assert ledger.round("s", 0) == row
        assert ledger.check_events() == events


def test_the_ledger_refuses_a_second_answer_to_a_task_whatever_it_is(ledger: Ledger) -> None:
    open_collecting_round(ledger, "s", 1, ("alpha",))
    for before, after in itertools.product(TaskState, TaskState):
        if (before, after) in TASK_TRANSITIONS:
            continue
        forced(ledger, "task", before)
        task = ledger.tasks("s", 1, 0)[0]
        with pytest.raises(AssertionError):
            ledger.close_task(task, after, reason="again")
        assert ledger.tasks("s", 1, 0)[0] == task
