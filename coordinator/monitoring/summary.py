"""What became of a study, read from the ledger: the numbers behind the display, `status` and the report."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.errors import StorageDamaged
from coordinator.costs import Cost, Direction, Kind, costs_of
from coordinator.ledger import Ledger
from coordinator.rows import RoundRow, StudyRow
from coordinator.states import RoundState, TaskState

if TYPE_CHECKING:
    from coordinator.encodings import EncodingUse

__all__ = ["AuditSummary", "RoundSummary", "StudySummary", "Traffic", "accuracy_in", "audit", "labelled_only_accuracy",
           "outcomes_of", "planned_rounds", "seconds_left", "summarise", "traffic_of"]

# The answer of a silo to a round of several phases is the first of these that any of its tasks has.
_NOTABLE = (TaskState.EXPIRED, TaskState.CANCELLED, TaskState.REFUSED, TaskState.ABSTAINED, TaskState.OPEN,
            TaskState.UPDATED)
_ETA_ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes of one round or of a whole study, each way, and what dense transfers would have cost."""

    payload_down: int = 0
    payload_up: int = 0
    message_down: int = 0
    message_up: int = 0
    wire_down: int = 0
    wire_up: int = 0
    overhead_down: int = 0
    """Part of `wire_down` that belongs to no silo."""
    overhead_up: int = 0
    downloads: int = 0
    """Silos that received a payload, counted once per round."""
    uploads: int = 0
    """Silos whose update was accepted, counted once per round."""
    dense_bytes: int = 0
    """Bytes of one dense model: 4 x its parameters; 0 when unknown."""
    estimated: bool = False
    """Whether wire bytes follow from the messages, for want of the kernel's counters."""

    @property
    def payload(self) -> int:
        """Payload bytes, both ways."""
        return self.payload_down + self.payload_up

    @property
    def wire(self) -> int:
        """Wire bytes, both ways."""
        return self.wire_down + self.wire_up

    @property
    def overhead(self) -> int:
        """Wire bytes that belong to no silo, both ways."""
        return self.overhead_down + self.overhead_up

    @property
    def dense_total(self) -> int:
        """What the same transfers would have cost as dense tensors: one model per download and per upload."""
        return self.dense_bytes * (self.downloads + self.uploads)

    @property
    def share_down(self) -> float | None:
        """Payload bytes per download as a share of a dense model; None without downloads or model."""
        return _ratio(self.payload_down, self.dense_bytes * self.downloads)

    @property
    def share_up(self) -> float | None:
        """Payload bytes per accepted update as a share of a dense model."""
        return _ratio(self.payload_up, self.dense_bytes * self.uploads)

    @property
    def share(self) -> float | None:
        """Wire bytes as a share of the dense total."""
        return _ratio(self.wire, self.dense_total)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSummary:
    """One round."""

    number: int
    state: RoundState
    accuracy: float | None
    """On the coordinator's test images after the round; None when not measured."""
    metrics: Mapping[str, float]
    outcomes: Mapping[str, TaskState]
    """Silo -> its answer; over several phases the one that stands out most (late before refused before abstained)."""
    reasons: Mapping[str, str]
    """Silo -> why it abstained, refused or was late, where that is known."""
    label_ratio: Mapping[str, float]
    """Silo -> share of its images that got a pseudo-label, 0 to 1."""
    silo_metrics: Mapping[str, Mapping[str, float]]
    """Silo -> all numbers that it sent, of all phases."""
    traffic: Traffic
    opened_unix: float
    seconds: float | None
    """From opening to commit; None while it lasts."""
    reason: str
    updates: int = 0
    """Updates that were accepted, in all phases."""

    def count(self, state: TaskState) -> int:
        """How many silos gave this answer."""
        return sum(outcome is state for outcome in self.outcomes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySummary:
    """A whole study as the report shows it."""

    row: StudyRow
    rounds: tuple[RoundSummary, ...]
    costs: tuple[Cost, ...]
    traffic: Traffic
    labelled_only: float | None
    """Test accuracy of the same network trained on the coordinator's labels alone."""
    seconds: float | None
    """From start to end, or until now; None before the start."""
    encodings: tuple[EncodingUse, ...] = ()
    """What each encoding carried; empty for a study from before that was counted."""

    @property
    def planned_rounds(self) -> int:
        """How many rounds the study file asks for."""
        return planned_rounds(self.row)

    @property
    def completed_rounds(self) -> int:
        """Rounds with silos that were committed."""
        return sum(entry.state is RoundState.COMPLETED and entry.number > 0 for entry in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """Of the model of the last committed round with silos; None before the first or without a test set."""
        done = [entry.accuracy for entry in self.rounds if entry.state is RoundState.COMPLETED and entry.number > 0]
        return done[-1] if done else None

    @property
    def updates(self) -> int:
        """Updates of silos that the committed rounds have taken in."""
        return sum(entry.updates for entry in self.rounds if entry.state is RoundState.COMPLETED)

    @property
    def gain(self) -> float | None:
        """Federated minus labelled-only accuracy; None also where no update was accepted, for then no silo has part in
        it."""
        if self.accuracy is None or self.labelled_only is None or not self.updates:
            return None
        return self.accuracy - self.labelled_only

    @property
    def silos(self) -> tuple[str, ...]:
        """Everyone who was asked at least once, in byte order."""
        return tuple(sorted({silo for entry in self.rounds for silo in entry.outcomes}, key=str.encode))


def summarise(ledger: Ledger, study: str, *, now_unix: float | None = None) -> StudySummary:
    """Reads everything the report needs.

    Raises: UnknownName when the ledger has no such study.
    """
    from coordinator.encodings import encodings_of  # late: it needs numpy, and `coordinator status` does not

    row = ledger.study(study)
    dense = _dense_bytes(row)
    costs = tuple(costs_of(ledger, study))
    by_round: dict[int, list[Cost]] = {}
    for cost in costs:
        by_round.setdefault(cost.round, []).append(cost)
    answers = _answers(ledger, study)
    rounds = tuple(_summarise_round(entry, answers.get(entry.number, []),
                                    traffic_of(by_round.get(entry.number, ()), dense_bytes=dense))
                   for entry in ledger.rounds(study))
    end = row.ended_unix if row.ended_unix is not None else (time.time() if now_unix is None else now_unix)
    return StudySummary(row=row, rounds=rounds, costs=costs, traffic=traffic_of(costs, dense_bytes=dense),
                        labelled_only=labelled_only_accuracy(row),
                        seconds=None if row.started_unix is None else max(0.0, end - row.started_unix),
                        encodings=tuple(encodings_of(ledger, study)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSummary:
    """What the check of the event chain found."""

    events: int
    """Events in the whole ledger; 0 when the chain is broken."""
    problem: str
    """Empty when every link of the chain is intact."""
    kinds: tuple[tuple[str, int], ...]
    """Events of one study by kind, most frequent first."""


def audit(ledger: Ledger, study: str) -> AuditSummary:
    """Recomputes the hash chain of all events and counts those of one study."""
    try:
        events, problem = ledger.check_events(), ""
    except StorageDamaged as error:
        events, problem = 0, error.line()
    kinds = ledger.query("SELECT kind, count(*) AS count FROM event WHERE study = ? GROUP BY kind"
                         " ORDER BY count DESC, kind", study)
    return AuditSummary(events=events, problem=problem, kinds=tuple((row["kind"], row["count"]) for row in kinds))


def traffic_of(costs: Iterable[Cost], *, dense_bytes: int = 0) -> Traffic:
    """Adds costs up. A transfer is a (round, silo) with payload bytes in that direction, however many streams it took:
    a resumed download counts once, and its repeated bytes show as a share above what one needs."""
    totals: Counter[tuple[Kind, Direction]] = Counter()
    overhead: dict[Direction, int] = {"down": 0, "up": 0}
    estimated = False
    transfers: dict[Direction, set[tuple[int, str]]] = {"down": set(), "up": set()}
    for cost in costs:
        totals[cost.kind, cost.direction] += cost.bytes
        if cost.kind == "wire":
            overhead[cost.direction] += cost.bytes if not cost.silo else 0
            estimated = estimated or cost.estimated
        if cost.kind == "payload" and cost.bytes:
            transfers[cost.direction].add((cost.round, cost.silo))
    return Traffic(payload_down=totals["payload", "down"], payload_up=totals["payload", "up"],
                   message_down=totals["message", "down"], message_up=totals["message", "up"],
                   wire_down=totals["wire", "down"], wire_up=totals["wire", "up"],
                   overhead_down=overhead["down"], overhead_up=overhead["up"],
                   downloads=len(transfers["down"]), uploads=len(transfers["up"]), dense_bytes=dense_bytes,
                   estimated=estimated)


def outcomes_of(tasks: Iterable[tuple[str, TaskState]]) -> dict[str, TaskState]:
    """Silo -> answer, from the (silo, state) of its tasks in all phases of a round."""
    result: dict[str, TaskState] = {}
    for silo, state in tasks:
        before = result.get(silo)
        if before is None or _NOTABLE.index(state) < _NOTABLE.index(before):
            result[silo] = state
    return result


def labelled_only_accuracy(row: StudyRow) -> float | None:
    """The line to beat; None when it was not trained or there is no test set."""
    return accuracy_in((row.baseline or {}).get("metrics", {}))


def planned_rounds(row: StudyRow) -> int:
    """How many rounds the study file asks for."""
    return int(row.config.get("study", {}).get("rounds", 0))


def seconds_left(rounds: Iterable[RoundRow], *, planned: int, now_unix: float) -> float | None:
    """Estimate from the mean length of the last few finished rounds; None before the first."""
    entries = [entry for entry in rounds if entry.number > 0]
    finished = [entry.closed_unix - entry.opened_unix for entry in entries if entry.closed_unix is not None]
    if not finished:
        return None
    recent = finished[-_ETA_ROUNDS:]
    mean = sum(recent) / len(recent)
    left = mean * (planned - len(finished))
    current = next((entry for entry in entries if entry.closed_unix is None), None)
    if current is not None:
        left -= min(mean, max(0.0, now_unix - current.opened_unix))
    return max(0.0, left)


def accuracy_in(metrics: Mapping[str, Any]) -> float | None:
    """Test accuracy, 0 to 1, among the metrics of a round; None when it was not measured."""
    value = metrics.get("accuracy")
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _summarise_round(row: RoundRow, answers: list[dict[str, Any]], traffic: Traffic) -> RoundSummary:
    ratios: dict[str, float] = {}
    reasons: dict[str, str] = {}
    metrics: dict[str, dict[str, float]] = {}
    outcomes = outcomes_of((answer["silo"], answer["state"]) for answer in answers)
    for answer in answers:
        metrics.setdefault(answer["silo"], {}).update(answer["metrics"])
        ratio = answer["metrics"].get("label_ratio")
        if isinstance(ratio, (int, float)) and math.isfinite(ratio):
            ratios[answer["silo"]] = float(ratio)
        if answer["reason"] and answer["state"] is outcomes[answer["silo"]]:
            reasons[answer["silo"]] = answer["reason"]
    return RoundSummary(number=row.number, state=row.state, accuracy=accuracy_in(row.metrics), metrics=row.metrics,
                        outcomes=outcomes, reasons=reasons, label_ratio=ratios, silo_metrics=metrics, traffic=traffic,
                        opened_unix=row.opened_unix,
                        seconds=None if row.closed_unix is None else max(0.0, row.closed_unix - row.opened_unix),
                        reason=row.reason, updates=sum(answer["state"] is TaskState.UPDATED for answer in answers))


def _answers(ledger: Ledger, study: str) -> dict[int, list[dict[str, Any]]]:
    """Round -> answers of its tasks, without the long specifications."""
    result: dict[int, list[dict[str, Any]]] = {}
    for row in ledger.query("SELECT round, silo, state, reason, metrics_json FROM task WHERE study = ?"
                            " ORDER BY round, phase, silo", study):
        result.setdefault(row["round"], []).append(
            {"silo": row["silo"], "state": TaskState(row["state"]), "reason": row["reason"],
             "metrics": json.loads(row["metrics_json"])})
    return result


def _dense_bytes(row: StudyRow) -> int:
    return int((row.frozen or {}).get("dense_bytes", 0))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
