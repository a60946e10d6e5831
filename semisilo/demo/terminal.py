"""What `semisilo demo` shows: its steps, a live line while it trains, and the result.

Tests: tests/semisilo/simulation/test_measuring.py.
"""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from semisilo.common.measures.gain import describe_gain
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.text.describe import (
    describe_bytes,
    describe_metric,
    describe_percentage,
    describe_seconds,
    describe_share,
)
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.monitoring.results.study_numbers import measure_text, score_on_test
from semisilo.coordinator.monitoring.summary import StudySummary
from semisilo.demo.demo import DemoResult, DemoWatcher

__all__ = ["ConsoleWatcher", "show_result"]

_SHOWN = ("balanced_accuracy", "auroc", "calibration_error")
_WAITING = {StudyState.QUEUED: "starting", StudyState.PREPARING: "training on labels",
            StudyState.WAITING: "waiting for silos"}


class ConsoleWatcher(DemoWatcher):
    """Steps as lines; the rounds as a bar on a terminal, as a line each elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._told = -1
        self._told_baseline = False

    def step(self, text: str) -> None:
        style = "dim" if text.startswith("$ ") else ""
        self._console.print(Text(text, style), soft_wrap=True)

    def progress(self, study: StudySummary) -> None:
        measure, alone = study.measure, study.labels_alone_test_score
        if alone is not None and not self._told_baseline:
            self._told_baseline = True
            self.step(f"labels alone reach {measure.with_article} of {alone:.3f}")
        if self._console.is_terminal:
            self._move_bar(study)
            return
        for entry in study.rounds:
            if entry.number > self._told and entry.state in (RoundState.COMPLETED, RoundState.FAILED):
                self._told = entry.number
                spent = sum(each.traffic.wire for each in study.rounds if each.number <= entry.number)
                found = {each.title: score for each in (measure, ACCURACY)
                         if (score := score_on_test(entry.metrics, each)) is not None}
                outcome = ", ".join(f"{title} {score:.3f}" for title, score in found.items()) or str(entry.state)
                self.step(f"round {entry.number}/{study.planned_rounds}: {outcome}, "
                          f"{describe_bytes(spent)} on the wire so far")

    def done(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _move_bar(self, study: StudySummary) -> None:
        if self._bar is None:
            # Not refreshed by a thread of its own: processes are forked from this one.
            self._bar = Progress(SpinnerColumn(), TextColumn("{task.description}"),
                                 BarColumn(bar_width=24, complete_style="cyan", finished_style="green"),
                                 TextColumn("{task.fields[facts]}"), TimeElapsedColumn(), console=self._console,
                                 transient=True, auto_refresh=False)
            self._bar.add_task("starting", total=study.planned_rounds, facts="")
            self._bar.start()
        number = study.rounds[-1].number if study.rounds else 0
        words = _WAITING.get(study.row.state, f"round {number}/{study.planned_rounds}")
        if study.completed_rounds == study.planned_rounds and study.labels_alone_test_score is None:
            words = "labels alone, to compare with"
        score = study.test_score
        facts = "" if score is None else f"{study.measure.title} {describe_metric(study.measure.metric, score)}  "
        self._bar.update(self._bar.task_ids[0], description=words, completed=study.completed_rounds,
                         facts=f"{facts}{describe_bytes(study.traffic.wire)}", refresh=True)


def show_result(console: Console, result: DemoResult) -> None:
    """The outcome as a small table, and where the report is."""
    share = result.wire_bytes / result.dense_bytes if result.dense_bytes else None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in (
            ("labels alone", describe_percentage(result.labelled_only_accuracy)),
            (f"{result.federated} ({result.method})", describe_percentage(result.accuracy)),
            *((each.words, f"{measure_text(each, each.federated)}, labels alone"
                           f" {measure_text(each, each.labels_alone)}")
              for each in result.beside if each.name in _SHOWN),
            *([] if result.gain is None else [
                (f"gain in {result.gain.measure.title}", describe_gain(result.gain))]),
            *([("gain", f"none: {result.no_gain}")] if result.no_gain else []),
            ("rounds", str(result.rounds)), ("silos", str(result.silos)),
            ("on the wire", describe_bytes(result.wire_bytes)), ("of dense", describe_share(share)),
            ("time", describe_seconds(result.seconds))):
        table.add_row(name, Text(value, "bold" if name.startswith("federated") else ""))
    console.print()
    console.print(table)
    console.print()
    if result.labelled_only_recipe:
        console.print(Text(f"Labels alone: {result.labelled_only_recipe}.", "dim"), soft_wrap=True)
    if result.gain is not None and result.gain.paired:
        console.print(Text("The gain's interval compares both models' answers to each test image.", "dim"),
                      soft_wrap=True)
    console.print(Text(f"Report: {result.report}"), soft_wrap=True)
    if result.kept is not None:
        hub = shlex.quote(str(result.kept / "coordinator"))
        console.print(Text(f"Everything stays in {result.kept}. To see the page again: coordinator page first --folder"
                           f" {hub}"), soft_wrap=True)
