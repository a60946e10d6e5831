"""The plots of a report that only some studies have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.summary import StudySummary, audit, summarise
from semisilo.coordinator.report.diagnostic_figures import (
    DIAGNOSTIC_FIGURES,
    describe_diagnostic,
    method_metrics,
    pseudo_label_counts,
)
from semisilo.coordinator.report.figure_style import legend, wide_enough
from semisilo.coordinator.report.figures import FIGURES, draw_figures
from semisilo.coordinator.report.page import render_page
from tests.coordinator.ledger_fixture import SILOS, fill_study


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> StudySummary:
    return summarise(fill_study(tmp_path_factory.mktemp("plain") / "fed", rounds=6).ledger, "first")


@pytest.fixture(scope="module")
def study(plain: StudySummary) -> StudySummary:
    """Six rounds of a simulation of ten classes: class 1 is overtaken by class 0, silo a has no metrics in round 2."""
    rounds = []
    for entry in plain.rounds:
        number = entry.number
        metrics = {**entry.metrics, "balanced_accuracy": 0.6, "labelled_accuracy": 1.0 - 0.02 * number,
                   "recall/0": 0.9, "recall/1": 0.1 * number, "correction_norm": 3.0 - 0.4 * number}
        silos = {}
        if number:
            metrics |= {"labelled_accuracy_before": 0.5, "labelled_accuracy_after": 0.4 + 0.05 * number,
                        "stationarity_gap": 10.0 ** -number, "stationarity_gradient": 10.0 ** -number,
                        "stationarity_labels": 0.0}
            metrics |= {"local_accuracy": 0.5, **{f"local_accuracy/{silo}": 0.4 + 0.1 * index
                                                  for index, silo in enumerate(SILOS)}}
            silos = {silo: {"label_ratio": 0.5, "pseudo_labels/0": 10.0 * number, "pseudo_labels/1": 30.0,
                            "pseudo_label_accuracy": 0.6 + 0.05 * number, "threshold_accuracy": 0.9}
                     for silo in SILOS}
        if number == 2:
            silos[SILOS[0]] = {}
        rounds.append(replace(entry, metrics=metrics, silo_metrics=silos))
    return replace(plain, rounds=tuple(rounds))


def test_a_study_without_such_numbers_has_no_such_plots(plain: StudySummary) -> None:
    assert [figure.name for figure in draw_figures(plain)] == list(FIGURES)


def test_a_study_with_all_numbers_has_all_plots_by_day_and_by_night(study: StudySummary) -> None:
    figures = draw_figures(study)
    assert [figure.name for figure in figures] == [*FIGURES, *DIAGNOSTIC_FIGURES]
    for figure in figures:
        assert figure.light_png[:4] == figure.dark_png[:4] == b"\x89PNG"
        assert figure.light_png != figure.dark_png
        assert len(figure.description) > 30


def test_pseudo_labels_of_a_round_add_up_over_silos(study: StudySummary) -> None:
    assert pseudo_label_counts(study.rounds[2]) == {0: 40.0, 1: 60.0}
    assert pseudo_label_counts(study.rounds[4]) == {0: 120.0, 1: 90.0}


def test_words_say_the_last_numbers(study: StudySummary) -> None:
    """Round 6: 180 of class 0, 90 of class 1; recall 0.9 and 0.6; correction 3 - 2.4."""
    assert "0 66.7 %, 1 33.3 %" in describe_diagnostic("pseudo_label_classes", study)
    assert "0 90.0 %, 1 60.0 %" in describe_diagnostic("recall_by_class", study)
    assert "pseudo label accuracy 90.0 %" in describe_diagnostic("pseudo_label_accuracy", study)
    assert "50.0 %" in describe_diagnostic("local_accuracy", study)
    assert "correction norm 0.6" in describe_diagnostic("method", study)
    assert "before training 50.0 %, at silos, after training 70.0 %" in describe_diagnostic("forgetting", study)
    assert "gap 1e-06" in describe_diagnostic("stationarity", study)


def test_balanced_accuracy_is_drawn_where_it_differs_by_a_point(study: StudySummary) -> None:
    """0.6 in every round, which is far from the accuracy of some."""
    by_round, by_bytes = draw_figures(study)[:2]
    assert "balanced accuracy, 60.0 % at the end" in by_round.description
    assert "balanced" not in by_bytes.description
    even = replace(study, rounds=tuple(replace(entry, metrics={**entry.metrics, "balanced_accuracy": entry.accuracy})
                                       for entry in study.rounds))
    assert "balanced" not in draw_figures(even)[0].description
    assert draw_figures(even)[0].light_png != by_round.light_png


def test_a_gap_of_nothing_has_no_place_on_a_logarithmic_axis(study: StudySummary) -> None:
    still = replace(study, rounds=tuple(
        replace(entry, metrics={name: 0.0 if name.startswith("stationarity") else value
                                for name, value in entry.metrics.items()}) for entry in study.rounds))
    assert "stationarity" not in [figure.name for figure in draw_figures(still)]


def test_silos_that_label_alike_are_one_line_unless_one_abstained(study: StudySummary) -> None:
    def picture(ratios: dict[str, float], outcome: TaskState) -> bytes:
        rounds = tuple(replace(entry, label_ratio=ratios if entry.number else {},
                               outcomes=dict.fromkeys(SILOS, outcome) if entry.number else {})
                       for entry in study.rounds)
        drawn = {each.name: each.light_png for each in draw_figures(replace(study, rounds=rounds))}
        return drawn["label_ratio"]

    alike = dict.fromkeys(SILOS, 0.0)
    assert picture(alike, TaskState.UPDATED) == picture(dict.fromkeys(reversed(SILOS), 0.0), TaskState.UPDATED)
    assert picture(alike, TaskState.ABSTAINED) != picture(alike, TaskState.UPDATED), "crosses must stay"


def test_a_legend_takes_as_many_columns_as_fit_and_an_axis_of_percents_is_never_narrow() -> None:
    from matplotlib.figure import Figure

    def columns(*labels: str) -> int:
        figure = Figure()
        axes = figure.add_subplot()
        for label in labels:
            axes.plot([1], [1], label=label)
        legend(axes)
        return int(figure.legends[0]._ncols)

    assert columns("a", "b", "c", "d") == 4
    assert columns("x" * 40, "y") == 2
    assert columns("x" * 200) == 1
    axes = Figure().add_subplot()
    axes.plot([1, 2], [99.9, 100.0])
    wide_enough(axes)
    low, high = axes.get_ylim()
    assert low < 95.1
    assert high > 100
    axes.set_ylim(0, 100)
    wide_enough(axes)
    assert axes.get_ylim() == (0, 100)


def test_numbers_of_the_method_are_those_that_no_other_plot_shows(study: StudySummary) -> None:
    assert set(method_metrics(study)) == {"correction_norm"}


def test_a_simulation_shows_payload_where_nothing_crossed_a_wire(plain: StudySummary, tmp_path: Path) -> None:
    without = replace(plain, traffic=replace(plain.traffic, wire_down=0, wire_up=0, overhead_down=0, overhead_up=0),
                      rounds=tuple(replace(entry, traffic=replace(entry.traffic, wire_down=0, wire_up=0,
                                                                  overhead_down=0, overhead_up=0))
                                   for entry in plain.rounds))
    by_bytes, cost = (figure for figure in draw_figures(without) if figure.name in ("accuracy_by_bytes",
                                                                                    "cost_by_round"))
    assert "of payload" in by_bytes.description
    assert cost.description.startswith("Bars: payload bytes")


def test_the_page_takes_the_new_plots(study: StudySummary, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=1)
    page = render_page(federation="f", address="a:1", study=study, silos=(), figures=draw_figures(study),
                       audit=audit(filled.ledger, "first"), state_digest="")
    for title, _ in DIAGNOSTIC_FIGURES.values():
        assert title in page
