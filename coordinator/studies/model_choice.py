"""Which model a study hands over as things stand, why, and what it has come to, in words: never by test images.

The rule itself is in `semisilo.common.measures.round_choice` and `semisilo.coordinator.ledger.progress`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from semisilo.common.measures.gain import Gain, by_patients_text, describe_gain, gain_of, interval_of
from semisilo.common.measures.round_choice import ScoredRound, best_round
from semisilo.common.measures.study_measure import ACCURACY, VALIDATION_PREFIX, StudyMeasure
from semisilo.common.text.describe import describe_metric, describe_percentage
from semisilo.coordinator.ledger.progress import (
    handed_over,
    handed_over_beside,
    labels_alone_score,
    prefers_labels_alone,
    score_beside,
    scored_rounds,
)
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.states import RoundState, StudyState

__all__ = ["ChoiceFacts", "choice_of", "gain_of_study", "next_command", "no_silo_in"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceFacts:
    """Which round a study hands over as things stand, and why."""

    measure: str
    """The study's measure, as its file names it."""
    metric: str
    """The same among the metrics of a round."""
    title: str
    """The same for a person."""
    measure_reason: str
    """Why it is that one; empty until the images were read."""
    num_validation: int
    """Images that rounds are chosen on; 0: the last one is handed over."""
    round: int | None
    """None before the first commit."""
    last: int | None
    """The last committed round."""
    score: float | None
    """The measure on validation images after that round, 0 to 1; None without any."""
    error: float | None
    """Its standard error."""
    last_score: float | None
    """After the last committed round."""
    best: ScoredRound | None = None
    """The committed round with the highest score; None without any."""
    labels_alone: bool
    """Whether labels alone are handed over in the place of that round, since they score higher than `score_beside`."""
    labels_alone_score: float | None
    """Theirs; None before they are trained and where there are no validation images."""
    score_beside: float | None = None
    """The mean score of that round and those around it, which labels alone are held against; None without any."""
    unseen: tuple[str, ...] = ()
    """Classes of which the validation images have none, where the measure is about every class or about that one."""
    num_classes: int = 0
    text: str
    """All of it in one line; empty before the first commit."""
    conclusion: str
    """What the study has come to, in sentences, once it has ended; empty before."""


def choice_of(row: StudyRow, rounds: Sequence[RoundHead], *, first_update: int | None) -> ChoiceFacts:
    """The choice of a study among its rounds, all of them in order: never by test images.

    Args:
        first_update: the first committed round that has taken in an update, as `semisilo.coordinator.ledger.tasks` has
            it: no silo has part in the rounds before it. None without any.
    """
    measure = row.study_measure
    images = 0 if row.frozen is None else row.frozen.num_validation
    chosen = handed_over_beside(row, rounds)
    last = next((each for each in reversed(rounds) if each.state is RoundState.COMPLETED), None)
    score, last_score = (None if each is None else each.metrics.get("selection_score")
                         for each in (chosen, last))
    facts = ChoiceFacts(
        measure=str(measure), metric=measure.metric, title=measure.title, measure_reason="" if row.frozen is None else
        row.frozen.measure_reason, num_validation=images, round=None if chosen is None else chosen.number,
        last=None if last is None else last.number, score=score,
        error=None if chosen is None else chosen.metrics.get("selection_error"), last_score=last_score,
        best=best_round(scored_rounds(rounds)),
        labels_alone=prefers_labels_alone(row, chosen, rounds), labels_alone_score=labels_alone_score(row),
        score_beside=None if chosen is None else score_beside(row, chosen, rounds),
        unseen=() if chosen is None else _unseen(row, chosen.metrics), num_classes=len(row.classes), text="",
        conclusion="")
    usual = handed_over(rounds)
    instead = ""
    if usual is not None and usual is not chosen:
        alike = "" if score_beside(row, usual, rounds) == usual.metrics.get("selection_score") else \
            " and those around it"
        instead = f", instead of round {usual.number}, than which{alike} labels alone score higher"
    facts = replace(facts, text=_choice_text(facts, instead=instead))
    if chosen is None or row.state not in (StudyState.COMPLETED, StudyState.STOPPED):
        return facts
    return replace(facts, conclusion=_conclusion(row, facts, chosen.metrics, has_silos=first_update is not None
                                                 and first_update <= chosen.number))


def _unseen(row: StudyRow, metrics: Mapping[str, float]) -> tuple[str, ...]:
    """Classes of which the validation images have none, by what was measured on them for each class."""
    measure = row.study_measure
    by_class = f"{VALIDATION_PREFIX}{measure.kind if measure.is_area else 'recall'}/"
    return measure.unseen(row.classes, [int(f"{by_class}{name}" in metrics) for name in row.classes])


def _choice_text(facts: ChoiceFacts, *, instead: str) -> str:
    """
    Args:
        instead: why it is not the round that would be chosen without labels alone; empty where it is.
    """
    if facts.round is None:
        return ""
    images = f"{facts.num_validation} validation images"
    if facts.unseen:
        images += f" of {facts.num_classes - len(facts.unseen)} of the {facts.num_classes} classes"
    if facts.labels_alone:
        alone, score, mean = (describe_metric(facts.metric, each) for each in (
            facts.labels_alone_score, facts.score, facts.score_beside))
        beside = "" if facts.score_beside == facts.score else f", and {mean} with the rounds around it"
        return (f"labels alone, without any silo: {facts.title} {alone} on {images},"
                f" where round {facts.round} has {score}{beside}")
    if facts.score is None:
        why = "there are no validation images to choose by" if not facts.num_validation else \
            "validation images have not measured any round" if not facts.unseen and "/" not in facts.metric else \
            (f"on the {facts.num_validation} validation images no round answers '{facts.metric.partition('/')[2]}' more"
             " often to its images than to others, so its recall cannot choose") if not facts.unseen else \
            (f"the {facts.num_validation} validation images have none of '{facts.unseen[0]}', so {facts.title} cannot"
             " choose")
        return f"round {facts.round}, the last one: {why}"
    on = f"{facts.title} {describe_metric(facts.metric, facts.score)} on {images}"
    if not instead and facts.best is not None and facts.best.score > facts.score:
        best = describe_metric(facts.metric, facts.best.score)
        on += f" (round {facts.best.number} has {best}, no more than its standard error above)"
    if facts.round == facts.last:
        return f"round {facts.round}, the last one: {on}"
    other = "was not measured on them" if facts.last_score is None else \
        f"has {describe_metric(facts.metric, facts.last_score)}"
    return f"round {facts.round}, {on}{instead}; the last round, {facts.last}, {other}"


def next_command(row: StudyRow, facts: ChoiceFacts) -> str:
    """What an operator would type next at the hub once a study is over; empty before."""
    if row.state is StudyState.FAILED:
        return f"coordinator queue {row.name}"
    over = row.state in (StudyState.COMPLETED, StudyState.STOPPED) and facts.round is not None
    return f"coordinator export {row.name}" if over else ""


def no_silo_in(number: int) -> str:
    """That no silo has part in a round, as every reader says it."""
    return f"no silo has part in round {number}"


def _conclusion(row: StudyRow, facts: ChoiceFacts, chosen: Mapping[str, float], *, has_silos: bool) -> str:
    """Which model is handed over and why; what it reaches on the test images and gains over labels alone there, with
    intervals. Where no silo has part in it there is nothing that silos could have gained or lost.

    Args:
        chosen: metrics of the chosen round.
        has_silos: whether an update was taken in up to that round.
    """
    found = [f"The model handed over is that of {facts.text}."]
    gain = _shown_gain(row, chosen, facts.round)
    if gain is not None and row.frozen is not None:
        federated, alone = (describe_metric(gain.measure.metric, each) for each in (gain.federated, gain.labels_alone))
        found.append(f"On {row.frozen.num_test} test images round {facts.round} has {gain.measure.with_article} of"
                     f" {federated} and labels alone {alone}{_verdict(gain, facts, has_silos=has_silos)}.")
        beside = gain_of_study(row, chosen, facts.round, measure=ACCURACY)
        if gain.measure != ACCURACY and beside is not None:
            found.append(f"Their accuracy there: {describe_percentage(beside.federated)} and"
                         f" {describe_percentage(beside.labels_alone)}.")
    elif row.baseline is None or not {"accuracy", "auroc"} & set(row.baseline.metrics):
        if (reached := _reached(row, chosen)):
            found.append(f"On {reached[0]} test images round {facts.round} has {reached[1]}.")
        found.append("Nothing to compare it with: labels alone were not trained." if row.baseline is None else
                     "There are no test images to compare it with labels alone on.")
    return " ".join(found)


def _verdict(gain: Gain, facts: ChoiceFacts, *, has_silos: bool) -> str:
    """What the numbers come to, of a model that silos have part in; else why they come to nothing."""
    if facts.labels_alone:
        return "; labels alone are handed over, so there is no gain"
    return f": {describe_gain(gain)}" if has_silos else f"; {no_silo_in(facts.round or 0)}, so there is no gain"


def _reached(row: StudyRow, chosen: Mapping[str, float]) -> tuple[int, str] | None:
    """How many test images there are, and the study's measure on them, else the accuracy, with its interval."""
    if row.frozen is None or not row.frozen.num_test:
        return None
    for measure in dict.fromkeys((row.study_measure, ACCURACY)):
        if (value := chosen.get(measure.metric)) is not None:
            found = interval_of(measure, classes=row.classes, images=row.frozen.test_counts, metrics=chosen)
            interval = "" if found is None else (f", 95 % interval {describe_metric(measure.metric, found.low)} to"
                                                 f" {describe_metric(measure.metric, found.high)}"
                                                 f"{by_patients_text(row.frozen.test_counts.patients)}")
            said = f"{measure.with_article} of {describe_metric(measure.metric, value)}{interval}"
            return row.frozen.num_test, said
    return None


def gain_of_study(row: StudyRow, federated: Mapping[str, float], number: int | None, *,
                  measure: StudyMeasure | None = None) -> Gain | None:
    """What a round is better by than labels alone, on the test images.

    Args:
        federated: metrics of the round.
        number: of the round.
        measure: None for the study's.
    Returns: None where either was not measured.
    """
    if row.frozen is None or row.baseline is None or not row.frozen.num_test:
        return None
    return gain_of(measure or row.study_measure, classes=row.classes, images=row.frozen.test_counts,
                   federated=federated, labels_alone=row.baseline.metrics,
                   paired=row.paired if row.paired is not None and row.paired.round == number else None)


def _shown_gain(row: StudyRow, federated: Mapping[str, float], number: int | None) -> Gain | None:
    """In the study's measure; in accuracy where the test images do not give that."""
    return gain_of_study(row, federated, number) or gain_of_study(row, federated, number, measure=ACCURACY)
