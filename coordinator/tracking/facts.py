"""What trackers are told of a round: numbers by name, read from the ledger.

Tests: tests/coordinator/tracking/test_tensorboard.py.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from semisilo.common.measures.study_measure import VALIDATION_PREFIX
from semisilo.coordinator.ledger.costs import bytes_by_round
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import count_rollbacks
from semisilo.coordinator.ledger.records import RoundRow, StudyRow
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.ledger.tasks import answers_of_study
from semisilo.coordinator.monitoring.drift import pseudo_label_counts
from semisilo.coordinator.monitoring.results.study_numbers import (
    MODEL_METRICS,
    label_ratio_in,
    labelled_only_accuracy,
    labels_alone_test_score,
)

__all__ = ["LABELS_ALONE", "RoundFacts", "RoundReader", "flat_settings"]

_LABELS_ALONE_IN = "model/labelled_only_"
LABELS_ALONE = f"{_LABELS_ALONE_IN}accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFacts:
    """A committed round."""

    number: int
    unix: float
    """When it was committed."""
    scalars: dict[str, float]
    """`model/...`: of the model; `recall/CLASS`; `method/...`: of the strategy; `label_ratio/SILO`; `silos/OUTCOME`;
    `bytes/KIND_DIRECTION` of this round; `bytes_so_far/KIND`; `seconds/...`. All are finite."""
    pseudo_labels: tuple[float, ...] = ()
    """How many images got each class as their pseudo-label, over all silos with an update; empty without any."""


@dataclass(slots=True)
class RoundReader:
    """Reads the rounds of one study in order; remembers what they have cost so far."""

    ledger: Ledger
    study: str
    _so_far: Counter[str] = field(default_factory=Counter)
    _read: int = -1
    """The last round whose cost is in `_so_far`."""
    _went_back: int = 0
    """How often the study had gone back when that was read."""

    def rounds_after(self, last: int) -> list[RoundFacts]:
        """Committed rounds with a higher number, in order."""
        row = self.ledger.study(self.study)
        if (times := count_rollbacks(self.ledger, self.study)) != self._went_back:
            # Rounds that are done again add to the costs of their numbers.
            self._so_far.clear()
            self._read, self._went_back = -1, times
        found = []
        for entry in self.ledger.rounds(self.study):
            if entry.number <= last or entry.state is not RoundState.COMPLETED:
                continue
            found.append(self._facts(row, entry))
        return found

    def committed(self) -> dict[int, float]:
        """Committed round -> when, as `RoundFacts` have it; of a round that is done again it is another moment."""
        return {entry.number: _closed(entry) for entry in self.ledger.rounds(self.study)
                if entry.state is RoundState.COMPLETED}

    def labels_alone(self, *, up_to: int, known: Collection[int]) -> list[RoundFacts]:
        """The line of labels alone in committed rounds that were told before it was there, in order.

        Args:
            up_to: the last round that was told.
            known: rounds of which it was told with them.
        """
        alone = _labels_alone(self.ledger.study(self.study))
        if not alone:
            return []
        return [RoundFacts(number=entry.number, unix=_closed(entry), scalars=dict(alone))
                for entry in self.ledger.rounds(self.study)
                if entry.number <= up_to and entry.state is RoundState.COMPLETED and entry.number not in known]

    def _facts(self, study: StudyRow, entry: RoundRow) -> RoundFacts:
        scalars: dict[str, float] = {}
        for name, value in entry.metrics.items():
            of_model = name in MODEL_METRICS or name.startswith(VALIDATION_PREFIX)
            group = "" if "/" in name else "model/" if of_model else "method/"
            scalars[f"{group}{name}"] = value
        scalars |= _labels_alone(study)
        closed = _closed(entry)
        scalars["seconds/round"] = max(0.0, closed - entry.opened_unix)
        if study.started_unix is not None:
            scalars["seconds/since_start"] = max(0.0, closed - study.started_unix)
        histogram = self._of_silos(entry.number, scalars, num_classes=len(study.classes))
        scalars |= self._bytes(entry.number)
        return RoundFacts(number=entry.number, unix=closed, pseudo_labels=histogram,
                          scalars={name: float(value) for name, value in scalars.items() if _is_number(value)})

    def _of_silos(self, number: int, scalars: dict[str, float], *, num_classes: int) -> tuple[float, ...]:
        """Adds what silos have answered to `scalars`; returns the histogram of their pseudo-labels."""
        outcomes: Counter[str] = Counter()
        classes: dict[int, float] = {}
        for answer in answers_of_study(self.ledger, self.study, first=number, last=number):
            outcomes[answer.state] += 1
            if (ratio := label_ratio_in(answer.metrics)) is not None:
                scalars[f"label_ratio/{answer.silo}"] = ratio
            for label, value in pseudo_label_counts(answer.metrics, num_classes=num_classes,
                                                    num_images=answer.example_count or 0).items():
                classes[label] = classes.get(label, 0.0) + value
        scalars |= {f"silos/{state}": float(count) for state, count in sorted(outcomes.items())}
        return tuple(classes.get(label, 0.0) for label in range(max(classes) + 1)) if classes else ()

    def _bytes(self, number: int) -> dict[str, float]:
        """Bytes of a round, and of all up to it; a failed round before it counts as well."""
        here: Counter[str] = Counter()
        for spent in bytes_by_round(self.ledger, self.study, after=self._read if number > self._read else -1,
                                    up_to=number):
            if number > self._read:
                self._so_far[spent.kind] += spent.bytes
            if spent.round == number:
                here[f"bytes/{spent.kind}_{spent.direction}"] += spent.bytes
        self._read = max(self._read, number)
        return {**{name: float(size) for name, size in here.items()},
                **{f"bytes_so_far/{kind}": float(size) for kind, size in self._so_far.items() if size}}


def flat_settings(config: Mapping[str, object]) -> dict[str, str]:
    """The settings of a study as `table.key` -> text."""
    found: dict[str, str] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in sorted(value.items()):
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            found[prefix] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    walk("", config)
    return found


def _labels_alone(study: StudyRow) -> dict[str, float]:
    """The line to beat: its accuracy, which images with several labels have not, and where the study is compared by
    another measure that one as well. {} before it is there."""
    accuracy, score = labelled_only_accuracy(study), labels_alone_test_score(study)
    found = {} if accuracy is None else {LABELS_ALONE: accuracy}
    return found if score is None else {**found, f"{_LABELS_ALONE_IN}{study.study_measure.metric}": score}


def _closed(entry: RoundRow) -> float:
    return entry.closed_unix if entry.closed_unix is not None else entry.opened_unix


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
