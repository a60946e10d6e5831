"""The rows of the ledger as typed values."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from coordinator.states import RoundState, StudyState, TaskState

__all__ = ["DeclaredUpdate", "PhaseRow", "RoundRow", "StudyRow", "TaskRow", "declared_update", "phase_row", "round_row",
           "study_row", "task_row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRow:
    """One study."""

    name: str
    position: int
    state: StudyState
    config: dict[str, Any]
    frozen: dict[str, Any] | None
    numerics: dict[str, Any] | None
    baseline: dict[str, Any] | None
    queued_unix: float
    started_unix: float | None
    ended_unix: float | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow:
    """One round of a study."""

    study: str
    number: int
    state: RoundState
    phase: int
    phases: tuple[dict[str, str], ...]
    sample: tuple[str, ...]
    opened_unix: float
    closed_unix: float | None
    start_digest: str
    state_digest: str
    metrics: dict[str, float]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRow:
    """One phase of a round."""

    study: str
    round: int
    number: int
    name: str
    quorum: int
    opened_unix: float
    deadline_unix: float
    limit_unix: float
    closed_unix: float | None
    expects: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """What one silo was asked, and its answer."""

    task_id: str
    study: str
    round: int
    phase: int
    silo: str
    state: TaskState
    spec: dict[str, Any]
    opened_unix: float
    given_unix: float | None
    closed_unix: float | None
    update_id: str | None
    reason: str
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredUpdate:
    """An update that a silo has announced; complete when `accepted_unix` is set."""

    update_id: str
    task_id: str
    digest: str
    size_bytes: int
    groups: dict[str, int]
    example_count: int
    metrics: dict[str, float]
    training_seconds: float
    declared_unix: float
    accepted_unix: float | None
    folded: bool


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def study_row(row: sqlite3.Row) -> StudyRow:
    """A row of table study."""
    return StudyRow(name=row["name"], position=row["position"], state=StudyState(row["state"]),
                    config=_json(row["config_json"]), frozen=_json(row["frozen_json"]),
                    numerics=_json(row["numerics_json"]), baseline=_json(row["baseline_json"]),
                    queued_unix=row["queued_unix"], started_unix=row["started_unix"], ended_unix=row["ended_unix"],
                    reason=row["reason"])


def round_row(row: sqlite3.Row) -> RoundRow:
    """A row of table round."""
    return RoundRow(study=row["study"], number=row["number"], state=RoundState(row["state"]), phase=row["phase"],
                    phases=tuple(_json(row["phases_json"])), sample=tuple(_json(row["sample_json"])),
                    opened_unix=row["opened_unix"], closed_unix=row["closed_unix"], start_digest=row["start_digest"],
                    state_digest=row["state_digest"], metrics=_json(row["metrics_json"]), reason=row["reason"])


def phase_row(row: sqlite3.Row) -> PhaseRow:
    """A row of table phase."""
    return PhaseRow(study=row["study"], round=row["round"], number=row["number"], name=row["name"],
                    quorum=row["quorum"], opened_unix=row["opened_unix"], deadline_unix=row["deadline_unix"],
                    limit_unix=row["limit_unix"], closed_unix=row["closed_unix"], expects=_json(row["expects_json"]))


def task_row(row: sqlite3.Row) -> TaskRow:
    """A row of table task."""
    return TaskRow(task_id=row["task_id"], study=row["study"], round=row["round"], phase=row["phase"],
                   silo=row["silo"], state=TaskState(row["state"]), spec=_json(row["spec_json"]),
                   opened_unix=row["opened_unix"], given_unix=row["given_unix"], closed_unix=row["closed_unix"],
                   update_id=row["update_id"], reason=row["reason"], metrics=_json(row["metrics_json"]))


def declared_update(row: sqlite3.Row) -> DeclaredUpdate:
    """A row of table declared_update."""
    return DeclaredUpdate(update_id=row["update_id"], task_id=row["task_id"], digest=row["digest"],
                          size_bytes=row["size_bytes"], groups=_json(row["groups_json"]),
                          example_count=row["example_count"], metrics=_json(row["metrics_json"]),
                          training_seconds=row["training_seconds"], declared_unix=row["declared_unix"],
                          accepted_unix=row["accepted_unix"], folded=bool(row["folded"]))
