"""The plots of a report that only some studies have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.diagnostic_figures import (
    DIAGNOSTIC_FIGURES,
    describe_diagnostic,
    method_metrics,
    pseudo_label_counts,
)
from coordinator.figures import FIGURES, draw_figures
from coordinator.report_page import render_page
from coordinator.summary import StudySummary, audit, summarise
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
            metrics |= {"local_accuracy": 0.5, **{f"local_accuracy/{silo}": 0.4 + 0.1 * place
                                                  for place, silo in enumerate(SILOS)}}
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
