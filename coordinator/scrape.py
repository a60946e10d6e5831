"""What a scrape of the coordinator reads from the ledger: few rows, whatever the length of the study.

Sums over bytes come from the totals that the ledger keeps, counts of tasks from an index, and what an ended study came
to is remembered. So a scrape takes milliseconds with 200 silos after 500 rounds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from common.errors import by_code
from coordinator.ledger import Ledger
from coordinator.states import ENDED_STUDY

__all__ = ["NOT_ACCEPTED", "OTHER_CODE", "EncodedBytes", "SiloReading", "StudyReading", "StudyScrapes", "open_phase",
           "read_silos", "spent_bytes"]

OTHER_CODE = "OTHER"
"""For refusals with a code that this version does not know: what a silo writes must not become a new series."""
NOT_ACCEPTED = "NOT_ACCEPTED"
"""For updates that the coordinator itself has refused."""
_SHOWN_STUDIES = 20


@dataclass(frozen=True, slots=True)
class EncodedBytes:
    """What one encoding carried one way."""

    bytes: int
    dense_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyReading:
    """One study."""

    name: str
    state: str
    planned_rounds: int
    last_round: int | None
    """The round that was opened last."""
    round_opened_unix: float | None
    """When that was; None when it is over."""
    accuracy: float | None
    loss: float | None
    labelled_only: float | None
    rounds: dict[str, int] = field(default_factory=dict)
    """State -> rounds after round 0."""
    finished_rounds: int = 0
    finished_seconds: float = 0.0
    last_seconds: float | None = None
    """Of the last round that is over."""
    tasks: dict[str, int] = field(default_factory=dict)
    """State -> tasks."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Error code -> tasks."""
    encoded: dict[tuple[str, str], EncodedBytes] = field(default_factory=dict)
    """(direction, encoding) -> bytes."""
    label_ratio: dict[str, float] = field(default_factory=dict)
    """Silo -> share of its images that got a pseudo-label, in the last round in which it said so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloReading:
    """One silo that is a member."""

    name: str
    joined: bool
    seen_unix: float | None
    labelled_count: int
    unlabelled_count: int
    certificate_expiry_unix: float | None
    is_away: bool
    """By its own policy."""


class StudyScrapes:
    """Reads studies; remembers those that have ended."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[tuple[Any, ...], StudyReading]] = {}

    def read(self, ledger: Ledger) -> list[StudyReading]:
        """Studies that have not ended, and the last twenty."""
        rows = ledger.query(
            "SELECT name, position, state, config_json, baseline_json, ended_unix FROM study"
            " WHERE state NOT IN (?, ?, ?) OR position > (SELECT coalesce(max(position), 0) FROM study) - ?"
            " ORDER BY position", *ENDED_STUDY, _SHOWN_STUDIES)
        readings, kept = [], {}
        for row in rows:
            key = (row["state"], row["ended_unix"])
            known = self._ended.get(row["name"])
            reading = known[1] if known is not None and known[0] == key else _read_study(ledger, row)
            if row["state"] in ENDED_STUDY:
                kept[row["name"]] = key, reading
            readings.append(reading)
        self._ended = kept
        return readings


def _read_study(ledger: Ledger, row: Any) -> StudyReading:
    name = row["name"]
    rounds = ledger.query("SELECT state, count(*) AS n, coalesce(sum(closed_unix - opened_unix), 0) AS seconds"
                          " FROM round WHERE study = ? AND number > 0 GROUP BY state", name)
    last = ledger.query("SELECT number, opened_unix, closed_unix FROM round WHERE study = ?"
                        " ORDER BY number DESC LIMIT 1", name)
    over = ledger.query("SELECT closed_unix - opened_unix AS seconds FROM round WHERE study = ? AND number > 0 AND"
                        " closed_unix IS NOT NULL ORDER BY number DESC LIMIT 1", name)
    committed = ledger.query("SELECT number, metrics_json FROM round WHERE study = ? AND state = 'completed'"
                             " ORDER BY number DESC LIMIT 1", name)
    metrics = json.loads(committed[0]["metrics_json"]) if committed else {}
    baseline = json.loads(row["baseline_json"]) if row["baseline_json"] else {}
    finished = [entry for entry in rounds if entry["state"] in ("completed", "failed", "cancelled")]
    return StudyReading(
        name=name, state=row["state"],
        planned_rounds=int(json.loads(row["config_json"]).get("study", {}).get("rounds", 0)),
        last_round=last[0]["number"] if last else None,
        round_opened_unix=last[0]["opened_unix"] if last and last[0]["closed_unix"] is None else None,
        accuracy=_number(metrics.get("accuracy")), loss=_number(metrics.get("loss")),
        labelled_only=_number(baseline.get("metrics", {}).get("accuracy")),
        rounds={entry["state"]: entry["n"] for entry in rounds},
        finished_rounds=sum(entry["n"] for entry in finished),
        finished_seconds=sum(max(0.0, entry["seconds"]) for entry in finished),
        last_seconds=max(0.0, over[0]["seconds"]) if over else None,
        tasks={entry["state"]: entry["n"] for entry in ledger.query(
            "SELECT state, count(*) AS n FROM task WHERE study = ? GROUP BY state", name)},
        refusals=_refusals(ledger, name),
        encoded={(entry["direction"], entry["encoding"]): EncodedBytes(entry["bytes"], entry["dense"])
                 for entry in ledger.query("SELECT direction, encoding, sum(bytes) AS bytes, sum(dense_bytes) AS dense"
                                           " FROM encoded WHERE study = ? GROUP BY direction, encoding", name)},
        label_ratio=_label_ratios(ledger, name, last[0]["number"] if last else 0))


def _refusals(ledger: Ledger, study: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    silos = [row["silo"] for row in ledger.query("SELECT DISTINCT silo FROM task WHERE study = ?", study)]
    for silo in silos:  # the index has them by study, silo and state
        for row in ledger.query("SELECT substr(reason, 1, 80) AS reason FROM task WHERE study = ? AND silo = ?"
                                " AND state = 'refused'", study, silo):
            code = row["reason"].partition(":")[0]
            counts[NOT_ACCEPTED if code == "not accepted" else code if by_code(code).code == code else OTHER_CODE] += 1
    return dict(counts)


def _label_ratios(ledger: Ledger, study: str, last: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in ledger.query("SELECT silo, metrics_json FROM task WHERE study = ? AND round BETWEEN ? AND ?"
                            " ORDER BY round, phase", study, max(1, last - 1), last):
        ratio = _number(json.loads(row["metrics_json"]).get("label_ratio"))
        if ratio is not None:
            found[row["silo"]] = ratio
    return found


def read_silos(ledger: Ledger, *, now_unix: float) -> tuple[list[SiloReading], int, int]:
    """(members, how many are revoked, how many have left)."""
    expiry = {row["silo"]: row["unix"] for row in ledger.query(
        "SELECT silo, max(not_after_unix) AS unix FROM certificate WHERE revoked_unix IS NULL GROUP BY silo")}
    members, revoked, left = [], 0, 0
    for row in ledger.query("SELECT * FROM silo ORDER BY name"):
        if row["revoked_unix"] is not None:
            revoked += 1
        elif row["left_unix"] is not None:
            left += 1
        else:
            members.append(SiloReading(
                name=row["name"], joined=row["joined_unix"] is not None, seen_unix=row["seen_unix"],
                labelled_count=row["labelled_count"], unlabelled_count=row["unlabelled_count"],
                certificate_expiry_unix=expiry.get(row["name"]),
                is_away=bool(row["away_reason"]) and now_unix < row["away_until_unix"]))
    return members, revoked, left


def open_phase(ledger: Ledger, study: str) -> tuple[str, float, dict[str, int]] | None:
    """(name, deadline in Unix seconds, state -> tasks) of the phase in which silos work; None when there is none."""
    rows = ledger.query("SELECT phase.* FROM phase JOIN round ON round.study = phase.study"
                        " AND round.number = phase.round AND round.phase = phase.number WHERE phase.study = ?"
                        " AND phase.closed_unix IS NULL AND round.closed_unix IS NULL"
                        " ORDER BY phase.round DESC LIMIT 1", study)
    if not rows:
        return None
    states = ledger.task_states(study, rows[0]["round"], rows[0]["number"])
    return rows[0]["name"], rows[0]["deadline_unix"], dict(Counter(str(state) for state in states.values()))


def spent_bytes(ledger: Ledger) -> dict[tuple[str, str, str], int]:
    """(silo or "", direction, kind) -> bytes, of all studies."""
    rows = ledger.query("SELECT silo, direction, kind, sum(bytes) AS bytes FROM cost_total"
                        " GROUP BY silo, direction, kind")
    return {(row["silo"], row["direction"], row["kind"]): row["bytes"] for row in rows}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
