"""Whose numbers a study shows: page, report, status, compare and conclusion give one verdict."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.common.measures.gain import describe_gain
from semisilo.coordinator.cli.status import render
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.cost_book import CostBook
from semisilo.coordinator.monitoring.facts import StudyDetail
from semisilo.coordinator.monitoring.results.comparison import ComparedStudy, compare_studies
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.summary import StudySummary, audit, summarise
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.report.figure_style import LIGHT
from semisilo.coordinator.report.figures import FIGURES, describe_figure
from semisilo.coordinator.report.page import render_page
from semisilo.coordinator.report.report import write_report
from tests.coordinator.ledger_fixture import Filled, add_study, fill_study

ALONE = 0.8
ROUNDS: Mapping[int, tuple[float, float]] = {0: (0.5, 0.5), 1: (0.9, 0.9), 2: (0.7, 0.7)}
"""Round -> on the test images, on the validation images: the first is chosen, the last is below labels alone."""


def study(tmp_path: Path, *, rounds: Mapping[int, tuple[float, float]] = ROUNDS, alone: float | None = None,
          complete: bool = True) -> Filled:
    """A study of two rounds whose measures are set to these, and another to compare it with.

    Args:
        alone: of labels alone on the validation images.
    """
    filled = fill_study(tmp_path / "hub", rounds=2 if complete else 3, done=2, collecting=not complete)
    ledger, row = filled.ledger, filled.ledger.study("first")
    assert row.frozen is not None
    assert row.baseline is not None
    validation = {} if alone is None else {"validation_accuracy": alone}
    ledger.set_study_facts("first", frozen=replace(row.frozen, num_validation=100), baseline=replace(
        row.baseline, metrics={"accuracy": ALONE, "recall/0": 0.75, **validation}, model_digest="d"))
    with ledger.transaction() as db:
        for number, (test, score) in rounds.items():
            db.execute("UPDATE round SET metrics_json = ? WHERE study = 'first' AND number = ?", (
                f'{{"accuracy":{test},"selection_error":0.03,"selection_score":{score}}}', number))
    add_study(filled, "second", rounds=2, done=2)
    return filled


class Told:
    """What all readers say of the study."""

    def __init__(self, filled: Filled) -> None:
        ledger, costs = filled.ledger, CostBook()
        costs.refresh(ledger)
        self.summary: StudySummary = summarise(ledger, "first")
        self.report = " ".join(re.sub("<[^>]*>", " ", render_page(
            federation="f", address="a:1", study=self.summary, silos=filled.roster.silos(), figures=(),
            audit=audit(ledger, "first"), state_digest="")).split())
        reader = PageReader(PageSource(federation="f", address="a:1", ledger=filled.federation.ledger, read_only=True),
                            ledger)
        self.page: StudyDetail = reader.study("first")
        self.line = next(each for each in reader.federation(None).studies if each.name == "first")
        names = ("first", "second")
        self.compared: ComparedStudy = compare_studies(ledger, names, now_unix=time.time(), costs={
            name: costs.study(name) for name in names}).studies[0]
        facts = gather(filled.federation, ledger, None)
        self.status = next(each for each in facts.studies if each.name == "first")
        text = StringIO()
        render(Console(file=text, width=1000), replace(facts, studies=(self.status,)))
        self.terminal = text.getvalue()

    def agree(self) -> None:
        """Every reader has the same number, the same gain and the same reason for none."""
        scores = {self.summary.test_score, self.page.test_score, self.line.test_score, self.compared.score,
                  self.status.test_score}
        assert len(scores) == 1, scores
        gain = self.summary.gain
        said = "" if gain is None else describe_gain(gain)
        assert ", ".join(filter(None, (self.page.gain_text, self.page.gain_interval_text, self.page.gain_verdict))) \
            == said
        assert said.startswith(self.compared.gain)
        assert bool(self.compared.gain) is (gain is not None)
        assert {self.page.no_gain, self.compared.no_gain, self.status.no_gain} == {self.summary.shown.no_gain}
        assert {self.page.numbers_of, self.compared.numbers_of, self.status.numbers_of} == {self.summary.shown.words}
        assert self.summary.beside == self.page.beside == self.status.beside
        if self.summary.choice.conclusion:
            assert said in self.summary.choice.conclusion
            assert self.summary.choice.conclusion == self.page.choice.conclusion == self.status.choice.conclusion


def test_once_a_study_is_over_all_speak_of_the_round_that_is_handed_over(tmp_path: Path) -> None:
    told = Told(study(tmp_path))
    told.agree()
    assert (told.summary.test_score, told.summary.gain is not None) == (0.9, True)
    assert told.summary.shown.words == "round 1, which is handed over"
    for text in (told.report, told.summary.choice.conclusion, told.terminal, told.page.gain_verdict):
        assert "the silos have helped" in text
        assert "the silos have not helped" not in text
    assert "Federated, round 1" in told.report
    assert "round 1, which is handed over; test images: 355" in told.report
    assert "federated, round 1" in told.terminal


def test_while_it_runs_they_speak_of_the_last_round_and_say_so(tmp_path: Path) -> None:
    told = Told(study(tmp_path, complete=False))
    told.agree()
    assert told.summary.test_score == 0.7
    assert told.summary.shown.words == "round 2, the last one so far"
    assert "round 2, the last one so far; test images: 355" in told.report
    assert "numbers of first: those of round 2, the last one so far" in told.terminal
    assert told.page.gain_verdict == "the silos have not helped"


def test_where_labels_alone_are_handed_over_there_is_no_gain_and_their_classes_are_shown(tmp_path: Path) -> None:
    told = Told(study(tmp_path, alone=0.95))
    told.agree()
    assert told.summary.choice.labels_alone
    assert (told.summary.gain, told.summary.shown.no_gain) == (None, "labels alone are handed over")
    for text in (told.report, told.terminal):
        assert "labels alone are handed over" in text
        assert "the silos have" not in text
    assert told.summary.by_class == told.page.by_class
    found = told.summary.by_class
    assert found is not None
    assert (found.labels_alone, found.handed_over, found.confusion, found.classes[0].recall) == (True, True, (), 0.75)
    assert "The model of labels alone, which is handed over, on the test images" in told.report


def test_without_their_numbers_by_class_those_of_the_round_do_not_pass_for_what_is_handed_over(tmp_path: Path) -> None:
    filled = study(tmp_path, alone=0.95)
    row = filled.ledger.study("first")
    assert row.baseline is not None
    filled.ledger.set_study_facts("first", baseline=replace(row.baseline, metrics={
        "accuracy": ALONE, "validation_accuracy": 0.95}))
    found = summarise(filled.ledger, "first").by_class
    assert found is not None
    assert (found.labels_alone, found.round, found.handed_over) == (False, 1, False)


def test_while_a_study_runs_labels_alone_that_score_higher_leave_no_round_handed_over(tmp_path: Path) -> None:
    told = Told(study(tmp_path, alone=0.95, complete=False, rounds={0: (0.5, 0.5), 1: (0.7, 0.7), 2: (0.9, 0.9)}))
    told.agree()
    assert told.summary.by_class is not None
    assert (told.summary.choice.round, told.summary.by_class.round, told.summary.by_class.handed_over) == (2, 2, False)


def test_of_a_round_without_any_silo_nobody_gives_a_verdict(tmp_path: Path) -> None:
    told = Told(study(tmp_path, rounds={0: (0.95, 0.95), 1: (0.6, 0.6), 2: (0.6, 0.6)}))
    told.agree()
    assert (told.summary.choice.round, told.summary.test_score) == (0, 0.95)
    assert told.summary.shown.no_gain == "no silo has part in round 0"
    for text in (told.report, told.terminal):
        assert "no silo has part in round 0" in text
        assert "the silos have" not in text
        assert "ound 0, without silos" in text, "the heading of its column was: federated, round 0"
    assert "Accuracy, without silos" in told.report


def test_where_the_gate_took_over_nothing_nobody_says_that_silos_have_helped(tmp_path: Path) -> None:
    filled = study(tmp_path)
    with filled.ledger.transaction() as db:
        db.execute("UPDATE round SET metrics_json = json_set(metrics_json, '$.accepted_step', 0.0) WHERE study ="
                   " 'first'")
    told = Told(filled)
    told.agree()
    assert (told.summary.gain, told.summary.shown.no_gain) == (None, "no silo has part in round 1")
    for text in (told.report, told.terminal, told.summary.choice.conclusion):
        assert "no silo has part in round 1" in text
        assert "the silos have" not in text


@pytest.mark.parametrize(("state", "over"), [
    (StudyState.STOPPED, True), (StudyState.FAILED, True), (StudyState.PAUSED, False)])
def test_a_study_is_over_however_it_has_ended(tmp_path: Path, state: StudyState, over: bool) -> None:
    filled = study(tmp_path, complete=False)
    filled.ledger.set_study_state("first", state, reason="")
    told = Told(filled)
    told.agree()
    assert told.summary.shown.is_over is over
    assert told.summary.test_score == (0.9 if over else 0.7)


def facts_of(filled: Filled) -> dict[str, str]:
    page = write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8")
    return {unescape(name): unescape(value) for name, value in re.findall(
        r"<tr>\s*<t[hd][^>]*>([^<]*state[^<]*)</t[hd]>\s*<td[^>]*>([^<]*)</td>", page, re.IGNORECASE)}


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_the_report_names_the_state_whose_model_is_handed_over_and_the_last_one_beside_it(tmp_path: Path) -> None:
    """It was that of the last round, and differed from the card's."""
    filled = study(tmp_path / "round")
    one, two = (filled.ledger.round("first", number).state_digest for number in (1, 2))
    assert facts_of(filled) == {
        "Model state (SHA-256)": one, "State after the last round, 2, whose model is not handed over": two}
    filled = study(tmp_path / "alone", alone=0.95)
    assert facts_of(filled) == {
        "Model state (SHA-256)": "d", "State after the last round, 2, whose model is not handed over": two}
    filled = study(tmp_path / "last", rounds={**ROUNDS, 2: (0.7, 0.95)})
    assert facts_of(filled) == {"Model state (SHA-256)": two}


def test_learning_curves_mark_the_round_that_is_handed_over(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    def said(filled: Filled, name: str) -> tuple[str, list[str]]:
        found = summarise(filled.ledger, "first")
        axes = Figure().add_subplot()
        assert FIGURES[name][1](axes, found, LIGHT)
        return describe_figure(name, found), [str(line.get_label()) for line in axes.lines]

    filled = study(tmp_path / "round")
    for name in ("accuracy_by_round", "accuracy_by_bytes"):
        text, lines = said(filled, name)
        assert "Ring: round 1, which is handed over, 90.0 %." in text
        assert "round 1, handed over, 90.0 %" in lines
        assert "labels alone, 80.0 %" in lines
    text, lines = said(study(tmp_path / "last", rounds={**ROUNDS, 2: (0.7, 0.95)}), "accuracy_by_round")
    assert "handed over" not in text + " ".join(lines), "its number stands beside the line"
    text, lines = said(study(tmp_path / "alone", alone=0.95), "accuracy_by_round")
    assert "labels alone reach 80.0 %. They are handed over." in text
    assert "labels alone, handed over, 80.0 %" in lines
    assert "Ring" not in text
