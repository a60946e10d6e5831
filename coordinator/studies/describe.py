"""What the current study asks of a silo, and what its last rounds took of it: the answer to `silo check`.

Nothing here is about another silo by name: of others only the median size of an update is told.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from common.config import from_dict, to_dict
from common.data.form import ImageForm
from common.exchange import ModelSettings
from common.uplink import Uplink
from coordinator.costs import Direction, Kind
from coordinator.ledger import Ledger
from coordinator.rows import StudyRow
from coordinator.states import ENDED_STUDY, RoundState, TaskState
from coordinator.study import FrozenStudy, config_from_dict

__all__ = ["OwnRound", "StudyDescription", "describe_study"]

_OWN_ROUNDS = 8
_ROUNDS_LOOKED_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRound:
    """What one round took of the silo that asks. Bytes; "down" is to the silo."""

    number: int
    payload_down: int
    payload_up: int
    wire_down: int
    wire_up: int
    training_seconds: float | None
    """As the silo declared it, over all phases; None when it did not train."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDescription:
    """One study, as a silo should know it before it joins."""

    name: str
    state: str
    round: int
    rounds: int
    method: str
    settings: dict[str, Any]
    model: ModelSettings
    """Without classes until the study has begun."""
    image: ImageForm | None
    """None until the study has begun: mean and deviation are measured then."""
    uplink: Uplink
    dense_bytes: int
    frozen_bytes: int
    """Of the parameters that nobody trains; 0 for none, and until the study has begun."""
    own_rounds: tuple[OwnRound, ...]
    """Oldest first."""
    typical_update_bytes: int
    typical_round_seconds: float | None
    round_timeout_seconds: float


def describe_study(ledger: Ledger, silo: str) -> StudyDescription | None:
    """The study that runs or is next, for one silo; None when there is none that has not ended."""
    row = next((row for row in ledger.studies() if row.state not in ENDED_STUDY), None)
    if row is None:
        return None
    config = config_from_dict(row.config, where=f"study {row.name}")
    frozen: FrozenStudy | None = None if row.frozen is None else _frozen(row)
    last = ledger.last_round(row.name)
    model = config.model if frozen is None else _with_classes(config.model, frozen.classes)
    return StudyDescription(
        name=row.name, state=str(row.state), round=0 if last is None else last.number, rounds=config.study.rounds,
        method=config.method.name, settings=to_dict(config.method.settings), model=model,
        image=None if frozen is None else frozen.image, uplink=config.wire.uplink_form(),
        dense_bytes=0 if frozen is None else frozen.dense_bytes,
        frozen_bytes=0 if frozen is None else 4 * frozen.num_frozen, own_rounds=_own_rounds(ledger, row.name, silo),
        typical_update_bytes=_typical_update(ledger, row.name),
        typical_round_seconds=_typical_round(ledger, row.name, last=0 if last is None else last.number),
        round_timeout_seconds=config.participation.timeout_seconds)


def _own_rounds(ledger: Ledger, study: str, silo: str) -> tuple[OwnRound, ...]:
    """The last rounds in which payloads went to the silo or came from it, of the last ones in which it was asked: that
    a silo was asked is found by an index, while a study has a million costs."""
    numbers = [int(row["round"]) for row in ledger.query(
        "SELECT round FROM (SELECT DISTINCT round FROM task WHERE study = ?1 AND silo = ?2 AND round > 0"
        " ORDER BY round DESC LIMIT ?3) AS asked WHERE EXISTS (SELECT 1 FROM cost WHERE study = ?1 AND"
        " cost.round = asked.round AND kind = 'payload' AND silo = ?2) ORDER BY round DESC LIMIT ?4",
        study, silo, _ROUNDS_LOOKED_AT, _OWN_ROUNDS)]
    found = []
    for number in reversed(numbers):
        sums: dict[tuple[Kind, Direction], int] = {
            (row["kind"], row["direction"]): int(row["total"]) for row in ledger.query(
                "SELECT kind, direction, sum(bytes) AS total FROM cost WHERE study = ? AND silo = ? AND round = ?"
                " GROUP BY kind, direction", study, silo, number)}
        (seconds,), = ledger.query(
            "SELECT sum(training_seconds) FROM declared_update JOIN task USING (task_id) WHERE study = ? AND silo = ?"
            " AND round = ? AND accepted_unix IS NOT NULL", study, silo, number)
        found.append(OwnRound(
            number=number, payload_down=sums.get(("payload", "down"), 0), payload_up=sums.get(("payload", "up"), 0),
            wire_down=sums.get(("wire", "down"), 0), wire_up=sums.get(("wire", "up"), 0), training_seconds=seconds))
    return tuple(found)


def _typical_update(ledger: Ledger, study: str) -> int:
    """Median size of what silos sent in the last committed round in which any did; 0 when none has."""
    sizes = [int(row["total"]) for row in ledger.query(
        "SELECT sum(size_bytes) AS total FROM declared_update JOIN task USING (task_id) WHERE task.study = ? AND"
        " task.state = ? AND round = (SELECT max(task.round) FROM task JOIN round ON round.study = task.study AND"
        " round.number = task.round WHERE task.study = ? AND task.state = ? AND round.state = ?) AND accepted_unix"
        " IS NOT NULL GROUP BY silo",
        study, TaskState.UPDATED, study, TaskState.UPDATED, RoundState.COMPLETED)]
    return round(statistics.median(sizes)) if sizes else 0


def _typical_round(ledger: Ledger, study: str, *, last: int) -> float | None:
    lengths = [entry.closed_unix - entry.opened_unix for entry in ledger.rounds(study, first=last - _OWN_ROUNDS + 1)
               if entry.number > 0 and entry.state is RoundState.COMPLETED and entry.closed_unix is not None]
    return statistics.median(lengths) if lengths else None


def _frozen(row: StudyRow) -> FrozenStudy:
    return from_dict(FrozenStudy, row.frozen, where=f"study {row.name}")


def _with_classes(model: ModelSettings, classes: tuple[str, ...]) -> ModelSettings:
    return replace(model, classes=classes)
