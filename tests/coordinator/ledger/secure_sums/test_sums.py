"""Secure sums in the ledger: opened once, answers kept until the sum is made and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.common.errors import TaskClosed
from semisilo.common.secure_aggregation.mask_form import MaskForm, SumOutcome
from semisilo.coordinator.ledger.secure_sums.sums import (
    answer_step,
    last_sum,
    note_form,
    note_outcome,
    open_sum,
    step_answers,
    sum_row,
)
from semisilo.coordinator.ledger.states import TaskState
from tests.coordinator.ledger_fixture import (
    SILOS,
    Filled,
    fill_study,
    open_collecting_round,
    open_federation_with_silos,
)

FORM = MaskForm(bits=18, bounds=(1.0, 0.5), silo_count=3)
OUTCOME = SumOutcome(silos=3, weight=3.0, cut=0, elements=10, largest=(0.1, 0.2))


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return open_federation_with_silos(tmp_path)


def opened(filled: Filled, number: int = 1, nonce: bytes = b"n" * 16) -> None:
    open_sum(filled.ledger, study="first", round=number, phase="train", nonce=nonce, threshold=3, roster_number=2)


def test_a_sum_that_is_opened_again_is_the_one_that_was(filled: Filled) -> None:
    opened(filled)
    opened(filled, nonce=b"m" * 16)
    row = sum_row(filled.ledger, "first", 1, "train")
    assert (row.nonce, row.threshold, row.roster_number, row.form, row.outcome) == (b"n" * 16, 3, 2, None, None)


def test_form_and_outcome_come_back(filled: Filled) -> None:
    opened(filled)
    row = sum_row(filled.ledger, "first", 1, "train")
    note_form(filled.ledger, row, FORM)
    note_outcome(filled.ledger, row, OUTCOME)
    row = sum_row(filled.ledger, "first", 1, "train")
    assert (row.form, row.outcome) == (FORM, OUTCOME)


def test_the_last_sum_is_one_that_was_made_before(filled: Filled) -> None:
    for number in (1, 2, 3):
        opened(filled, number)
    note_outcome(filled.ledger, sum_row(filled.ledger, "first", 1, "train"), OUTCOME)
    note_outcome(filled.ledger, sum_row(filled.ledger, "first", 3, "train"), OUTCOME)
    last = last_sum(filled.ledger, "first", 3, "train")
    assert last is not None
    assert last.round == 1
    assert last_sum(filled.ledger, "first", 1, "train") is None
    assert last_sum(filled.ledger, "first", 3, "other") is None


def test_an_answer_ends_its_task_and_is_there_until_the_sum_is_made(tmp_path: Path) -> None:
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    open_collecting_round(filled.ledger, "first", 2, SILOS)
    opened(filled, 2)
    task = filled.ledger.tasks("first", 2, 0)[0]
    answer_step(filled.ledger, task, b"keys")
    assert step_answers(filled.ledger, "first", 2, 0) == {task.silo: b"keys"}
    assert filled.ledger.task_states("first", 2, 0)[task.silo] is TaskState.ANSWERED
    with pytest.raises(TaskClosed):
        answer_step(filled.ledger, task, b"other keys")
    note_outcome(filled.ledger, sum_row(filled.ledger, "first", 2, "train"), OUTCOME)
    assert step_answers(filled.ledger, "first", 2, 0) == {}
