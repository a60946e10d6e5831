"""How far studies are: their heads, counts and lengths of rounds, phases. Few rows, however long a study is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from semisilo.common.measures.round_choice import ScoredRound, best_round, chosen_at_each, chosen_round, usual_score
from semisilo.common.measures.study_measure import VALIDATION_PREFIX
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import (
    PhaseHead,
    PhaseRow,
    RoundHead,
    StudyRow,
    phase_head,
    phase_row,
    round_head,
    study_row,
)
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState, TaskState

__all__ = ["OpenPhase", "RoundCounts", "SiloTotal", "StudyProgress", "best_committed", "confusion_of", "handed_over",
           "handed_over_beside", "handed_over_then", "labels_alone_score", "last_phase", "last_studies", "open_phase",
           "phases_of_round", "prefers_labels_alone", "round_heads", "round_outcomes", "score_beside", "scored_rounds",
           "silo_totals", "study_progress"]

RoundT = TypeVar("RoundT", bound=RoundHead)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCounts:
    """Rounds of one state, without round 0."""

    state: RoundState
    count: int
    seconds: float
    """How long those of them that are over took together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyProgress:
    """Where the rounds of a study stand."""

    last_round: int | None
    """The round that was opened last."""
    round_opened_unix: float | None
    """When that was; None when it is over."""
    last_seconds: float | None
    """How long the last round with silos took that is over."""
    metrics: dict[str, float]
    """Of the last committed round with silos; empty before."""
    rounds: tuple[RoundCounts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPhase:
    """The phase in which silos work."""

    name: str
    deadline_unix: float
    tasks: dict[TaskState, int]
    """State -> tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloTotal:
    """What a silo has answered in the rounds of a study that are over."""

    asked: int = 0
    """Rounds."""
    updated: int = 0
    """Rounds that were committed with its update."""
    examples: int = 0
    """Sum over those of the images that its updates say they are from; of several phases the largest number."""
    last_reason: str = ""
    """Why it last abstained, refused or did not answer, where that is known."""
    last_reason_round: int = 0
    """0: never."""


def last_studies(ledger: Ledger, *, ended: int) -> list[StudyRow]:
    """Studies that have not ended, and the last `ended` of the queue whatever their state, in order of the queue."""
    return [study_row(row) for row in ledger.query(
        "SELECT * FROM study WHERE state NOT IN (?, ?, ?)"
        " OR position IN (SELECT position FROM study ORDER BY position DESC LIMIT ?) ORDER BY position", *ENDED_STUDY,
        ended)]


def study_progress(ledger: Ledger, study: str) -> StudyProgress:
    """What a handful of queries say of the rounds of a study."""
    counts = ledger.query("SELECT state, count(*) AS n, coalesce(sum(closed_unix - opened_unix), 0) AS seconds"
                          " FROM round WHERE study = ? AND number > 0 GROUP BY state", study)
    last = ledger.query("SELECT number, opened_unix, closed_unix FROM round WHERE study = ?"
                        " ORDER BY number DESC LIMIT 1", study)
    over = ledger.query("SELECT closed_unix - opened_unix AS seconds FROM round WHERE study = ? AND number > 0 AND"
                        " closed_unix IS NOT NULL ORDER BY number DESC LIMIT 1", study)
    committed = ledger.query("SELECT metrics_json FROM round WHERE study = ? AND state = ? AND number > 0"
                             " ORDER BY number DESC LIMIT 1", study, RoundState.COMPLETED)
    return StudyProgress(
        last_round=last[0]["number"] if last else None,
        round_opened_unix=last[0]["opened_unix"] if last and last[0]["closed_unix"] is None else None,
        last_seconds=max(0.0, over[0]["seconds"]) if over else None,
        metrics=json.loads(committed[0]["metrics_json"]) if committed else {},
        rounds=tuple(RoundCounts(state=RoundState(row["state"]), count=row["n"], seconds=max(0.0, row["seconds"]))
                     for row in counts))


def round_heads(ledger: Ledger, study: str, *, first: int = 0) -> list[RoundHead]:
    """How the rounds of a study stand, in order, from `first` on."""
    return [round_head(row) for row in ledger.query(
        "SELECT number, state, phase, opened_unix, closed_unix, start_digest, state_digest, metrics_json, reason"
        " FROM round WHERE study = ? AND number >= ? ORDER BY number", study, first)]


def scored_rounds(rounds: Iterable[RoundHead]) -> list[ScoredRound]:
    """The committed rounds among some, in the same order, that have a selection score: round 0 as well, which no silo
    has had part in."""
    return [ScoredRound(row.number, row.metrics["selection_score"], row.metrics.get("selection_error", 0.0))
            for row in rounds if row.state is RoundState.COMPLETED and "selection_score" in row.metrics]


def handed_over(rounds: Iterable[RoundT]) -> RoundT | None:
    """The round whose model a study hands over: the chosen one, or the last committed one where no round has a
    selection score; None before the first commit.

    Args:
        rounds: all rounds of the study, in order.
    """
    committed = [row for row in rounds if row.state is RoundState.COMPLETED and row.state_digest]
    chosen = chosen_round(scored_rounds(committed))
    if chosen is None:
        return committed[-1] if committed else None
    return next(row for row in committed if row.number == chosen.number)


def handed_over_beside(row: StudyRow, rounds: Iterable[RoundT]) -> RoundT | None:
    """The round that a study hands over where labels alone may take its place: `handed_over`; where labels alone are
    preferred to that one, though not to the best one, the best.

    What a later round is worse by than the best may be chance, and is then no reason to drop what silos have added
    altogether: see `prefers_labels_alone`, which is asked with this round.

    Args:
        rounds: all rounds of the study, in order.
    """
    rounds = list(rounds)
    chosen = handed_over(rounds)
    if not prefers_labels_alone(row, chosen, rounds) or row.frozen is None or not row.frozen.keeps_best:
        return chosen
    best = best_committed(rounds)
    return chosen if prefers_labels_alone(row, best, rounds) else best


def best_committed(rounds: Iterable[RoundT]) -> RoundT | None:
    """The committed round with the highest selection score, of equals the earliest; None where none has one."""
    committed = [row for row in rounds if row.state is RoundState.COMPLETED and row.state_digest]
    best = best_round(scored_rounds(committed))
    return None if best is None else next(row for row in committed if row.number == best.number)


def handed_over_then(rounds: Iterable[RoundT]) -> dict[int, RoundT]:
    """Number of each committed round -> the round that `handed_over` gave while that one was the last: what a study
    that goes back to it would hand over.

    Args:
        rounds: all rounds of the study, in order.
    """
    committed = [row for row in rounds if row.state is RoundState.COMPLETED and row.state_digest]
    by_number = {row.number: row for row in committed}
    scored = scored_rounds(committed)
    chosen = {each.number: then.number for each, then in zip(scored, chosen_at_each(scored), strict=True)}
    found: dict[int, RoundT] = {}
    latest: int | None = None
    for row in committed:
        latest = chosen.get(row.number, latest)
        found[row.number] = row if latest is None else by_number[latest]
    return found


def labels_alone_score(row: StudyRow) -> float | None:
    """The study's measure of labels alone on its validation images; None where there are none, where labels alone are
    not trained, or where their model is not kept; for the recall of a class also where no image of another is right,
    for whoever always answers the class has all of its images."""
    if row.baseline is None or not row.baseline.model_digest or row.frozen is None:
        return None
    measure, metrics = row.frozen.study_measure, row.baseline.metrics
    if measure.kind == "recall" and row.frozen.compares_usual and not any(
            metrics.get(f"{VALIDATION_PREFIX}recall/{name}", 0.0) for name in row.classes
            if name != measure.class_name):
        return None
    return metrics.get(f"{VALIDATION_PREFIX}{measure.metric}")


def score_beside(row: StudyRow, chosen: RoundHead, rounds: Iterable[RoundHead]) -> float | None:
    """What labels alone are held against: the score of a round and those around it (`usual_score`), in a study that an
    earlier version began that of the round by itself; None where it has none.

    Args:
        rounds: all rounds of the study, in order.
    """
    if row.frozen is None or not row.frozen.compares_usual:
        return chosen.metrics.get("selection_score")
    scored = scored_rounds(rounds)
    own = next((each for each in scored if each.number == chosen.number), None)
    return None if own is None else usual_score(scored, own)


def prefers_labels_alone(row: StudyRow, chosen: RoundHead | None, rounds: Iterable[RoundHead]) -> bool:
    """Whether a study hands over labels alone in the place of its chosen round: where they score higher on the same
    validation images than that round and those around it, so that what silos have added does not help. Never by test
    images.

    Args:
        chosen: as `handed_over_beside` gives it; None before the first commit.
        rounds: all rounds of the study, in order.
    """
    alone = labels_alone_score(row)
    if alone is None or chosen is None:
        return False
    beside = score_beside(row, chosen, rounds)
    return beside is not None and alone > beside


def round_outcomes(ledger: Ledger, study: str, *, first: int = 0) -> dict[int, dict[str, int]]:
    """Round -> answer -> silos, of rounds that are over from `first` on, from the sums that the ledger keeps."""
    found: dict[int, dict[str, int]] = {}
    for row in ledger.query("SELECT round, outcome, silos FROM round_outcome WHERE study = ? AND round >= ?", study,
                            first):
        found.setdefault(row["round"], {})[row["outcome"]] = row["silos"]
    return found


def silo_totals(ledger: Ledger, study: str) -> dict[str, SiloTotal]:
    """Silo -> what it has answered in the rounds that are over, from the sums that the ledger keeps."""
    return {row["silo"]: SiloTotal(
        asked=row["asked"], updated=row["updated"], examples=row["examples"], last_reason=row["last_reason"],
        last_reason_round=row["last_reason_round"])
        for row in ledger.query("SELECT * FROM silo_total WHERE study = ?", study)}


def confusion_of(ledger: Ledger, study: str, number: int) -> tuple[tuple[int, ...], ...]:
    """(K, K), confusion[true][predicted], in test images, of the model of a committed round; () where none is kept.
    Where images may have several labels (K, 4): true positives, false negatives, false positives, true negatives."""
    rows = ledger.query("SELECT counts_json FROM confusion WHERE study = ? AND round = ?", study, number)
    return tuple(tuple(map(int, row)) for row in json.loads(rows[0]["counts_json"])) if rows else ()


def phases_of_round(ledger: Ledger, study: str, number: int) -> list[PhaseRow]:
    """The phases of a round that have begun, in order."""
    return [phase_row(row) for row in ledger.query(
        "SELECT * FROM phase WHERE study = ? AND round = ? ORDER BY number", study, number)]


def last_phase(ledger: Ledger, study: str, number: int) -> PhaseHead | None:
    """The phase of a round that began last; None before the first."""
    rows = ledger.query("SELECT study, round, number, name, quorum, opened_unix, deadline_unix, limit_unix,"
                        " closed_unix, step FROM phase WHERE study = ? AND round = ? ORDER BY number DESC LIMIT 1",
                        study, number)
    return phase_head(rows[0]) if rows else None


def open_phase(ledger: Ledger, study: str) -> OpenPhase | None:
    """The phase in which silos of a study work now; None when there is none."""
    rows = ledger.query("SELECT phase.* FROM phase JOIN round ON round.study = phase.study"
                        " AND round.number = phase.round AND round.phase = phase.number WHERE phase.study = ?"
                        " AND phase.closed_unix IS NULL AND round.closed_unix IS NULL"
                        " ORDER BY phase.round DESC LIMIT 1", study)
    if not rows:
        return None
    states = ledger.task_states(study, rows[0]["round"], rows[0]["number"])
    return OpenPhase(name=rows[0]["name"], deadline_unix=rows[0]["deadline_unix"], tasks=Counter(states.values()))
