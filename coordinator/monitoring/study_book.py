"""One study as the page shows it, kept up to date: of rounds that are over the ledger has the sums; only the last ones
are read answer by answer, and only an open one again.

Tests: tests/coordinator/monitoring/test_facts.py.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from semisilo.common.measures.gain import interval_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import count_rollbacks
from semisilo.coordinator.ledger.progress import SiloTotal, round_heads, round_outcomes, silo_totals
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.ledger.tasks import TaskAnswer, answers_of_study, not_added_up
from semisilo.coordinator.monitoring.drift import (
    EARLIER_ROUNDS,
    MOST_CLASSES,
    class_shares,
    drift_of,
    pseudo_label_counts,
)
from semisilo.coordinator.monitoring.facts import DriftFacts, RoundLine, SiloOfStudy
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.results.study_numbers import accuracy_in, label_ratio_in, score_on_test
from semisilo.coordinator.monitoring.traffic import RoundCosts, StudyCosts

__all__ = ["CELLS", "FEWEST_ROUNDS", "SiloAnswer", "StudyBook", "finite", "silo_answers",
           "silo_over_all_rounds"]

CELLS = 6000
"""How many (silo, round) pairs a study's document carries: an answer must stay small with hundreds of silos."""
FEWEST_ROUNDS = 20
_DIGITS = 4


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The numbers that JSON can carry."""
    return {name: float(value) for name, value in metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value)}


@dataclass(slots=True)
class SiloAnswer:
    """What one silo answered in one round, all phases together."""

    state: TaskState
    reason: str
    label_ratio: float | None
    pseudo_labels: dict[int, float]
    """Class -> count."""


@dataclass(slots=True)
class _Silo:
    """What a silo said in the rounds that are shown."""

    earlier: deque[dict[int, float]] = field(default_factory=lambda: deque(maxlen=EARLIER_ROUNDS))
    cells: dict[int, tuple[float | None, dict[int, float], DriftFacts | None]] = field(default_factory=dict)
    """Round -> (label ratio, shares per class, drift)."""

    def add(self, number: int, answer: SiloAnswer, *, shown: bool = True) -> None:
        """Takes in a round; they come in order. One that is not shown is only what later ones are compared with."""
        drift = drift_of(answer.pseudo_labels, self.earlier) if shown else None
        if answer.pseudo_labels:
            self.earlier.append(answer.pseudo_labels)
        if shown and (answer.label_ratio is not None or answer.pseudo_labels):
            self.cells[number] = (answer.label_ratio, class_shares(answer.pseudo_labels),
                                  None if drift is None else DriftFacts(
                                      distance=round(drift.distance, _DIGITS),
                                      threshold=round(drift.threshold, _DIGITS), marked=drift.marked))

    def copy(self) -> _Silo:
        """Another one that can be added to without changing this one."""
        return _Silo(deque(self.earlier, maxlen=EARLIER_ROUNDS), dict(self.cells))


@dataclass(slots=True)
class _Round:
    row: RoundHead
    metrics: dict[str, float]
    counts: dict[str, int]
    outcomes: dict[str, str]
    """Empty of a round that is not shown by silo."""


def silo_answers(ledger: Ledger, study: str, *, first: int, num_classes: int, silo: str = ""
                 ) -> dict[int, dict[str, SiloAnswer]]:
    """Round -> silo -> answer, of the rounds from `first` on, of one silo or of all.

    Args:
        num_classes: of the study: labels that are not below it are nobody's, whatever a silo has sent; 0 where that is
            not known.
    """
    most = num_classes or MOST_CLASSES
    found: dict[int, dict[str, list[TaskAnswer]]] = {}
    for answer in answers_of_study(ledger, study, first=first, silo=silo, counted=False):
        found.setdefault(answer.round, {}).setdefault(answer.silo, []).append(answer)
    return {number: {name: _answer(answers, most) for name, answers in silos.items()}
            for number, silos in found.items()}


def _answer(answers: Sequence[TaskAnswer], num_classes: int) -> SiloAnswer:
    """One answer from those to all phases, in order of the phases."""
    if len(answers) == 1:  # of most methods: a study of a thousand silos has tens of thousands
        state, metrics = answers[0].state, answers[0].metrics
    else:
        state, metrics = outcomes_of(("", answer.state) for answer in answers)[""], {}
        for answer in answers:
            metrics.update(answer.metrics)
    ratio = label_ratio_in(metrics)
    return SiloAnswer(
        state=state, reason=next((answer.reason for answer in answers if answer.reason and answer.state is state), ""),
        label_ratio=None if ratio is None else round(ratio, _DIGITS),
        pseudo_labels=pseudo_label_counts(metrics, num_classes=num_classes))


def _move(counts: dict[str, int], before: TaskState, after: TaskState, silos: int) -> None:
    """Counts so many silos under another answer."""
    counts[after] = counts.get(after, 0) + silos
    counts[before] -= silos
    if not counts[before]:
        del counts[before]


def _rounds_shown(silos: int) -> int:
    """Of how many rounds the values of so many silos are shown."""
    return max(FEWEST_ROUNDS, CELLS // max(1, silos))


class StudyBook:
    """Reads a study a little at a time and gives its rounds and silos."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rounds: dict[int, _Round] = {}
        """Rounds that are over."""
        self._totals: dict[str, SiloTotal] = {}
        """Of all those rounds."""
        self._silos: dict[str, _Silo] = {}
        """Of those among them that are shown by silo."""
        self._open: list[tuple[_Round, dict[str, SiloAnswer]]] = []
        self._next = 0
        self._rollbacks = 0

    def refresh(self, ledger: Ledger) -> None:
        """Reads the rounds that were not over at the last call; all of them once the study went back to an earlier one.
        """
        if (rollbacks := count_rollbacks(ledger, self.name)) != self._rollbacks:
            self._rounds, self._totals, self._silos, self._next = {}, {}, {}, 0
            self._rollbacks = rollbacks
        first = self._next
        rows = round_heads(ledger, self.name, first=first)
        over = list(itertools.takewhile(lambda row: row.closed_unix is not None, rows))
        if over:
            counts = round_outcomes(ledger, self.name, first=first)
            for round_number, count in not_added_up(ledger, self.name, first=first).items():
                _move(counts[round_number], TaskState.REFUSED, TaskState.ANSWERED, count)
            self._totals = silo_totals(ledger, self.name)
            self._next = over[-1].number + 1
            for row in over:
                self._rounds[row.number] = _Round(row, finite(row.metrics), counts.get(row.number, {}), {})
        self._open = [(_Round(row, finite(row.metrics), {}, {}), {}) for row in rows[len(over):]]
        # Of a study that has run for a while when it is first looked at, only the end is read answer by answer.
        answers = silo_answers(ledger, self.name, first=max(first, self.detail_from - EARLIER_ROUNDS),
                               num_classes=len(ledger.study(self.name).classes)) if rows else {}
        for row in over:
            silos = answers.get(row.number, {})
            shown = row.number >= self.detail_from
            if shown:
                self._rounds[row.number].outcomes = {silo: str(answer.state) for silo, answer in silos.items()}
            for silo, answer in silos.items():
                self._silos.setdefault(silo, _Silo()).add(row.number, answer, shown=shown)
        for number, (entry, _) in enumerate(self._open):
            silos = answers.get(entry.row.number, {})
            entry.outcomes = {silo: str(answer.state) for silo, answer in silos.items()}
            entry.counts = dict(Counter(entry.outcomes.values()))
            self._open[number] = entry, silos
        self._forget()

    def _forget(self) -> None:
        """Drops values by silo of rounds that are no longer shown."""
        first = self.detail_from
        for number in [number for number, entry in self._rounds.items() if number < first and entry.outcomes]:
            self._rounds[number].outcomes = {}
        for silo in self._silos.values():
            for number in [number for number in silo.cells if number < first]:
                del silo.cells[number]

    @property
    def detail_from(self) -> int:
        """The first round of which values by silo are kept."""
        return max(0, self._last_number() - _rounds_shown(len(self._totals)) + 1)

    def _last_number(self) -> int:
        return self._open[-1][0].row.number if self._open else self._next - 1

    def rows(self) -> list[RoundHead]:
        """All rounds in order."""
        return [entry.row for entry in (*self._rounds.values(), *(entry for entry, _ in self._open))]

    def lines(self, costs: StudyCosts, study: StudyRow) -> tuple[RoundLine, ...]:
        """The rounds with their bytes, and with the study's measure."""
        measure, dense_bytes, lines, spent = study.study_measure, study.dense_bytes, [], 0
        for entry in (*self._rounds.values(), *(entry for entry, _ in self._open)):
            row = entry.row
            of_round = costs.rounds.get(row.number, RoundCosts())
            spent += of_round.wire
            traffic = costs.traffic(dense_bytes=dense_bytes, round=row.number)
            lines.append(RoundLine(
                number=row.number, state=str(row.state), reason=row.reason, opened_unix=row.opened_unix,
                seconds=None if row.closed_unix is None else max(0.0, row.closed_unix - row.opened_unix),
                accuracy=accuracy_in(row.metrics), test_score=score_on_test(row.metrics, measure),
                test_interval=None if study.frozen is None else interval_of(
                    measure, classes=study.classes, images=study.frozen.test_counts, metrics=row.metrics),
                metrics=entry.metrics, counts=entry.counts, outcomes=entry.outcomes, wire_down=traffic.wire_down,
                wire_up=traffic.wire_up, wire_cumulative=spent, payload_down=traffic.payload_down,
                payload_up=traffic.payload_up, share_of_dense=traffic.share))
        return tuple(lines)

    def silos(self, costs: StudyCosts, *, num_classes: int) -> tuple[SiloOfStudy, ...]:
        """The silos that were asked at least once, in byte order, with what they have answered in the open round."""
        silos, totals = dict(self._silos), dict(self._totals)
        for entry, answers in self._open:
            for name, answer in answers.items():
                silos[name] = silos.get(name, _Silo()).copy()
                silos[name].add(entry.row.number, answer)
                before = totals.get(name, SiloTotal())
                totals[name] = _with_open(before, answer, entry.row.number)
        total = sum(each.examples for each in totals.values())
        return tuple(_silo_facts(name, silos.get(name, _Silo()), totals[name], total, costs, num_classes)
                     for name in sorted(totals, key=str.encode))


def _with_open(total: SiloTotal, answer: SiloAnswer, number: int) -> SiloTotal:
    """The sums with the answer to a round that is not over."""
    total = replace(total, asked=total.asked + 1)
    return replace(total, last_reason=answer.reason, last_reason_round=number) if answer.reason else total


def silo_over_all_rounds(ledger: Ledger, study: str, silo: str, *, rows: Iterable[RoundHead], sums: SiloOfStudy,
                         num_classes: int) -> SiloOfStudy:
    """One silo with the values of every round; `sums` is what the study's book says of it."""
    book = _Silo()
    answers = silo_answers(ledger, study, first=0, num_classes=num_classes, silo=silo)
    for row in rows:
        if silo in answers.get(row.number, {}):
            book.add(row.number, answers[row.number][silo])
    return replace(sums, **_cells(book, num_classes))


def _silo_facts(name: str, silo: _Silo, total: SiloTotal, all_examples: int, costs: StudyCosts,
                num_classes: int) -> SiloOfStudy:
    ways = costs.by_silo.get(name, {"down": 0, "up": 0})
    return SiloOfStudy(
        name=name, rounds_asked=total.asked, rounds_updated=total.updated, examples=total.examples,
        contribution=total.examples / all_examples if all_examples else 0.0, **_cells(silo, num_classes),
        wire_down=ways["down"], wire_up=ways["up"], last_reason=total.last_reason,
        last_reason_round=total.last_reason_round)


def _cells(silo: _Silo, num_classes: int) -> dict[str, Any]:
    """The fields of `SiloOfStudy` that are maps by round."""
    size = max([num_classes, *(1 + max(shares) for _, shares, _ in silo.cells.values() if shares)])
    return {"label_ratio": {number: ratio for number, (ratio, _, _) in silo.cells.items() if ratio is not None},
            "class_histogram": {number: tuple(round(shares.get(label, 0.0), _DIGITS) for label in range(size))
                                for number, (_, shares, _) in silo.cells.items() if shares},
            "drift": {number: drift for number, (_, _, drift) in silo.cells.items() if drift is not None}}
