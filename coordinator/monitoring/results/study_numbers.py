"""Numbers of a study, from its row and its rounds alone: how far it is, what its model scores, and what stands beside.

`coordinator status` needs no more, so nothing is imported here that summaries of a study are made with.

Tests: tests/coordinator/monitoring/test_summary.py, tests/coordinator/monitoring/test_study_facts.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from semisilo.common.measures.study_measure import VALIDATION_PREFIX, StudyMeasure
from semisilo.common.text.describe import describe_metric
from semisilo.coordinator.ledger.records import RoundHead, StudyRow, cut_short
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState

__all__ = ["MODEL_METRICS", "MeasureBeside", "accuracy_in", "federated_test_score", "label_ratio_in",
           "labelled_only_accuracy", "labels_alone_note", "labels_alone_test_score", "last_committed", "measure_text",
           "measures_beside", "method_name", "metric_in", "planned_rounds", "scenario_name", "score_on_test",
           "seconds_left", "seconds_since_start", "share_in"]


MODEL_METRICS = ("accuracy", "loss", "balanced_accuracy", "auroc", "calibration_error", "labelled_accuracy",
                 "selection_score", "selection_error", "average_precision", "f1", "exact_match")
"""Numbers of a round that are of its model, whatever the method; there are more by class, as "recall/CLASS"."""
_ETA_ROUNDS = 5
_MEASURES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC",
             "average_precision": "average precision", "f1": "F1", "exact_match": "exact match",
             "calibration_error": "calibration error"}
_SETS = {"": "", VALIDATION_PREFIX: ", validation images",
         "crossfit_": ", cross-validated (shorter trainings, fewer labels)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureBeside:
    """A number of the federated model, and the same of labels alone."""

    name: str
    """As in the metrics of a round."""
    words: str
    """For a person."""
    federated: float | None
    """Of `ShownModel`; None where it was not measured."""
    labels_alone: float | None
    error: float | None = None
    """Standard error of a cross-validated number."""


class _Numbered(Protocol):
    """A round, in whatever shape."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> RoundState: ...


AnyRound = TypeVar("AnyRound", bound=_Numbered)


def labelled_only_accuracy(row: StudyRow) -> float | None:
    """The line to beat; None when it was not trained or there is no test set."""
    return None if row.baseline is None else accuracy_in(row.baseline.metrics)


def labels_alone_test_score(row: StudyRow) -> float | None:
    """The line to beat in the study's measure, on the test images; None when it was not trained or not measured."""
    return None if row.baseline is None else score_on_test(row.baseline.metrics, row.study_measure)


def measures_beside(row: StudyRow, federated: Mapping[str, float], classes: Sequence[str]) -> tuple[MeasureBeside, ...]:
    """All numbers that both models have, or one of them, side by side; () before labels alone are trained.

    Args:
        federated: metrics of the shown model; empty before there is one.
    """
    if row.baseline is None:
        return ()
    alone = row.baseline.metrics
    found = []
    for prefix, where in _SETS.items():
        names = _MEASURES | {f"recall/{each}": f"recall of {each}" for each in classes}
        names |= {f"auroc/{each}": f"AUROC of {each}" for each in classes}
        names |= {f"average_precision/{each}": f"average precision of {each}" for each in classes}
        names |= {f"calibration_error/{each}": f"calibration error of {each}" for each in classes}
        for name, words in names.items():
            key = f"{prefix}{name}"
            if key in alone or (key in federated and prefix != "crossfit_"):
                found.append(MeasureBeside(name=key, words=f"{words}{where}", federated=federated.get(key),
                                           labels_alone=alone.get(key), error=alone.get(f"{key}_error")))
    return tuple(found)


def measure_text(each: MeasureBeside, value: float | None) -> str:
    """One of its numbers for a person: a percentage, an AUROC with three digits, or a dash."""
    if value is None or each.error is None:
        return describe_metric(each.name, value)
    return f"{100 * value:.1f} ± {100 * each.error:.1f} %"


def labels_alone_note(row: StudyRow, *, live: str = "") -> str:
    """What is to be said of the line of labels alone besides its accuracy: how far it is, or what cut it short.

    Args:
        live: how far the running coordinator says that it is; empty when it says nothing.
    Returns: empty when nothing is to be said: it was not asked for, its study has not begun, or it is as asked for.
    """
    if row.baseline is not None:
        return cut_short(row.baseline)
    wanted = row.config.get("study", {}).get("labelled_only_baseline", True)
    if row.frozen is None or not wanted or not row.frozen.may_have_labels_alone:
        return ""
    return "not trained" if row.state in ENDED_STUDY else live or "in work"


def planned_rounds(row: StudyRow) -> int:
    """How many rounds the study file asks for."""
    return int(row.config.get("study", {}).get("rounds", 0))


def seconds_left(rounds: Iterable[RoundHead], *, planned: int, now_unix: float, since_unix: float = 0.0
                 ) -> float | None:
    """Estimate from the median length of the last few finished rounds, since one of them may have waited for a
    coordinator that was stopped; None before the first.

    Args:
        since_unix: lengths of rounds that were opened earlier do not count.
    """
    entries = [entry for entry in rounds if entry.number > 0]
    finished = [entry for entry in entries if entry.closed_unix is not None]
    lengths = [entry.closed_unix - entry.opened_unix for entry in finished
               if entry.closed_unix is not None and entry.opened_unix >= since_unix]
    if not lengths:
        return None
    typical = statistics.median(lengths[-_ETA_ROUNDS:])
    left = typical * (planned - len(finished))
    current = next((entry for entry in entries if entry.closed_unix is None), None)
    if current is not None:
        left -= min(typical, max(0.0, now_unix - current.opened_unix))
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


def federated_test_score(rounds: Iterable[RoundHead], measure: StudyMeasure) -> float | None:
    """The study's measure of the model of the last committed round with silos, on the test images, while a study runs.

    None before the first, since what the coordinator trains alone in round 0 is the baseline; and without test images.
    """
    last = last_committed(rounds)
    return None if last is None else score_on_test(last.metrics, measure)


def metric_in(metrics: Mapping[str, float], name: str) -> float | None:
    """One number of a round or a silo; None when it is not there or is not finite."""
    value = metrics.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def accuracy_in(metrics: Mapping[str, float]) -> float | None:
    """Test accuracy, 0 to 1, among the metrics of a round; None when it was not measured."""
    return metric_in(metrics, "accuracy")


def score_on_test(metrics: Mapping[str, float], measure: StudyMeasure) -> float | None:
    """The study's measure on the test images, 0 to 1, among the metrics of a round; None when it was not measured."""
    return metric_in(metrics, measure.metric)


def label_ratio_in(metrics: Mapping[str, float]) -> float | None:
    """Share of a silo's images that got a pseudo-label, 0 to 1, among its metrics; None when it did not say so."""
    return share_in(metrics, "label_ratio")


def share_in(metrics: Mapping[str, float], name: str) -> float | None:
    """As `metric_in`, of a number from 0 to 1 that a silo has sent: what is beyond counts as the end that it is beyond.
    """
    value = metric_in(metrics, name)
    return None if value is None else min(1.0, max(0.0, value))


def method_name(row: StudyRow) -> str:
    """The method of a study; "?" for one that was refused before its file could be read."""
    return str(row.config.get("method", {}).get("name", "?"))


def scenario_name(row: StudyRow) -> str:
    """Where the labels are, as the study file says it; empty when it does not."""
    method = row.config.get("method", {})
    return str({**method, **method.get("settings", {})}.get("scenario", ""))
