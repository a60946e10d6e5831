"""What a scrape of the coordinator reads from the ledger: few rows, whatever the length of the study.

Sums over bytes come from the totals that the ledger keeps, counts of tasks from an index, and what an ended study came
to is remembered. So a scrape takes milliseconds with 200 silos after 500 rounds.

Tests: tests/coordinator/monitoring/test_prometheus.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from semisilo.common.errors import by_code
from semisilo.coordinator.ledger.encodings import EncodingUse, encodings_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, count_notices
from semisilo.coordinator.ledger.oversight.rollback import past_totals
from semisilo.coordinator.ledger.progress import RoundCounts, StudyProgress, last_studies, study_progress
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import refusal_reasons, task_counts
from semisilo.coordinator.monitoring.results.study_numbers import (
    accuracy_in,
    labelled_only_accuracy,
    labels_alone_test_score,
    metric_in,
    planned_rounds,
    score_on_test,
)
from semisilo.coordinator.monitoring.summary import label_ratios

__all__ = ["NOT_ACCEPTED", "OTHER_CODE", "StudyReading", "StudyScrapes"]

OTHER_CODE = "OTHER"
"""For refusals with a code that this version does not know: what a silo writes must not become a new series."""
NOT_ACCEPTED = "NOT_ACCEPTED"
"""For updates that the coordinator itself has refused."""
_SHOWN_STUDIES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyReading:
    """One study."""

    name: str
    state: StudyState
    planned_rounds: int
    progress: StudyProgress
    """Where its rounds stand."""
    measure: str
    """What the study is compared by, as its file names it."""
    test_score: float | None
    """That measure after the last committed round, on test images."""
    labels_alone_test_score: float | None
    accuracy: float | None
    loss: float | None
    labelled_only: float | None
    rounds: dict[RoundState, RoundCounts] = field(default_factory=dict)
    """State -> rounds with silos, those that the study has gone back behind as well; so are tasks, refusals and
    notices, for they are counters."""
    tasks: dict[TaskState, int] = field(default_factory=dict)
    """State -> tasks."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Error code -> tasks."""
    notices: dict[NoticeKind, int] = field(default_factory=dict)
    """Kind -> what an operator should hear of silos."""
    encodings: tuple[EncodingUse, ...] = ()
    """What each encoding carried."""
    label_ratio: dict[str, float] = field(default_factory=dict)
    """Silo -> share of its images that got a pseudo-label, in the last round in which it said so."""


class StudyScrapes:
    """Reads studies; remembers those that have ended."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[StudyState, float | None, StudyReading]] = {}
        """Study -> how and when it ended, and what it came to."""

    def read(self, ledger: Ledger) -> list[StudyReading]:
        """Studies that have not ended, and the last twenty."""
        readings, kept = [], {}
        for row in last_studies(ledger, ended=_SHOWN_STUDIES):
            known = self._ended.get(row.name)
            reading = known[2] if known is not None and known[:2] == (row.state, row.ended_unix) \
                else _read_study(ledger, row)
            if row.state in ENDED_STUDY:
                kept[row.name] = row.state, row.ended_unix, reading
            readings.append(reading)
        self._ended = kept
        return readings


def _read_study(ledger: Ledger, row: StudyRow) -> StudyReading:
    progress, past = study_progress(ledger, row.name), past_totals(ledger, row.name)
    return StudyReading(
        name=row.name, state=row.state, planned_rounds=planned_rounds(row), progress=progress,
        measure=str(row.study_measure), test_score=score_on_test(progress.metrics, row.study_measure),
        labels_alone_test_score=labels_alone_test_score(row), accuracy=accuracy_in(progress.metrics),
        loss=metric_in(progress.metrics, "loss"),
        labelled_only=labelled_only_accuracy(row), rounds=_added(progress.rounds, past.rounds),
        tasks=dict(Counter(task_counts(ledger, row.name)) + Counter(past.answers)),
        refusals=_refusals((*refusal_reasons(ledger, row.name), *past.refusals)),
        notices=count_notices(ledger, row.name),
        encodings=tuple(encodings_of(ledger, row.name)),
        label_ratio=label_ratios(ledger, row.name, progress.last_round or 0))


def _added(rounds: Iterable[RoundCounts], past: Iterable[RoundCounts]) -> dict[RoundState, RoundCounts]:
    """By state. What is over is counted for good: a study that goes back must not make counters fall."""
    found: dict[RoundState, RoundCounts] = {}
    for entry in (*rounds, *past):
        before = found.get(entry.state, RoundCounts(state=entry.state, count=0, seconds=0.0))
        found[entry.state] = replace(before, count=before.count + entry.count, seconds=before.seconds + entry.seconds)
    return found


def _refusals(reasons: Iterable[str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for reason in reasons:
        code = reason.partition(":")[0]
        counts[NOT_ACCEPTED if code == "not accepted" else code if by_code(code).code == code else OTHER_CODE] += 1
    return dict(counts)
