"""What every reader says of a study and of its open round: `status`, the page and the terminal show these facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import last_phase
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.monitoring.outcomes import counts_of, waiting_for
from semisilo.coordinator.monitoring.results.study_numbers import (
    MeasureBeside,
    accuracy_in,
    labelled_only_accuracy,
    labels_alone_note,
    labels_alone_test_score,
    measures_beside,
    method_name,
    planned_rounds,
    score_on_test,
    seconds_left,
)
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.studies.model_choice import ChoiceFacts, choice_of, next_command
from semisilo.coordinator.studies.participation import ParticipationFacts
from semisilo.coordinator.studies.shown_model import shown_model

__all__ = ["OpenRoundFacts", "StudyFacts", "open_round_facts", "study_facts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFacts:
    """One study of the queue."""

    name: str
    state: str
    method: str
    round: int
    """The round that was opened last."""
    rounds: int
    """How many the study file asks for."""
    accuracy: float | None
    """Of the model that `numbers_of` names, 0 to 1; None before there is one, or without test images."""
    labelled_only_accuracy: float | None
    test_score: float | None
    """The study's measure (`choice.measure`) of the model whose accuracy this is, 0 to 1; where that is the accuracy,
    the same number."""
    labels_alone_test_score: float | None
    """The same of labels alone."""
    labels_alone: str
    """How far labels alone are, or what cut them short; empty when nothing is to be said."""
    choice: ChoiceFacts
    """Which round is handed over as things stand, and why."""
    next_command: str
    """What an operator would type next once it is over; empty before."""
    seconds_left: float | None
    """Estimated; None before the first finished round and after the end."""
    reason: str
    participation: ParticipationFacts
    """On how many of how many silos it ran: what is said of it first."""
    beside: tuple[MeasureBeside, ...] = ()
    """All numbers of that model beside those of labels alone; empty before those are trained."""
    numbers_of: str = ""
    """Which model accuracy, test score and gain are of, in words: while the study runs the last round's, once it is
    over the one that is handed over, or where labels alone are, the chosen round's; empty before there is one."""
    numbers_round: int | None = None
    """That round; None before there is one."""
    federated: str = ""
    """The same as the heading of a column."""
    no_gain: str = ""
    """Why silos have brought nothing, whatever the numbers are; empty where a gain may be spoken of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRoundFacts:
    """The round that is under way. Times are Unix seconds."""

    number: int
    state: str
    phase: str
    """The phase that is under way; empty while the next one is prepared."""
    opened_unix: float
    deadline_unix: float | None
    """Of the open phase; None while no silo works. While the study is paused it stands still."""
    limit_unix: float | None
    """When the round fails if its quorum is not reached."""
    quorum: int
    tasks: dict[str, int]
    """Task state -> silos, of that phase."""
    waiting_for: tuple[str, ...]
    """Silos that have not answered, in byte order."""


def study_facts(row: StudyRow, rounds: Sequence[RoundHead], participation: ParticipationFacts, *,
                first_update: int | None, now_unix: float, live: LiveStatus | None = None) -> StudyFacts:
    """The facts of a study with all its rounds in order.

    Args:
        first_update: as `choice_of` has it.
        live: what `serve` says; None when it does not run.
    """
    planned = planned_rounds(row)
    choice = choice_of(row, rounds, first_update=first_update)
    shown = shown_model(row, rounds, choice, first_update=first_update)
    return StudyFacts(
        name=row.name, state=str(row.state), method=method_name(row), round=rounds[-1].number if rounds else 0,
        rounds=planned, accuracy=accuracy_in(shown.metrics), labelled_only_accuracy=labelled_only_accuracy(row),
        test_score=score_on_test(shown.metrics, row.study_measure),
        labels_alone_test_score=labels_alone_test_score(row),
        labels_alone=labels_alone_note(row, live=live.labels_alone if live and live.study == row.name else ""),
        choice=choice, next_command=next_command(row, choice),
        seconds_left=None if row.ended_unix else seconds_left(rounds, planned=planned, now_unix=now_unix),
        reason=row.reason, participation=participation,
        beside=measures_beside(row, shown.metrics, row.classes), numbers_of=shown.words, numbers_round=shown.round,
        federated=shown.column, no_gain=shown.no_gain)


def open_round_facts(ledger: Ledger, study: StudyRow, last: RoundHead | None) -> OpenRoundFacts | None:
    """The facts of the last round of a study, if that is under way: while the study is in the queue again it is not."""
    if last is None or last.closed_unix is not None or study.ended_unix is not None \
            or study.state is StudyState.QUEUED:
        return None
    phase = last_phase(ledger, study.name, last.number)
    if phase is not None and phase.number != last.phase:  # that one is over, and the next is being prepared
        phase = None
    outcomes = {} if phase is None else ledger.task_states(study.name, last.number, phase.number)
    collecting = phase is not None and last.state is RoundState.COLLECTING
    return OpenRoundFacts(
        number=last.number, state=str(last.state), phase=phase.name if phase is not None else "",
        opened_unix=last.opened_unix, deadline_unix=phase.deadline_unix if phase is not None and collecting else None,
        limit_unix=phase.limit_unix if phase is not None and collecting else None,
        quorum=phase.quorum if phase is not None else 0, tasks=counts_of(outcomes), waiting_for=waiting_for(outcomes))
