"""What a study says of the model that it hands over; the whole way is in tests/semisilo/simulation/test_choice.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semisilo.common.data.form import ImageForm
from semisilo.common.measures.gain import PairedGain
from semisilo.common.measures.intervals import Interval
from semisilo.coordinator.ledger.progress import handed_over_beside
from semisilo.coordinator.ledger.records import FrozenStudy, LabelledOnlyResult, RoundHead, StudyRow
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.studies.model_choice import ChoiceFacts, choice_of
from tests.each_of import each_of


def frozen(*, num_test: int, measure: str) -> FrozenStudy:
    image = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    return FrozenStudy(classes=("a", "b"), image=image, num_labelled=20,
                       num_validation=50, num_test=num_test, num_parameters=1, dense_bytes=4, measure=measure,
                       measure_reason="")


def choice(accuracy: float, alone: float | None, *, num_test: int = 400, state: StudyState = StudyState.COMPLETED,
           measure: str = "accuracy", **validation: float) -> ChoiceFacts:
    """Of a study with one round beyond round 0."""
    row = row_with(alone, num_test=num_test, state=state, measure=measure, **validation)
    metrics = {"accuracy": accuracy, "balanced_accuracy": 0.25, "selection_score": 0.8, "selection_error": 0.05}
    return choice_of(row, [round_of(0, {"selection_score": 0.1, "selection_error": 0.05}), round_of(1, metrics)],
                     first_update=1)


def row_with(alone: float | None, *, num_test: int = 400, state: StudyState = StudyState.COMPLETED,
             measure: str = "accuracy", **validation: float) -> StudyRow:
    baseline = None if alone is None else LabelledOnlyResult(
        metrics={"accuracy": alone, "balanced_accuracy": alone / 2, **validation}, epochs=1, lr=0.1, batch_size=10,
        steps=2, num_labelled=20, history=(), model_digest="d")
    return StudyRow(name="s", position=1, state=state, config={}, frozen=frozen(num_test=num_test, measure=measure),
                   numerics=None, baseline=baseline, queued_unix=0.0, started_unix=0.0, ended_unix=None, reason="")


def round_of(number: int, metrics: dict[str, float]) -> RoundHead:
    return RoundHead(number=number, state=RoundState.COMPLETED, phase=0, opened_unix=0.0, closed_unix=1.0,
                     start_digest="", state_digest=f"d{number}", metrics=metrics, reason="")


@each_of(("accuracy", "alone", "said"), [
    (0.9, 0.7, ":+20.0 points, 95 % interval +14.6 to +25.3, the silos have helped."),
    (0.7, 0.9, ": −20.0 points, 95 % interval −25.3 to −14.6, the silos have not helped."),
    (0.81, 0.8, ":+1.0 points, 95 % interval −4.5 to +6.5, no difference shown."),
])
def test_the_conclusion_claims_a_difference_only_beyond_newcombes_interval(accuracy: float, alone: float, said: str
                                                                           ) -> None:
    found = choice(accuracy, alone).conclusion
    assert found.replace(" ", "").endswith(said.replace(" ", ""))
    assert found.startswith("The model handed over is that of round 1, the last one: accuracy 80.0 % on 50 validation")


def test_once_both_models_answers_were_compared_the_interval_is_theirs() -> None:
    row, rounds = row_with(0.8), [round_of(1, {"accuracy": 0.83, "selection_score": 0.8, "selection_error": 0.05})]
    paired = PairedGain(round=1, patients=0, intervals={"accuracy": Interval(0.011, 0.049)})

    def said(paired: PairedGain | None) -> str:
        return choice_of(replace(row, paired=paired), rounds, first_update=1).conclusion
    assert "+3.0 points, 95 % interval +1.1 to +4.9, paired by image, the silos have helped" in said(paired)
    assert "to +4.9, paired by 40 patients, the silos" in said(replace(paired, patients=40))
    assert "+8.4, no difference shown" in said(None)
    assert said(replace(paired, round=2)) == said(None) == said(replace(paired, intervals={})), "those of another round"


def test_images_of_few_patients_show_no_difference_that_as_many_patients_would() -> None:
    row, rounds = row_with(0.7), [round_of(1, {"accuracy": 0.9, "selection_score": 0.8, "selection_error": 0.05})]
    assert row.frozen is not None
    row = replace(row, frozen=replace(row.frozen, test_patients=10))
    found = choice_of(row, rounds, first_update=1).conclusion
    assert found.endswith("+20.0 points, 95 % interval −16.0 to +51.4 by 10 patients, no difference shown.")
    without = choice_of(replace(row, baseline=None), rounds, first_update=1).conclusion
    assert "accuracy of 90.0 %, 95 % interval 59.6 % to 98.2 % by 10 patients." in without


def test_there_is_no_conclusion_before_the_end_and_no_comparison_without_labels_alone_or_test_images() -> None:
    assert choice(0.9, 0.7, state=StudyState.RUNNING).conclusion == ""
    assert "labels alone were not trained" in choice(0.9, None).conclusion
    assert "test images" not in choice(0.9, 0.7, num_test=0).conclusion


def test_a_study_by_another_measure_is_concluded_by_it_with_the_accuracy_beside() -> None:
    found = choice(0.9, 0.7, measure="balanced_accuracy").conclusion
    assert "round 1 has a balanced accuracy of 25.0 % and labels alone 35.0 %: −10.0 points, interval not known." \
        in found, "it was begun by a version that did not count the images of each class"
    assert "Their accuracy there: 90.0 % and 70.0 %." in found


def test_where_the_test_images_do_not_give_the_measure_accuracy_is_compared() -> None:
    found = choice(0.9, 0.7, measure="auroc").conclusion
    assert "round 1 has an accuracy of 90.0 % and labels alone 70.0 %: +20.0 points, 95 % interval" in found


@each_of(("score", "handed_over"), [(0.81, True), (0.8, False), (0.79, False)])
def test_labels_alone_are_handed_over_only_where_they_score_higher(score: float, handed_over: bool) -> None:
    found = choice(0.9, 0.7, validation_accuracy=score)
    assert found.labels_alone is handed_over
    alone = "labels alone, without any silo: accuracy 81.0 % on 50 validation images, where round 1"
    assert found.text.startswith(alone if handed_over else "round 1, the last one")


def test_the_measure_of_the_study_decides_not_the_accuracy() -> None:
    scores: dict[str, Any] = {"validation_accuracy": 0.99, "validation_balanced_accuracy": 0.5}
    assert not choice(0.9, 0.7, measure="balanced_accuracy", **scores).labels_alone


def test_without_labels_alone_what_is_reached_is_said_with_its_interval() -> None:
    """Wilson's of 360 right of 400: (0.9 + 0.0048 ± 1.96 sqrt(0.09 / 400 + 0.000006)) / 1.0096."""
    said = choice(0.9, None).conclusion
    assert "On 400 test images round 1 has an accuracy of 90.0 %, 95 % interval 86.7 % to 92.6 %." in said
    assert said.endswith("Nothing to compare it with: labels alone were not trained.")
    assert "test images" not in choice(0.9, None, num_test=0).conclusion


@each_of(("alone", "keeps_best", "round", "labels_alone", "said"), [
    (0.89, True, 2, False, "round 2, the last one: accuracy 89.7 % on 50 validation images (round 1 has 92.4 %, no"
                           " more than its standard error above)"),
    (0.897, True, 2, False, "round 2, the last one: accuracy 89.7 % on 50 validation images (round 1 has 92.4 %, no"
                           " more than its standard error above)"),
    (0.9105, True, 1, False, "round 1, accuracy 92.4 % on 50 validation images, instead of round 2, than which labels"
                             " alone score higher; the last round, 2, has 89.7 %"),
    (0.924, True, 1, False, "round 1, accuracy 92.4 % on 50 validation images, instead of round 2, than which labels"
                            " alone score higher; the last round, 2, has 89.7 %"),
    (0.93, True, 2, True, "labels alone, without any silo: accuracy 93.0 % on 50 validation images, where round 2 has"
                          " 89.7 %"),
    (0.9105, False, 2, True, "labels alone, without any silo: accuracy 91.1 % on 50 validation images, where round 2"
                             " has 89.7 %")])
def test_labels_alone_do_not_win_where_a_round_scores_as_high(alone: float, keeps_best: bool, round: int,
                                                             labels_alone: bool, said: str) -> None:
    """Round 2 would be chosen, as one that round 1 is not better than beyond its error. So it stays in a study that an
    earlier version began."""
    row = row_with(0.7, validation_accuracy=alone)
    assert row.frozen is not None
    row = replace(row, frozen=replace(row.frozen, keeps_best=keeps_best))
    rounds = [round_of(number, {"selection_score": score, "selection_error": 0.049})
              for number, score in ((0, 0.5), (1, 0.924), (2, 0.897))]
    found = choice_of(row, rounds, first_update=1)
    assert (found.round, found.labels_alone, found.text) == (round, labels_alone, said)
    assert handed_over_beside(row, rounds) is rounds[round]


SHORT = (0.5, 0.924, 0.896)
LATE = (0.5, 0.70, 0.70, 0.90, 0.90, 0.92, 0.91, 0.90, *[0.86] * 8, 0.87, 0.87, 0.86, 0.87, 0.88)
"""Of these 20 rounds the last is chosen, 0.87 with those around it; those around round 5, the best, have 0.906."""


@each_of(("scores", "alone", "round", "labels_alone", "said"), [
    (SHORT, 0.89, 2, False, "round 2, the last one: accuracy 89.6 % on 50 validation images (round 1 has 92.4 %, no"
                             " more than its standard error above)"),
    (SHORT, 0.909, 1, False, "round 1, accuracy 92.4 % on 50 validation images, instead of round 2, than which labels"
                             " alone score higher; the last round, 2, has 89.6 %"),
    (SHORT, 0.93, 2, True, "labels alone, without any silo: accuracy 93.0 % on 50 validation images, where round 2 has"
                           " 89.6 %"),
    (LATE, 0.869, 20, False, "round 20, the last one: accuracy 88.0 % on 50 validation images (round 5 has 92.0 %, no"
                             " more than its standard error above)"),
    (LATE, 0.875, 5, False, "round 5, accuracy 92.0 % on 50 validation images, instead of round 20, than which and"
                            " those around it labels alone score higher; the last round, 20, has 88.0 %"),
    (LATE, 0.91, 20, True, "labels alone, without any silo: accuracy 91.0 % on 50 validation images, where round 20"
                           " has 88.0 %, and 87.0 % with the rounds around it")])
def test_labels_alone_are_held_against_the_rounds_around_not_against_a_lucky_one(
        scores: tuple[float, ...], alone: float, round: int, labels_alone: bool, said: str) -> None:
    row = row_with(0.7, validation_accuracy=alone)
    assert row.frozen is not None
    row = replace(row, frozen=replace(row.frozen, keeps_best=True, compares_usual=True))
    rounds = [round_of(number, {"selection_score": score, "selection_error": 0.05})
              for number, score in enumerate(scores)]
    found = choice_of(row, rounds, first_update=1)
    assert (found.round, found.labels_alone, found.text) == (round, labels_alone, said)
    assert handed_over_beside(row, rounds) is rounds[round]


@each_of(("recall_of_other", "handed_over"), [(0.0, False), (0.01, True)])
def test_labels_alone_that_answer_one_class_to_everything_are_not_handed_over_for_its_recall(
        recall_of_other: float, handed_over: bool) -> None:
    row = row_with(0.7, measure="recall:b", **{"validation_recall/a": recall_of_other, "validation_recall/b": 1.0})
    assert row.frozen is not None
    row = replace(row, frozen=replace(row.frozen, keeps_best=True, compares_usual=True))
    found = choice_of(row, [round_of(1, {"selection_score": 0.9, "selection_error": 0.05})], first_update=1)
    assert found.labels_alone is handed_over


@each_of(("measured", "measure", "said"), [
    ({"validation_recall/a": 0.9, "selection_score": 0.8}, "balanced_accuracy",
     "round 1, the last one: balanced accuracy 80.0 % on 50 validation images of 1 of the 2 classes"),
    ({"validation_recall/a": 0.9}, "balanced_accuracy",
     "round 1, the last one: the 50 validation images have none of 'b', so balanced accuracy cannot choose"),
    ({"validation_recall/a": 0.9}, "recall:b",
     "round 1, the last one: the 50 validation images have none of 'b', so recall of b cannot choose"),
    ({"validation_recall/a": 0.0, "validation_recall/b": 1.0}, "recall:b",
     "round 1, the last one: on the 50 validation images no round answers 'b' more often to its images than to others,"
     " so its recall cannot choose"),
    ({"validation_recall/a": 0.9, "selection_score": 0.8}, "accuracy",
     "round 1, the last one: accuracy 80.0 % on 50 validation images"),
    ({"validation_recall/a": 0.9, "validation_recall/b": 0.0, "selection_score": 0.8}, "balanced_accuracy",
     "round 1, the last one: balanced accuracy 80.0 % on 50 validation images"),
    ({}, "balanced_accuracy", "round 1, the last one: validation images have not measured any round")])
def test_it_is_said_which_classes_validation_images_lack(measured: dict[str, float], measure: str, said: str) -> None:
    assert choice_of(row_with(None, measure=measure), [round_of(1, measured)], first_update=1).text == said


@each_of(("first_update", "said"), [
    (1, ": +20.0 points, 95 % interval +14.6 to +25.3, the silos have helped."),
    (2, "; no silo has part in round 1, so there is no gain."),
    (None, "; no silo has part in round 1, so there is no gain."),
])
def test_a_verdict_needs_an_update_of_a_silo_up_to_the_chosen_round(first_update: int | None, said: str) -> None:
    rounds = [round_of(0, {"selection_score": 0.1}), round_of(1, {"accuracy": 0.9, "selection_score": 0.8}),
              round_of(2, {"accuracy": 0.1, "selection_score": 0.2})]
    found = choice_of(row_with(0.7), rounds, first_update=first_update).conclusion
    assert found.endswith(f"On 400 test images round 1 has an accuracy of 90.0 % and labels alone 70.0 %{said}")


def test_where_labels_alone_are_handed_over_both_numbers_are_said_and_no_gain() -> None:
    found = choice(0.9, 0.7, validation_accuracy=0.81).conclusion
    assert found.endswith("round 1 has an accuracy of 90.0 % and labels alone 70.0 %; labels alone are handed over, so"
                          " there is no gain.")
