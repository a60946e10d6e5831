"""The plots of a report that only some studies have."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.font_manager import get_font_names

from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.results.study_numbers import label_ratio_in
from semisilo.coordinator.monitoring.summary import StudySummary, audit, summarise
from semisilo.coordinator.report.diagnostic_figures import (
    DIAGNOSTIC_FIGURES,
    describe_diagnostic,
    method_metrics,
    pseudo_label_counts,
)
from semisilo.coordinator.report.figure_style import LIGHT, legend, no_tick_above, readable, style_of, wide_enough
from semisilo.coordinator.report.figures import FIGURES, DrawnFigure, describe_figure, draw_figures
from semisilo.coordinator.report.page import render_page
from tests.coordinator.ledger_fixture import SILOS, accuracy_after, fill_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


@pytest.fixture(scope="module")
def figures(study: StudySummary) -> tuple[DrawnFigure, ...]:
    """All there are, small: it is quicker, and reports of their true size are in test_report.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semisilo.coordinator.report.figures._DPI", 40)
        return draw_figures(study)


def empty_axes() -> Axes:
    from matplotlib.figure import Figure

    return Figure().add_subplot()


BY_AREA = "auroc_by_class"
"""Of studies whose images may have several labels, in the place of the recalls."""


def axes_of(name: str, study: StudySummary) -> Axes:
    """One plot before it becomes a picture, which is what takes the time."""
    axes = empty_axes()
    assert {**FIGURES, **DIAGNOSTIC_FIGURES}[name][1](axes, study, LIGHT)
    return axes


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_without_such_numbers_has_no_such_plots(plain: StudySummary) -> None:
    assert [figure.name for figure in draw_figures(plain)] == list(FIGURES)


@pytest.mark.slow
def test_a_study_with_all_numbers_has_all_plots_by_day_and_by_night(figures: tuple[DrawnFigure, ...]) -> None:
    assert [figure.name for figure in figures] == [*FIGURES, *(name for name in DIAGNOSTIC_FIGURES if name != BY_AREA)]
    for figure in figures:
        assert figure.light_png[:4] == figure.dark_png[:4] == b"\x89PNG"
        assert figure.light_png != figure.dark_png
        assert len(figure.description) > 30


def test_pseudo_labels_of_a_round_add_up_over_silos(study: StudySummary) -> None:
    assert pseudo_label_counts(study.rounds[2], 10) == {0: 40.0, 1: 60.0}
    assert pseudo_label_counts(study.rounds[4], 10) == {0: 120.0, 1: 90.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pseudo_labels/\u00b2", "pseudo_labels/99999999999", "pseudo_labels/10"])
def test_a_class_that_no_study_has_is_in_no_plot_whatever_a_ledger_holds(study: StudySummary, name: str) -> None:
    rounds = [replace(entry, silo_metrics={silo: {**metrics, name: 1.0}
                                           for silo, metrics in entry.silo_metrics.items()}) for entry in study.rounds]
    odd = replace(study, rounds=tuple(rounds))
    plain, = axes_of("pseudo_label_classes", study).images
    found, = axes_of("pseudo_label_classes", odd).images
    assert np.array_equal(np.asarray(found.get_array()), np.asarray(plain.get_array()))
    assert describe_diagnostic("pseudo_label_classes", odd) == describe_diagnostic("pseudo_label_classes", study)


def test_a_silo_counts_for_no_more_pseudo_labels_than_its_update_has_images(study: StudySummary) -> None:
    """The liar abstains in every other round: what it says then counts nothing."""
    liar, others = SILOS[0], SILOS[1:]
    rounds = [replace(entry, examples={**dict.fromkeys(others, 200), liar: 50 * (entry.number % 2)},
                      silo_metrics={**entry.silo_metrics, liar: {"pseudo_labels/3": 1e300, "pseudo_labels/1": 20.0}})
              for entry in study.rounds]
    assert pseudo_label_counts(rounds[4], 10) == {0: 40.0 * len(others), 1: 30.0 * len(others)}
    assert pseudo_label_counts(rounds[5], 10) == {0: 50.0 * len(others), 1: 30.0 * len(others) + 20.0, 3: 50.0}


@pytest.mark.parametrize(("value", "counts_as"), [(1.7e308, 1.0), (-1.7e308, 0.0), (7.0, 1.0)])
def test_a_share_is_between_nothing_and_all_whatever_a_ledger_holds(
        study: StudySummary, value: float, counts_as: float) -> None:
    def with_shares(share: float) -> StudySummary:
        return replace(study, rounds=tuple(replace(entry, silo_metrics={
            silo: {**metrics, "threshold_accuracy": share, "label_ratio": share}
            for silo, metrics in entry.silo_metrics.items()}) for entry in study.rounds))

    assert label_ratio_in({"label_ratio": value}) == counts_as
    assert (describe_diagnostic("pseudo_label_accuracy", with_shares(value))
            == describe_diagnostic("pseudo_label_accuracy", with_shares(counts_as)))
    drawn, expected = (axes_of("pseudo_label_accuracy", with_shares(share)).lines for share in (value, counts_as))
    assert all(np.array_equal(one.get_ydata(), other.get_ydata()) for one, other in zip(drawn, expected, strict=True))


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
    even = replace(study, rounds=tuple(replace(entry, metrics={**entry.metrics, "balanced_accuracy": entry.accuracy})
                                       for entry in study.rounds))

    def has_the_line(name: str, study: StudySummary) -> bool:
        lines = {str(line.get_label()): line for line in axes_of(name, study).lines}
        if "balanced accuracy" in lines:
            assert np.asarray(lines["balanced accuracy"].get_ydata()) == pytest.approx(60.0)
        return "balanced accuracy" in lines

    assert has_the_line("accuracy_by_round", study)
    assert "balanced accuracy, 60.0 % at the end" in describe_figure("accuracy_by_round", study)
    for name, other in (("accuracy_by_bytes", study), ("accuracy_by_round", even)):
        assert not has_the_line(name, other)
        assert "balanced" not in describe_figure(name, other)


def test_a_gap_of_nothing_has_no_place_on_a_logarithmic_axis(study: StudySummary) -> None:
    still = replace(study, rounds=tuple(
        replace(entry, metrics={name: 0.0 if name.startswith("stationarity") else value
                                for name, value in entry.metrics.items()}) for entry in study.rounds))
    assert axes_of("stationarity", study).get_yscale() == "log"
    _, draw = DIAGNOSTIC_FIGURES["stationarity"]
    assert not draw(empty_axes(), still, LIGHT)


def test_silos_that_label_alike_are_one_line_unless_one_abstained(study: StudySummary) -> None:
    def drawn(outcome: TaskState) -> tuple[list[str], int]:
        """The labels of the lines, and how many crosses there are."""
        rounds = tuple(replace(entry, label_ratio=dict.fromkeys(SILOS, 0.0) if entry.number else {},
                               outcomes=dict.fromkeys(SILOS, outcome) if entry.number else {})
                       for entry in study.rounds)
        lines = axes_of("label_ratio", replace(study, rounds=rounds)).lines
        crosses = [line for line in lines if line.get_marker() == "x"]
        return [str(line.get_label()) for line in lines if line not in crosses], len(crosses)

    assert drawn(TaskState.UPDATED) == ([f"the same at all {len(SILOS)} silos"], 0)
    assert drawn(TaskState.ABSTAINED) == (sorted(SILOS, key=str.encode), len(SILOS) * 6), "crosses must stay"


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
    for always, lowest, highest in ((100.0, 94.5, 100.5), (0.0, -0.5, 5.5)):
        axes = Figure().add_subplot()
        axes.plot([1, 2], [always, always])
        wide_enough(axes)
        low, high = axes.get_ylim()
        assert lowest <= low < high <= highest, "no share is above all of them, or below none"
        assert high - low > 5


def test_no_tick_says_more_than_there_can_be() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot([1, 2], [99.9, 100.0])
    axes.set_ylim(99, 100.5)
    assert max(axes.get_yticks()) > 100, "a control"
    no_tick_above(axes, 100)
    assert max(axes.get_yticks()) == pytest.approx(100)
    assert axes.get_ylim() == (99, 100.5)


def test_numbers_of_the_method_are_those_that_no_other_plot_shows(study: StudySummary) -> None:
    assert set(method_metrics(study)) == {"correction_norm"}


def test_a_simulation_shows_payload_where_nothing_crossed_a_wire(plain: StudySummary) -> None:
    without = replace(plain, traffic=replace(plain.traffic, wire_down=0, wire_up=0, overhead_down=0, overhead_up=0),
                      rounds=tuple(replace(entry, traffic=replace(entry.traffic, wire_down=0, wire_up=0,
                                                                  overhead_down=0, overhead_up=0))
                                   for entry in plain.rounds))
    assert axes_of("accuracy_by_bytes", without).get_xlabel().startswith("payload bytes")
    assert axes_of("cost_by_round", without).get_ylabel().startswith("payload bytes")
    assert "of payload" in describe_figure("accuracy_by_bytes", without)
    assert describe_figure("cost_by_round", without).startswith("Bars: payload bytes")
    assert describe_figure("cost_by_round", plain).startswith("Bars: wire bytes"), "the control"


def test_where_images_have_several_labels_classes_are_drawn_by_auroc_and_not_by_recall(study: StudySummary) -> None:
    assert study.row.frozen is not None
    several = replace(study, row=replace(study.row, frozen=replace(study.row.frozen, task="multi_label")),
                      rounds=tuple(replace(entry, metrics={**entry.metrics, **{
                          f"auroc/{name}": 0.75 for name in study.row.classes}}) for entry in study.rounds))
    values = np.asarray(axes_of(BY_AREA, several).images[0].get_array())
    assert set(values.ravel().tolist()) == {75.0}
    assert "0.750" in describe_diagnostic(BY_AREA, several)
    assert not DIAGNOSTIC_FIGURES["recall_by_class"][1](empty_axes(), several, LIGHT)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_the_page_takes_the_new_plots(study: StudySummary, tmp_path: Path) -> None:
    figures = draw_figures(study)
    filled = fill_study(tmp_path / "fed", rounds=1)
    page = render_page(federation="f", address="a:1", study=study, silos=(), figures=figures,
                       audit=audit(filled.ledger, "first"), state_digest="")
    for name, (title, _) in DIAGNOSTIC_FIGURES.items():
        assert (title in page) == (name != BY_AREA)


def test_the_measure_is_the_line_and_accuracy_the_second_where_there_is_room(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=4, measure="auroc")
    study = summarise(filled.ledger, "first")
    by_round = {str(line.get_label()): line for line in axes_of("accuracy_by_round", study).lines}
    assert list(by_round) == ["federated", "accuracy", "labels alone, 0.881"]
    assert np.asarray(by_round["federated"].get_ydata()) == pytest.approx([0.901, 0.902, 0.903, 0.904])
    assert np.asarray(by_round["accuracy"].get_ydata()) == pytest.approx([accuracy_after(each) for each in range(5)])
    assert axes_of("accuracy_by_round", study).get_ylabel() == "test AUROC"
    assert [str(line.get_label()) for line in axes_of("accuracy_by_bytes", study).lines] == [
        "federated", "labels alone, 0.881"]


def test_a_class_whose_letters_no_font_has_is_drawn_by_its_number_and_warns_nobody(study: StudySummary) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    strange = "\U000e1000"  # a letter that nobody has
    assert study.row.frozen is not None
    names = ("normal", strange, "пневмония", *study.row.classes[3:])
    drawn = replace(study, row=replace(study.row, frozen=replace(study.row.frozen, classes=names)))
    with warnings.catch_warnings(), rc_context(style_of(LIGHT)):
        warnings.simplefilter("error")
        axes = axes_of("pseudo_label_classes", drawn)
        FigureCanvasAgg(axes.figure).draw()  # type: ignore[arg-type]
        labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:4] == ["normal", "class 1", "пневмония", "3"]
    assert strange in describe_diagnostic("pseudo_label_classes", drawn)


def test_letters_are_looked_for_in_every_font_that_is_installed() -> None:
    assert readable("Läsion \u2211", otherwise="") == "Läsion \u2211"
    installed = set(get_font_names())
    fonts = style_of(LIGHT)["font.family"]
    assert fonts[0] == "DejaVu Sans"
    assert set(fonts) <= installed, "one that is not there is named in a warning of matplotlib"
