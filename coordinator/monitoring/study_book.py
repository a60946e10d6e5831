"""One study as the page shows it, kept up to date: rounds that are over are read once, only the last ones again.

Tests: tests/coordinator/monitoring/test_facts.py.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.ledger.tasks import TaskAnswer, answers_of_study, asked_silos
from semisilo.coordinator.monitoring.drift import EARLIER_ROUNDS, class_shares, drift_of, pseudo_label_counts
from semisilo.coordinator.monitoring.facts import DriftFacts, RoundLine, SiloOfStudy
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.summary import accuracy_in, label_ratio_in
from semisilo.coordinator.monitoring.traffic import RoundCosts, StudyCosts

__all__ = ["CELLS", "FEWEST_ROUNDS", "SiloAnswer", "StudyBook", "finite", "silo_answers",
           "silo_over_all_rounds"]

CELLS = 6000
"""How many (silo, round) pairs a study's document carries: an answer must stay small with hundreds of silos."""
FEWEST_ROUNDS = 20
_STRETCH = 50
"""Rounds that are read at a time."""
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
    examples: int
    """The largest number of images that one of its updates says it is from."""


@dataclass(slots=True)
class _Silo:
    asked: int = 0
    updated: int = 0
    examples: int = 0
    last_reason: str = ""
    last_reason_round: int = 0
    earlier: deque[dict[int, float]] = field(default_factory=lambda: deque(maxlen=EARLIER_ROUNDS))
    cells: dict[int, tuple[float | None, dict[int, float], DriftFacts | None]] = field(default_factory=dict)
    """Round -> (label ratio, shares per class, drift) of the rounds that are shown."""

    def add(self, number: int, answer: SiloAnswer, *, committed: bool, shown: bool = True) -> None:
        """Takes in a round; they come in order. Of one that is not shown only the sums stay."""
        self.asked += 1
        if committed and answer.state is TaskState.UPDATED:
            self.updated += 1
            self.examples += answer.examples
        if answer.reason:
            self.last_reason, self.last_reason_round = answer.reason, number
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
        return _Silo(self.asked, self.updated, self.examples, self.last_reason, self.last_reason_round,
                     deque(self.earlier, maxlen=EARLIER_ROUNDS), dict(self.cells))


@dataclass(slots=True)
class _Round:
    row: RoundRow
    metrics: dict[str, float]
    counts: dict[str, int]
    outcomes: dict[str, str]


def silo_answers(ledger: Ledger, study: str, *, first: int, last: int, silo: str = "",
                 metrics_from: int = 0) -> dict[int, dict[str, SiloAnswer]]:
    """Round -> silo -> answer, of the rounds from `first` to `last`, of one silo or of all.

    Args:
        metrics_from: of rounds before this one, what silos sent is not looked at.
    """
    found: dict[int, dict[str, list[TaskAnswer]]] = {}
    for answer in answers_of_study(ledger, study, first=first, last=last, silo=silo, metrics_from=metrics_from):
        found.setdefault(answer.round, {}).setdefault(answer.silo, []).append(answer)
    return {number: {name: _answer(answers) for name, answers in silos.items()} for number, silos in found.items()}


def _answer(answers: Sequence[TaskAnswer]) -> SiloAnswer:
    """One answer from those to all phases, in order of the phases."""
    state = outcomes_of(("", answer.state) for answer in answers)[""]
    metrics: dict[str, float] = {}
    for answer in answers:
        metrics.update(answer.metrics)
    ratio = label_ratio_in(metrics)
    return SiloAnswer(
        state=state, reason=next((answer.reason for answer in answers if answer.reason and answer.state is state), ""),
        label_ratio=None if ratio is None else round(ratio, _DIGITS), pseudo_labels=pseudo_label_counts(metrics),
        examples=max(answer.example_count or 0 for answer in answers))


def _rounds_shown(silos: int) -> int:
    """Of how many rounds the values of so many silos are shown."""
    return max(FEWEST_ROUNDS, CELLS // max(1, silos))


class StudyBook:
    """Reads a study a little at a time and gives its rounds and silos."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rounds: dict[int, _Round] = {}
        """Rounds that are over."""
        self._silos: dict[str, _Silo] = {}
        """Sums over the rounds that are over."""
        self._open: list[tuple[_Round, dict[str, SiloAnswer]]] = []
        self._next = 0

    def refresh(self, ledger: Ledger) -> None:
        """Reads the rounds that were not over at the last call."""
        rows = ledger.rounds(self.name, first=self._next)
        self._open = []
        shown_from = 0
        if len(rows) > FEWEST_ROUNDS:  # the first look at a study that has run for a while
            shown_from = rows[-1].number - _rounds_shown(len(asked_silos(ledger, self.name))) + 1
        for start in range(0, len(rows), _STRETCH):
            self._read(ledger, rows[start:start + _STRETCH], shown_from=shown_from)
        self._forget()

    def _read(self, ledger: Ledger, rows: Sequence[RoundRow], *, shown_from: int) -> None:
        answers = silo_answers(ledger, self.name, first=rows[0].number, last=rows[-1].number,
                               metrics_from=shown_from - EARLIER_ROUNDS)
        for row in rows:
            silos = answers.get(row.number, {})
            entry = _Round(row, finite(row.metrics), dict(Counter(str(answer.state) for answer in silos.values())),
                           {silo: str(answer.state) for silo, answer in silos.items()})
            if row.closed_unix is not None and not self._open:
                self._rounds[row.number] = entry
                self._next = row.number + 1
                self._add(self._silos, row, silos, shown=row.number >= shown_from)
                if row.number < shown_from:
                    entry.outcomes = {}
            else:
                self._open.append((entry, silos))

    @staticmethod
    def _add(silos: dict[str, _Silo], row: RoundRow, answers: Mapping[str, SiloAnswer], *, shown: bool = True) -> None:
        for silo, answer in answers.items():
            silos.setdefault(silo, _Silo()).add(row.number, answer, shown=shown,
                                                committed=row.state is RoundState.COMPLETED)

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
        return max(0, self._last_number() - _rounds_shown(len(self._silos)) + 1)

    def _last_number(self) -> int:
        return self._open[-1][0].row.number if self._open else self._next - 1

    def rows(self) -> list[RoundRow]:
        """All rounds in order."""
        return [entry.row for entry in (*self._rounds.values(), *(entry for entry, _ in self._open))]

    def lines(self, costs: StudyCosts, *, dense_bytes: int) -> tuple[RoundLine, ...]:
        """The rounds with their bytes."""
        lines, spent = [], 0
        for entry in (*self._rounds.values(), *(entry for entry, _ in self._open)):
            row = entry.row
            of_round = costs.rounds.get(row.number, RoundCosts())
            spent += of_round.wire
            traffic = costs.traffic(dense_bytes=dense_bytes, round=row.number)
            lines.append(RoundLine(
                number=row.number, state=str(row.state), reason=row.reason, opened_unix=row.opened_unix,
                seconds=None if row.closed_unix is None else max(0.0, row.closed_unix - row.opened_unix),
                accuracy=accuracy_in(row.metrics), metrics=entry.metrics, counts=entry.counts,
                outcomes=entry.outcomes, wire_down=traffic.wire_down, wire_up=traffic.wire_up, wire_cumulative=spent,
                payload_down=traffic.payload_down, payload_up=traffic.payload_up, share_of_dense=traffic.share))
        return tuple(lines)

    def silos(self, costs: StudyCosts, *, num_classes: int) -> tuple[SiloOfStudy, ...]:
        """The silos that were asked at least once, in byte order, with what they have answered in the open round."""
        silos = dict(self._silos)
        for entry, answers in self._open:
            for name in answers:
                silos[name] = silos[name].copy() if name in silos else _Silo()
            self._add(silos, entry.row, answers)
        total = sum(silo.examples for silo in silos.values())
        return tuple(_silo_facts(name, silos[name], total, costs, num_classes)
                     for name in sorted(silos, key=str.encode))


def silo_over_all_rounds(ledger: Ledger, study: str, silo: str, *, rows: Iterable[RoundRow], costs: StudyCosts,
                         num_classes: int, total_examples: int) -> SiloOfStudy:
    """One silo with the values of every round."""
    book = _Silo()
    answers = silo_answers(ledger, study, first=0, last=2**62, silo=silo)
    for row in rows:
        if silo in answers.get(row.number, {}):
            book.add(row.number, answers[row.number][silo], committed=row.state is RoundState.COMPLETED)
    return _silo_facts(silo, book, total_examples, costs, num_classes)


def _silo_facts(name: str, silo: _Silo, total: int, costs: StudyCosts, num_classes: int) -> SiloOfStudy:
    ways = costs.by_silo.get(name, {"down": 0, "up": 0})
    size = max([num_classes, *(1 + max(shares) for _, shares, _ in silo.cells.values() if shares)])
    return SiloOfStudy(
        name=name, rounds_asked=silo.asked, rounds_updated=silo.updated, examples=silo.examples,
        contribution=silo.examples / total if total else 0.0,
        label_ratio={number: ratio for number, (ratio, _, _) in silo.cells.items() if ratio is not None},
        class_histogram={number: tuple(round(shares.get(label, 0.0), _DIGITS) for label in range(size))
                         for number, (_, shares, _) in silo.cells.items() if shares},
        drift={number: drift for number, (_, _, drift) in silo.cells.items() if drift is not None},
        wire_down=ways["down"], wire_up=ways["up"], last_reason=silo.last_reason,
        last_reason_round=silo.last_reason_round)
