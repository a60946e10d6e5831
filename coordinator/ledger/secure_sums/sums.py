"""Sums of updates behind masks: what was opened, and what silos have answered to their steps.

Answers of silos are kept until their sum is made, since they hold what takes the masks off.

Tests: tests/coordinator/ledger/secure_sums/test_sums.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.secure_aggregation.mask_form import MaskForm, SumOutcome
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.ledger.states import TaskState

__all__ = ["SumRow", "answer_step", "last_sum", "note_form", "note_outcome", "open_sum", "step_answers", "sum_row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SumRow:
    """One sum."""

    study: str
    round: int
    phase: str
    """Of the method."""
    nonce: bytes
    threshold: int
    roster_number: int
    """The last entry of the roster when it was opened."""
    form: MaskForm | None
    """None before its step "mask"."""
    outcome: SumOutcome | None
    """None until it is made."""


def open_sum(ledger: Ledger, *, study: str, round: int, phase: str, nonce: bytes, threshold: int,
             roster_number: int) -> SumRow:
    """The sum of a phase of a round; the one that is there already, where a coordinator was killed after opening it."""
    with ledger.part() as db:
        added = db.execute("INSERT OR IGNORE INTO secure_sum VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                           (study, round, phase, nonce, threshold, roster_number)).rowcount
        if added:
            ledger.event("secure_sum_opened", study=study, round=round, phase=phase, nonce=nonce.hex(),
                         threshold=threshold, roster_number=roster_number)
    return sum_row(ledger, study, round, phase)


def sum_row(ledger: Ledger, study: str, round: int, phase: str) -> SumRow:
    """A sum that was opened."""
    row = ledger.query("SELECT * FROM secure_sum WHERE study = ? AND round = ? AND phase = ?", study, round, phase)[0]
    return SumRow(
        study=study, round=round, phase=phase, nonce=row["nonce"], threshold=row["threshold"],
        roster_number=row["roster_number"],
        form=None if row["form_json"] is None else _form(row["form_json"]),
        outcome=None if row["outcome_json"] is None else from_dict(SumOutcome, json.loads(row["outcome_json"])))


@functools.lru_cache(maxsize=16)
def _form(text: str) -> MaskForm:
    """What a column holds; kept, for every silo's answer is held against it."""
    return from_dict(MaskForm, json.loads(text))


def last_sum(ledger: Ledger, study: str, round: int, phase: str) -> SumRow | None:
    """The last sum of a phase before a round that was made; None when there is none."""
    rows = ledger.query("SELECT round FROM secure_sum WHERE study = ? AND phase = ? AND round < ? AND outcome_json IS"
                        " NOT NULL ORDER BY round DESC LIMIT 1", study, phase, round)
    return sum_row(ledger, study, rows[0]["round"], phase) if rows else None


def note_form(ledger: Ledger, row: SumRow, form: MaskForm) -> None:
    """How the tensors of a sum become words."""
    with ledger.part() as db:
        db.execute("UPDATE secure_sum SET form_json = ? WHERE study = ? AND round = ? AND phase = ?",
                   (canonical_json(form), row.study, row.round, row.phase))


def note_outcome(ledger: Ledger, row: SumRow, outcome: SumOutcome) -> None:
    """What a sum has come to. Its answers go: nobody needs them any more, and together they open single masks."""
    with ledger.part() as db:
        db.execute("UPDATE secure_sum SET outcome_json = ? WHERE study = ? AND round = ? AND phase = ?",
                   (canonical_json(outcome), row.study, row.round, row.phase))
        db.execute("DELETE FROM step_answer WHERE study = ?", (row.study,))
        ledger.event("secure_sum_made", study=row.study, round=row.round, phase=row.phase, silos=outcome.silos)


def answer_step(ledger: Ledger, task: TaskRow, answer: bytes) -> None:
    """What a silo has answered to a step; ends its task. Raises: TaskClosed."""
    with ledger.transaction() as db:
        ledger.close_task(task, TaskState.ANSWERED)
        db.execute("INSERT INTO step_answer VALUES (?, ?, ?)", (task.task_id, task.study, answer))


def step_answers(ledger: Ledger, study: str, round: int, phase: int) -> Mapping[str, bytes]:
    """Silo -> its answer to a step, in byte order of names.

    Args:
        phase: number of the step among the phases of the round.
    """
    rows = ledger.query("SELECT silo, answer FROM task JOIN step_answer USING (task_id) WHERE task.study = ?"
                        " AND round = ? AND phase = ? AND state = ?", study, round, phase, TaskState.ANSWERED)
    return {row["silo"]: row["answer"] for row in sorted(rows, key=lambda row: row["silo"].encode())}
