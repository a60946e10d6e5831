"""Studies of one federation side by side: their curves over rounds, bytes and time, what each has come to, and in which
settings they differ.

Tests: tests/coordinator/monitoring/results/test_comparison.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semisilo.common.config import canonical_json
from semisilo.common.errors import UsageError
from semisilo.common.measures.gain import gain_interval_text, gain_text, interval_of
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.study_measure import StudyMeasure, common_measure
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.ledger.tasks import first_update
from semisilo.coordinator.monitoring.results.study_numbers import (
    method_name,
    planned_rounds,
    scenario_name,
    score_on_test,
    seconds_since_start,
)
from semisilo.coordinator.monitoring.traffic import RoundCosts, StudyCosts
from semisilo.coordinator.studies.model_choice import choice_of
from semisilo.coordinator.studies.participation import participation_of
from semisilo.coordinator.studies.shown_model import shown_model

__all__ = ["MOST_COMPARED", "ComparedPoint", "ComparedStudy", "Comparison", "Difference", "compare_studies"]

MOST_COMPARED = 8
_MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPoint:
    """One committed round."""

    round: int
    score: float
    interval: Interval | None
    wire_bytes: int
    """Both ways, up to and with this round."""
    seconds: float
    """From the start of the study to the end of this round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStudy:
    """One study and its end so far."""

    name: str
    state: str
    method: str
    scenario: str
    participation: str
    rounds_completed: int
    rounds_planned: int
    score: float | None
    """Of the model that `numbers_of` names, in the measure of the comparison, on test images."""
    interval: Interval | None
    labels_alone: float | None
    gain: str
    """What the silos have brought, with its interval; empty where that is not known, and where they have no part in
    what is handed over."""
    numbers_of: str
    """Which model score and gain are of, in words; empty before there is one."""
    no_gain: str
    """Why silos have brought nothing, whatever the numbers are; empty where a gain may be spoken of."""
    handed_over: str
    """Which model, in words; empty before the first commit."""
    test_images: int
    wire_bytes: int
    payload_bytes: int
    seconds: float | None
    points: tuple[ComparedPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One setting in which the studies differ."""

    setting: str
    """"[method] local_epochs"."""
    values: tuple[str, ...]
    """As JSON, in the order of the studies; empty where a study does not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """GET /api/compare."""

    measure: str
    """What all are compared by, as study files name it."""
    title: str
    studies: tuple[ComparedStudy, ...]
    remarks: tuple[str, ...]
    """What keeps them from being like for like."""
    differences: tuple[Difference, ...]


def compare_studies(ledger: Ledger, names: Sequence[str], *, costs: Mapping[str, StudyCosts], now_unix: float
                    ) -> Comparison:
    """Studies side by side, in the order in which they are named.

    Args:
        costs: study -> its bytes.
    Raises: UsageError unless there are 2 to 8 different names; UnknownName.
    """
    if not 2 <= len(names) <= MOST_COMPARED or len(set(names)) < len(names):
        raise UsageError(f"Name 2 to {MOST_COMPARED} different studies to compare.")
    rows = [ledger.study(name) for name in names]
    measures = list(dict.fromkeys(row.study_measure for row in rows))
    measure = common_measure(measures, has_accuracy=all(
        row.frozen is None or row.frozen.task == "single_label" for row in rows))
    studies = tuple(_compared(ledger, row, measure, costs[row.name], now_unix) for row in rows)
    return Comparison(measure=str(measure), title=measure.title, studies=studies,
                      remarks=tuple(_remarks(rows, measures, measure)), differences=_differences(rows))


def _compared(ledger: Ledger, row: StudyRow, measure: StudyMeasure, costs: StudyCosts, now: float) -> ComparedStudy:
    heads = round_heads(ledger, row.name)
    first = first_update(ledger, row.name)
    choice = choice_of(row, heads, first_update=first)
    shown = shown_model(row, heads, choice, first_update=first)
    traffic = costs.traffic(dense_bytes=row.dense_bytes)
    gain = shown.gain(row, measure=measure)
    return ComparedStudy(
        name=row.name, state=str(row.state), method=method_name(row), scenario=scenario_name(row),
        participation=participation_of(ledger, row).text,
        rounds_completed=sum(each.state is RoundState.COMPLETED and each.number > 0 for each in heads),
        rounds_planned=planned_rounds(row), score=score_on_test(shown.metrics, measure),
        interval=_interval(row, measure, shown.metrics),
        labels_alone=None if row.baseline is None else score_on_test(row.baseline.metrics, measure),
        gain="" if gain is None else ", ".join(filter(None, (gain_text(gain), gain_interval_text(gain)))),
        numbers_of=shown.words, no_gain=shown.no_gain, handed_over=choice.text,
        test_images=0 if row.frozen is None else row.frozen.num_test,
        wire_bytes=costs.wire(), payload_bytes=traffic.payload_down + traffic.payload_up,
        seconds=seconds_since_start(row, now), points=_points(row, measure, heads, costs))


def _interval(row: StudyRow, measure: StudyMeasure, metrics: Mapping[str, float]) -> Interval | None:
    return None if row.frozen is None else interval_of(measure, classes=row.classes, images=row.frozen.test_counts,
                                                       metrics=metrics)


def _points(row: StudyRow, measure: StudyMeasure, heads: Sequence[RoundHead], costs: StudyCosts
            ) -> tuple[ComparedPoint, ...]:
    """Of very many rounds an even choice, the last one always among them."""
    found, spent = [], 0
    begin = row.started_unix or (heads[0].opened_unix if heads else 0.0)
    for head in heads:
        spent += costs.rounds.get(head.number, RoundCosts()).wire
        score = score_on_test(head.metrics, measure)
        if head.state is RoundState.COMPLETED and score is not None and head.closed_unix is not None:
            found.append(ComparedPoint(round=head.number, score=score, interval=_interval(row, measure, head.metrics),
                                       wire_bytes=spent, seconds=max(0.0, head.closed_unix - begin)))
    step = -(-len(found) // _MOST_POINTS) or 1
    return tuple(found[::-1][::step][::-1])


def _remarks(rows: Sequence[StudyRow], measures: Sequence[StudyMeasure], measure: StudyMeasure) -> list[str]:
    found = []
    if len(measures) > 1:
        found.append("Their own measures differ (" + ", ".join(each.title for each in measures)
                     + f"), so they are compared by {measure.title}.")
    if len({(row.frozen.num_test, row.frozen.test_images, row.frozen.test_without) for row in rows
            if row.frozen is not None}) > 1:
        found.append("They are measured on different test images: their numbers are not like for like.")
    if len({row.classes for row in rows if row.frozen is not None}) > 1:
        found.append("Their classes differ.")
    return found


def _differences(rows: Sequence[StudyRow]) -> tuple[Difference, ...]:
    tables = [_settings(row) for row in rows]
    keys = list(dict.fromkeys(key for each in tables for key in each))
    order = list(dict.fromkeys(key.partition("]")[0] for key in keys))
    keys.sort(key=lambda key: order.index(key.partition("]")[0]))  # what only a later study has stands with its table
    return tuple(Difference(setting=key, values=tuple(each.get(key, "") for each in tables)) for key in keys
                 if len({each.get(key, "") for each in tables}) > 1)


def _settings(row: StudyRow) -> dict[str, str]:
    found: dict[str, str] = {}
    for table, values in row.config.items():
        if isinstance(values, Mapping):
            own = values.get("settings", {}) if table == "method" else {}
            flat = {**values, **own}
            if table == "method":
                flat.pop("settings", None)
            found |= {f"[{table}] {key}": canonical_json(value) for key, value in flat.items()}
    return found
