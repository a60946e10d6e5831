"""What a comparison says of runs, from numbers that stand here; whole comparisons are in test_simulate.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.api.results import Comparison, Round, Run
from semisilo.common.errors import UsageError
from semisilo.common.measures.gain import ImageCounts
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.studies.model_choice import ChoiceFacts
from tests.newcombe import newcombe

CHOICE = ChoiceFacts(measure="accuracy", metric="accuracy", title="accuracy", measure_reason="", num_validation=0,
                     round=1, last=1, score=None, error=None, last_score=None, labels_alone=False,
                     labels_alone_score=None, text="", conclusion="")
ALONE = {"accuracy": 0.8, "balanced_accuracy": 0.6, "auroc": 0.9, "recall/a": 0.9, "recall/b": 0.3}


def run(seed: int, recall: float, *, measure: str = "recall:b", label: str = "m", alone: bool = True,
        updates: int = 2) -> Run:
    metrics = {"accuracy": 0.85, "balanced_accuracy": (0.9 + recall) / 2, "recall/a": 0.9, "recall/b": recall}
    choice = CHOICE if measure == "accuracy" else replace(CHOICE, measure=measure, metric="recall/b",
                                                          title="recall of b")
    return Run(label=label, study="s", method="semifl", seed=seed, folder=Path(), state="completed", classes=("a", "b"),
               rounds=(Round(round=1, state="completed", accuracy=0.85, balanced_accuracy=metrics["balanced_accuracy"],
                             label_ratio=None, payload_down=1, payload_up=1, wire_down=None, wire_up=None,
                             dense_bytes=4, seconds=1.0, metrics=metrics, updates=updates),),
               labelled_only_accuracy=0.8 if alone else None, labelled_only=ALONE if alone else {}, digest="",
               dense_bytes=4, silos=(), choice=choice, test_images=ImageCounts(100, (80, 20)))


def comparison(*runs: Run) -> Comparison:
    return Comparison(runs=runs)


def test_runs_are_compared_by_their_studies_measure_with_the_accuracy_beside() -> None:
    (found,) = comparison(run(1, 0.7), run(2, 0.8)).summary()
    assert (found.measure, found.labelled_only_score, found.labelled_only) == ("recall:b", 0.3, 0.8)
    assert found.test_score == pytest.approx(0.75)
    assert found.gain == pytest.approx(0.45)
    ends = [newcombe(14, 6, 20), newcombe(16, 6, 20)]
    assert found.gain_interval is not None
    assert found.gain_interval.low == pytest.approx((ends[0].low + ends[1].low) / 2)
    assert found.gain_interval.high == pytest.approx((ends[0].high + ends[1].high) / 2)
    text = str(comparison(run(1, 0.7), run(2, 0.8)))
    for words in ("recall of b", "accuracy", "75.00 %".removesuffix(" %"), "+45.00 points", "the silos have helped",
                  "labels alone: recall of b 30.00 %", describe_percentage(0.85, decimals=2).removesuffix(" %")):
        assert words in text, words


def test_a_gain_is_the_difference_of_what_stands_beside_it() -> None:
    """It was rounded by itself: 72.54 % and 67.38 % were +5.17 points apart."""
    each = replace(run(1, 0.7254166666666667), labelled_only={**ALONE, "recall/b": 0.67375})
    text = str(comparison(each))
    assert "72.54 %" in text
    assert "recall of b 67.38 %" in text
    assert "+5.16 points" in text


def test_a_curve_of_what_no_round_has_is_refused_with_the_nearest_name() -> None:
    assert run(1, 0.7).curve_of("balanced_accuracy") == ((1, pytest.approx(0.8)),)
    with pytest.raises(UsageError, match="No round has a number called 'balanced'") as caught:
        run(1, 0.7).curve_of("balanced")
    assert caught.value.remedy == "Did you mean 'balanced_accuracy'?"
    with pytest.raises(UsageError) as caught:
        run(1, 0.7).curve_of("seconds")
    assert caught.value.remedy == "There are: accuracy, balanced_accuracy, recall/a, recall/b."
    assert replace(run(1, 0.7), rounds=()).curve_of("balanced") == ()
    untested = replace(run(1, 0.7), rounds=tuple(replace(each, metrics={"loss": 1.0}) for each in run(1, 0.7).rounds))
    assert "<img" in run(1, 0.7)._repr_html_()
    assert "<img" not in untested._repr_html_(), "there is nothing to plot"


def test_a_difference_that_chance_explains_is_not_shown() -> None:
    found = comparison(run(1, 0.4))
    assert found.summary()[0].gain_verdict == "no difference shown"
    assert "no difference shown" in str(found)
    assert "no difference shown" in found._repr_html_()


def test_where_test_images_are_of_few_patients_the_table_says_how_many() -> None:
    worth = IndependentImages(5, 5.0, (4.0, 1.0), (1.0, 4.0))
    found = comparison(replace(run(1, 0.9), test_images=ImageCounts(100, (80, 20), independent=worth)))
    assert (found.summary()[0].gain_verdict, found.summary()[0].gain_patients) == ("no difference shown", 5)
    assert "by 5 patients" in " ".join(str(found).split())
    assert comparison(run(1, 0.9)).summary()[0].gain_verdict == "the silos have helped"


def test_each_run_is_compared_with_the_labels_alone_of_its_seed_whoever_has_trained_them() -> None:
    first, second = comparison(run(1, 0.7), run(1, 0.7, label="other", alone=False)).summary()
    assert first.gain_interval == second.gain_interval is not None
    lonely = comparison(run(1, 0.7), run(2, 0.7, alone=False)).summary()[0]
    assert lonely.gain_interval is None, "of a seed without them there is nothing to compare"
    assert lonely.gain_verdict == ""


def test_all_runs_of_a_seed_are_compared_with_the_labels_alone_that_took_the_most_steps() -> None:
    long = replace(run(1, 0.7, label="long"), labelled_only_steps=900)
    short = replace(run(1, 0.7, label="short"), labelled_only_steps=300, labelled_only={**ALONE, "recall/b": 0.1})
    for runs in ((long, short), (short, long)):
        assert [each.labelled_only_score for each in comparison(*runs).summary()] == [0.3, 0.3]


def test_studies_that_do_not_agree_on_a_measure_are_compared_by_accuracy() -> None:
    found = comparison(run(1, 0.7), run(2, 0.8, measure="accuracy")).summary()[0]
    assert (found.measure, found.test_score, found.gain) == ("accuracy", 0.85, pytest.approx(0.05))


def test_the_plot_draws_the_measure() -> None:
    (axes,) = run(1, 0.7).plot().axes
    assert axes.get_ylabel() == "test recall of b (%)"
    assert [list(line.get_ydata()) for line in axes.lines] == [[pytest.approx(70.0)], [pytest.approx(30.0)] * 2]


def test_the_note_says_each_measure_of_the_labels_alone_once() -> None:
    assert str(comparison(run(1, 0.7))).count("balanced accuracy") == 1


def test_without_any_update_no_verdict_is_given() -> None:
    found = comparison(run(1, 0.7, updates=0))
    (summary,) = found.summary()
    assert (summary.gain, summary.gain_interval, summary.gain_verdict) == (None, None, "")
    assert summary.no_gain == "no silo has part in round 1"
    assert "no silo has part in round 1" in str(found)
    assert "the silos have" not in str(found)
    refused = run(1, 0.7)
    refused = replace(refused, rounds=tuple(replace(each, taken_in=False) for each in refused.rounds))
    assert refused.no_gain == "no silo has part in round 1", "the gate has accepted nothing of its updates"
    both = comparison(run(1, 0.7), run(2, 0.7, updates=0)).summary()[0]
    assert (both.gain, both.no_gain) == (None, "no silo has part in round 1 (1 of 2 runs)")


def test_a_study_that_is_over_is_compared_by_the_round_that_it_hands_over_and_by_none_where_labels_alone_are() -> None:
    chosen = run(1, 0.7)
    spoilt = replace(chosen.rounds[0], round=2, payload_down=0, payload_up=0, dense_bytes=0, metrics={
        **chosen.rounds[0].metrics, "recall/b": 0.1})
    over = replace(chosen, rounds=(*chosen.rounds, spoilt))
    assert comparison(over).summary() == comparison(chosen).summary()
    (running,) = comparison(replace(over, state="running")).summary()
    assert running.test_score == 0.1
    (alone,) = comparison(replace(over, choice=replace(over.choice, labels_alone=True))).summary()
    assert (alone.gain, alone.gain_verdict, alone.no_gain) == (None, "", "labels alone are handed over")
