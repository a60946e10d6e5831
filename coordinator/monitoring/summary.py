"""What became of a study, read from the ledger: the numbers behind the display, `status` and the report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semisilo.common.errors import StorageDamaged
from semisilo.common.measures.gain import Gain
from semisilo.common.measures.site_evaluation import (
    SiteEvaluation,
    SiteScores,
    estimate_text,
    site_scores,
)
from semisilo.common.measures.study_measure import StudyMeasure
from semisilo.coordinator.ledger.costs import Direction
from semisilo.coordinator.ledger.events import StudyNote, event_kinds, study_notes
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import SiloNotice, notices_of
from semisilo.coordinator.ledger.oversight.rollback import Rollback, rollbacks_of
from semisilo.coordinator.ledger.records import FrozenStudy, RoundRow, StudyRow
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.ledger.tasks import TaskAnswer, answers_of_study, site_evaluations, takes_in
from semisilo.coordinator.ledger.traffic import RoundTotal, round_totals, wire_by_silo
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.results.by_class import ByClass, by_class_of_study
from semisilo.coordinator.monitoring.results.left_of_silos import LeftOfSilo, left_of_silos
from semisilo.coordinator.monitoring.results.study_numbers import (
    MeasureBeside,
    accuracy_in,
    label_ratio_in,
    labelled_only_accuracy,
    labels_alone_test_score,
    measures_beside,
    planned_rounds,
    score_on_test,
    seconds_since_start,
)
from semisilo.coordinator.monitoring.traffic import StudyCosts, Traffic, silo_ways
from semisilo.coordinator.studies.model_choice import ChoiceFacts, choice_of
from semisilo.coordinator.studies.participation import ParticipationFacts, participation_of
from semisilo.coordinator.studies.privacy import WentBack, went_back
from semisilo.coordinator.studies.shown_model import ShownModel, shown_model

if TYPE_CHECKING:
    from semisilo.coordinator.ledger.encodings import EncodingUse

__all__ = ["AuditSummary", "RoundSummary", "SiteLine", "StudySummary", "audit", "label_ratios", "site_lines",
           "summarise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteLine:
    """What a global model is worth at one site that took part, as the site says."""

    silo: str
    round: int | None
    """After which the model was what it is; None where the site has sent no numbers."""
    labels_alone: bool
    """Whether it is the model of labels alone."""
    handed_over: bool
    """Whether it is the model that the study hands over as things stand."""
    scores: SiteScores | None
    """None where the site has sent no numbers."""
    texts: Mapping[str, str]
    """Title of a measure -> its value with interval, for a person: accuracy, balanced accuracy, the study's own."""

    @property
    def model(self) -> str:
        """Which model it is, for a person; empty where the site has sent no numbers."""
        if self.round is None:
            return ""
        which = "labels alone" if self.labels_alone else f"round {self.round}"
        return f"{which}, handed over" if self.handed_over else which


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
    """Silo -> all numbers that it sent, of all phases; as it sent them."""
    traffic: Traffic
    opened_unix: float
    seconds: float | None
    """From opening to commit; None while it lasts."""
    reason: str
    updates: int = 0
    """Updates that were accepted, in all phases."""
    taken_in: bool = False
    """Whether anything of them is in the model: not where the gate has accepted nothing."""
    examples: Mapping[str, int] = field(default_factory=dict)
    """Silo -> of how many images its updates are, 0 where it sent none."""
    answered: frozenset[str] = frozenset()
    """Silos with an update or an abstention, in any phase."""
    updated: frozenset[str] = frozenset()
    """Silos with an update, in any phase: behind masks it is in the sum whatever its silo does in later steps."""

    def count(self, state: TaskState) -> int:
        """How many silos gave this answer."""
        return sum(outcome is state for outcome in self.outcomes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySummary:
    """A whole study as the report shows it."""

    row: StudyRow
    rounds: tuple[RoundSummary, ...]
    costs: tuple[RoundTotal, ...]
    """By round, over all silos: of a thousand silos and five hundred rounds there are seven million rows."""
    wire_by_silo: Mapping[str, Mapping[Direction, int]]
    """Of all rounds; the name is empty for what belongs to no silo."""
    traffic: Traffic
    choice: ChoiceFacts
    """Which round is handed over, and why."""
    labelled_only: float | None
    """Test accuracy of the same network trained on the coordinator's labels alone."""
    seconds: float | None
    """From start to end, or until now; None before the start."""
    encodings: tuple[EncodingUse, ...] = ()
    """What each encoding carried; empty for a study from before that was counted."""
    encoding_totals: tuple[EncodingUse, ...] = ()
    """All encodings together: down, then up; empty where none was counted."""
    sites: tuple[SiteLine, ...] = ()
    """Every silo that was asked, in byte order; () where no site has sent what a model is worth there."""
    participation: ParticipationFacts = field(default_factory=ParticipationFacts)
    """On how many of how many silos it ran: what is said of it first."""
    notices: tuple[SiloNotice, ...] = ()
    """What an operator should hear of its silos."""
    rollbacks: tuple[Rollback, ...] = ()
    """Every time that it went back to an earlier round."""
    went_back: tuple[WentBack, ...] = ()
    """The same with what silos had answered; empty where it has no differential privacy."""
    notes: tuple[StudyNote, ...] = ()
    """Of operators beside it, oldest first."""
    left: tuple[LeftOfSilo, ...] = ()
    """What has left each hospital that was asked."""
    by_class: ByClass | None = None
    """The model that counts now, class by class; None before it was measured on test images."""

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
        """Of the shown model; None before there is one, or without a test set."""
        return accuracy_in(self.shown.metrics)

    @property
    def measure(self) -> StudyMeasure:
        """What the study is drawn and compared by."""
        return self.row.study_measure

    @property
    def test_score(self) -> float | None:
        """The study's measure of the model whose `accuracy` this is, on the test images."""
        return score_on_test(self.shown.metrics, self.measure)

    @property
    def labels_alone_test_score(self) -> float | None:
        """The same of labels alone."""
        return labels_alone_test_score(self.row)

    @property
    def beside(self) -> tuple[MeasureBeside, ...]:
        """All numbers of the shown model beside those of labels alone; () before those are trained."""
        return measures_beside(self.row, self.shown.metrics, self.row.classes)

    @property
    def updates(self) -> int:
        """Updates of silos that the committed rounds have taken in."""
        return sum(entry.updates for entry in self.rounds if entry.state is RoundState.COMPLETED)

    @property
    def gain(self) -> Gain | None:
        """What the silos have brought in the study's measure, on the test images; None also where they have no part in
        what is handed over."""
        return self.shown.gain(self.row)

    @property
    def shown(self) -> ShownModel:
        """Whose numbers these are: the last round's while it runs, then those of the model that is handed over."""
        return shown_model(self.row, self.rounds, self.choice, first_update=next((
            each.number for each in self.rounds if each.state is RoundState.COMPLETED and each.taken_in), None))

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
    dense, costs, book = row.dense_bytes, tuple(round_totals(ledger, study)), StudyCosts()
    book.replace(costs)
    answers: dict[int, list[TaskAnswer]] = {}
    for answer in answers_of_study(ledger, study):
        answers.setdefault(answer.round, []).append(answer)
    rows = ledger.rounds(study)
    rounds = tuple(_summarise_round(entry, answers.get(entry.number, ()),
                                    book.traffic(dense_bytes=dense, round=entry.number))
                   for entry in rows)
    choice = choice_of(row, rows, first_update=next(
        (each.number for each in rounds if each.state is RoundState.COMPLETED and each.taken_in), None))
    asked = {silo for entry in rounds for silo in entry.outcomes}
    return StudySummary(row=row, choice=choice, participation=participation_of(ledger, row), rounds=rounds, costs=costs,
                        wire_by_silo=silo_ways(wire_by_silo(ledger, study)),
                        sites=site_lines(ledger, row, choice, asked=asked),
                        notices=notices_of(ledger, study, since_unix=row.queued_unix),
                        rollbacks=rollbacks_of(ledger, study), went_back=went_back(ledger, study),
                        notes=study_notes(ledger, study), left=left_of_silos(ledger, study), by_class=by_class_of_study(
                            ledger, row, rows, choice),
                        traffic=book.traffic(dense_bytes=dense), labelled_only=labelled_only_accuracy(row),
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


def site_lines(ledger: Ledger, row: StudyRow, choice: ChoiceFacts, *, asked: Iterable[str]) -> tuple[SiteLine, ...]:
    """What the model that a study hands over is worth at each site, or the newest that a site knows, in byte order of
    names; () where no site has sent anything.

    Args:
        asked: the silos that were asked; those among them that have sent nothing have a line that says so.
    """
    if row.frozen is None or choice.round is None:
        return ()
    found = site_evaluations(ledger, row.name, round=0 if choice.labels_alone else choice.round,
                             labels_alone=choice.labels_alone)
    if not found:
        return ()
    return tuple(_site_line(silo, found.get(silo), row.frozen, choice)
                 for silo in sorted({*asked, *found}, key=str.encode))


def _site_line(silo: str, found: SiteEvaluation | None, frozen: FrozenStudy, choice: ChoiceFacts) -> SiteLine:
    if found is None:
        return SiteLine(silo=silo, round=None, labels_alone=False, handed_over=False, scores=None, texts={})
    scores, measure = site_scores(found, frozen.study_measure, frozen.classes), frozen.study_measure
    return SiteLine(
        silo=silo, round=found.round, labels_alone=found.labels_alone, scores=scores,
        handed_over=found.labels_alone if choice.labels_alone else
        not found.labels_alone and found.round == choice.round,
        texts={each.title: estimate_text(value, each) for each, value in scores.by_measure(measure).items()})


def label_ratios(ledger: Ledger, study: str, last_round: int) -> dict[str, float]:
    """Silo -> its label ratio in the last round or the one before, so that it keeps it while it works on the next."""
    found: dict[str, float] = {}
    for answer in answers_of_study(ledger, study, first=max(1, last_round - 1), last=last_round):
        if (ratio := label_ratio_in(answer.metrics)) is not None:
            found[answer.silo] = ratio
    return found


def _summarise_round(row: RoundRow, answers: Sequence[TaskAnswer], traffic: Traffic) -> RoundSummary:
    ratios: dict[str, float] = {}
    reasons: dict[str, str] = {}
    metrics: dict[str, dict[str, float]] = {}
    examples: dict[str, int] = {}
    outcomes = outcomes_of((answer.silo, answer.state) for answer in answers)
    for answer in answers:
        examples[answer.silo] = max(examples.get(answer.silo, 0), answer.example_count or 0)
        metrics.setdefault(answer.silo, {}).update(answer.metrics)
        if (ratio := label_ratio_in(answer.metrics)) is not None:
            ratios[answer.silo] = ratio
        if answer.reason and answer.state is outcomes[answer.silo]:
            reasons[answer.silo] = answer.reason
    return RoundSummary(number=row.number, state=row.state, accuracy=accuracy_in(row.metrics), metrics=row.metrics,
                        outcomes=outcomes, reasons=reasons, label_ratio=ratios, silo_metrics=metrics, traffic=traffic,
                        opened_unix=row.opened_unix,
                        seconds=None if row.closed_unix is None else max(0.0, row.closed_unix - row.opened_unix),
                        reason=row.reason, examples=examples,
                        updates=sum(answer.state is TaskState.UPDATED for answer in answers),
                        taken_in=takes_in(row.metrics, answers),
                        answered=frozenset(answer.silo for answer in answers
                                           if answer.state in (TaskState.UPDATED, TaskState.ABSTAINED)),
                        updated=frozenset(answer.silo for answer in answers if answer.state is TaskState.UPDATED))
