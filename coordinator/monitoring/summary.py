"""What became of a study, read from the ledger: the numbers behind the display, `status` and the report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from semisilo.common.errors import StorageDamaged
from semisilo.coordinator.ledger.costs import Cost, costs_of
from semisilo.coordinator.ledger.events import event_kinds
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import RoundHead, RoundRow, StudyRow, cut_short
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState, TaskState
from semisilo.coordinator.ledger.tasks import TaskAnswer, answers_of_study
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.traffic import Traffic, costs_from_rows

if TYPE_CHECKING:
    from semisilo.coordinator.ledger.encodings import EncodingUse

__all__ = ["AuditSummary", "RoundSummary", "StudySummary", "accuracy_in", "audit",
           "federated_accuracy", "gain_of", "label_ratio_in", "label_ratios", "labelled_only_accuracy",
           "labels_alone_note", "last_committed", "method_name", "metric_in", "planned_rounds", "scenario_name",
           "seconds_left", "seconds_since_start", "summarise"]

_ETA_ROUNDS = 5


class _Numbered(Protocol):
    """A round, in whatever shape."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> RoundState: ...


AnyRound = TypeVar("AnyRound", bound=_Numbered)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSummary:
    """One round."""

    number: int
    state: RoundState
    accuracy: float | None
    """On the coordinator's test images after the round; None when not measured."""
    metrics: Mapping[str, float]
    outcomes: Mapping[str, TaskState]
    """Silo -> its answer; over several phases the one that stands out most (see
    `semisilo.coordinator.monitoring.outcomes`)."""
    reasons: Mapping[str, str]
    """Silo -> why it abstained, refused or did not answer, where that is known."""
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
    encoding_totals: tuple[EncodingUse, ...] = ()
    """All encodings together: down, then up; empty where none was counted."""

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
        last = last_committed(self.rounds)
        return None if last is None else last.accuracy

    @property
    def updates(self) -> int:
        """Updates of silos that the committed rounds have taken in."""
        return sum(entry.updates for entry in self.rounds if entry.state is RoundState.COMPLETED)

    @property
    def gain(self) -> float | None:
        """Federated minus labelled-only accuracy; None also where no update was accepted, for then no silo has part in
        it."""
        return gain_of(self.accuracy, self.labelled_only, has_updates=self.updates > 0)

    @property
    def silos(self) -> tuple[str, ...]:
        """Everyone who was asked at least once, in byte order."""
        return tuple(sorted({silo for entry in self.rounds for silo in entry.outcomes}, key=str.encode))


def summarise(ledger: Ledger, study: str, *, now_unix: float | None = None) -> StudySummary:
    """Reads everything the report needs.

    Raises: UnknownName when the ledger has no such study.
    """
    # Late: it needs numpy, and `coordinator status` does not.
    from semisilo.coordinator.ledger.encodings import encoding_totals, encodings_of

    row = ledger.study(study)
    encodings = tuple(encodings_of(ledger, study))
    dense, costs = row.dense_bytes, tuple(costs_of(ledger, study))
    book = costs_from_rows(costs)
    answers: dict[int, list[TaskAnswer]] = {}
    for answer in answers_of_study(ledger, study):
        answers.setdefault(answer.round, []).append(answer)
    rounds = tuple(_summarise_round(entry, answers.get(entry.number, ()),
                                    book.traffic(dense_bytes=dense, round=entry.number))
                   for entry in ledger.rounds(study))
    return StudySummary(row=row, rounds=rounds, costs=costs, traffic=book.traffic(dense_bytes=dense),
                        labelled_only=labelled_only_accuracy(row),
                        seconds=seconds_since_start(row, time.time() if now_unix is None else now_unix),
                        encodings=encodings, encoding_totals=encoding_totals(encodings) if encodings else ())


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
    return AuditSummary(events=events, problem=problem, kinds=event_kinds(ledger, study))


def labelled_only_accuracy(row: StudyRow) -> float | None:
    """The line to beat; None when it was not trained or there is no test set."""
    return None if row.baseline is None else accuracy_in(row.baseline.metrics)


def labels_alone_note(row: StudyRow, *, live: str = "") -> str:
    """What is to be said of the line of labels alone besides its accuracy: how far it is, or what cut it short.

    Args:
        live: how far the running coordinator says that it is; empty when it says nothing.
    Returns: empty when nothing is to be said: it was not asked for, its study has not begun, or it is as asked for.
    """
    if row.baseline is not None:
        return cut_short(row.baseline)
    wanted = row.config.get("study", {}).get("labelled_only_baseline", True)
    if row.frozen is None or not wanted or row.frozen.num_labelled == 0 or row.frozen.num_test == 0:
        return ""
    return "not trained" if row.state in ENDED_STUDY else live or "in work"


def planned_rounds(row: StudyRow) -> int:
    """How many rounds the study file asks for."""
    return int(row.config.get("study", {}).get("rounds", 0))


def seconds_left(rounds: Iterable[RoundHead], *, planned: int, now_unix: float) -> float | None:
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


def seconds_since_start(row: StudyRow, now_unix: float) -> float | None:
    """From a study's start to its end, or until now; None before the start."""
    if row.started_unix is None:
        return None
    return max(0.0, (row.ended_unix if row.ended_unix is not None else now_unix) - row.started_unix)


def last_committed(rounds: Iterable[AnyRound]) -> AnyRound | None:
    """The last committed round with silos among rounds in order; None before the first."""
    done = [entry for entry in rounds if entry.state is RoundState.COMPLETED and entry.number > 0]
    return done[-1] if done else None


def federated_accuracy(rounds: Iterable[RoundHead]) -> float | None:
    """The accuracy of a study: of the model of the last committed round with silos, from 0 to 1.

    None before the first, since what the coordinator trains alone in round 0 is the line to beat; and without test
    images.
    """
    last = last_committed(rounds)
    return None if last is None else accuracy_in(last.metrics)


def gain_of(accuracy: float | None, labelled_only: float | None, *, has_updates: bool) -> float | None:
    """Federated minus labelled-only accuracy; None also where no update was accepted: then no silo has part in it."""
    if accuracy is None or labelled_only is None or not has_updates:
        return None
    return accuracy - labelled_only


def metric_in(metrics: Mapping[str, float], name: str) -> float | None:
    """One number of a round or a silo; None when it is not there or is not finite."""
    value = metrics.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def accuracy_in(metrics: Mapping[str, float]) -> float | None:
    """Test accuracy, 0 to 1, among the metrics of a round; None when it was not measured."""
    return metric_in(metrics, "accuracy")


def label_ratio_in(metrics: Mapping[str, float]) -> float | None:
    """Share of a silo's images that got a pseudo-label, 0 to 1, among its metrics; None when it did not say so."""
    return metric_in(metrics, "label_ratio")


def label_ratios(ledger: Ledger, study: str, last_round: int) -> dict[str, float]:
    """Silo -> its label ratio in the last round or the one before, so that it keeps it while it works on the next."""
    found: dict[str, float] = {}
    for answer in answers_of_study(ledger, study, first=max(1, last_round - 1), last=last_round):
        if (ratio := label_ratio_in(answer.metrics)) is not None:
            found[answer.silo] = ratio
    return found


def method_name(row: StudyRow) -> str:
    """The method of a study; "?" for one that was refused before its file could be read."""
    return str(row.config.get("method", {}).get("name", "?"))


def scenario_name(row: StudyRow) -> str:
    """Where the labels are, as the study file says it; empty when it does not."""
    method = row.config.get("method", {})
    return str({**method, **method.get("settings", {})}.get("scenario", ""))


def _summarise_round(row: RoundRow, answers: Sequence[TaskAnswer], traffic: Traffic) -> RoundSummary:
    ratios: dict[str, float] = {}
    reasons: dict[str, str] = {}
    metrics: dict[str, dict[str, float]] = {}
    outcomes = outcomes_of((answer.silo, answer.state) for answer in answers)
    for answer in answers:
        metrics.setdefault(answer.silo, {}).update(answer.metrics)
        if (ratio := label_ratio_in(answer.metrics)) is not None:
            ratios[answer.silo] = ratio
        if answer.reason and answer.state is outcomes[answer.silo]:
            reasons[answer.silo] = answer.reason
    return RoundSummary(number=row.number, state=row.state, accuracy=accuracy_in(row.metrics), metrics=row.metrics,
                        outcomes=outcomes, reasons=reasons, label_ratio=ratios, silo_metrics=metrics, traffic=traffic,
                        opened_unix=row.opened_unix,
                        seconds=None if row.closed_unix is None else max(0.0, row.closed_unix - row.opened_unix),
                        reason=row.reason, updates=sum(answer.state is TaskState.UPDATED for answer in answers))
