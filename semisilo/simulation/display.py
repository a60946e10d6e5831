"""What `semisilo simulate` shows: a bar with rounds, accuracy, bytes and time left on a terminal, lines elsewhere.

Tests: tests/semisilo/simulation/test_simulate.py.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure
from semisilo.common.text.describe import describe_bytes, describe_metric, describe_seconds, describe_share
from semisilo.common.text.narrow_table import fitted
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import ENDED_ROUND, TaskState
from semisilo.coordinator.ledger.traffic import payload_bytes
from semisilo.coordinator.monitoring.results.study_numbers import (
    federated_test_score,
    measure_text,
    planned_rounds,
    score_on_test,
    seconds_left,
)
from semisilo.simulation.federation import SimulationWatcher
from semisilo.simulation.result import SimulationResult

__all__ = ["ConsoleWatcher", "show_result"]

_REFRESH_SECONDS = 0.25
_MOST_OF_THE_TIME = 0.03
"""Share of the time that looking into the ledger may take: with hundreds of rounds it takes longer."""


class ConsoleWatcher(SimulationWatcher):
    """Rounds as a bar on a terminal, as a line each elsewhere; says nothing more than the result when `quiet`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._bar: Progress | None = None
        self._told: int | None = None
        self._since_unix = time.time()
        """Before this call began: the round in which an earlier one was interrupted has waited since."""
        self._next = 0.0

    def step(self, text: str) -> None:
        """See `SimulationWatcher`."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
        """See `SimulationWatcher`."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._show(ledger, study, text, fraction)
        took = time.monotonic() - now
        self._next = now + max(_REFRESH_SECONDS, took / _MOST_OF_THE_TIME)

    def finished(self, ledger: Ledger, study: str) -> None:
        """See `SimulationWatcher`."""
        if not self._quiet:
            self._show(ledger, study, "", 1.0)

    def done(self) -> None:
        """See `SimulationWatcher`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
        rounds = ledger.rounds(study)
        planned = planned_rounds(ledger.study(study))
        if self._told is None:  # what an earlier call has done is not told again
            self._told = max((row.number for row in rounds if row.state in ENDED_ROUND), default=-1)
            if self._told > 0:
                self.step(f"going on after round {self._told}")
        left = seconds_left(rounds, planned=planned, now_unix=time.time(), since_unix=self._since_unix)
        spent, measure = payload_bytes(ledger, study), ledger.study(study).study_measure
        score = federated_test_score(rounds, measure)
        time_left = f"{describe_seconds(left)} left" if left else ""
        if not self._console.is_terminal:
            for row in rounds:
                if row.number > self._told and row.state in ENDED_ROUND:
                    self._told = row.number
                    found = [_named(each, value) for each in dict.fromkeys((measure, ACCURACY))
                             if (value := score_on_test(row.metrics, each)) is not None]
                    facts = [", ".join(found) or str(row.state),
                             f"payload {describe_bytes(spent)} so far", time_left]
                    self.step(f"round {row.number}/{planned}: {', '.join(fact for fact in facts if fact)}")
            return
        self._move_bar(ledger, study, rounds[-1].number if rounds else 0, planned=planned, text=text,
                       fraction=fraction,
                       facts="  ".join(fact for fact in (
                           "" if score is None else _named(measure, score),
                           describe_bytes(spent), time_left) if fact))

    def _move_bar(self, ledger: Ledger, study: str, number: int, *, planned: int, text: str, fraction: float,
                  facts: str) -> None:
        if self._bar is None:
            self._bar = Progress(SpinnerColumn(), TextColumn("{task.description}"),
                                 BarColumn(bar_width=24, complete_style="cyan", finished_style="green"),
                                 TextColumn("{task.fields[facts]}"), TextColumn("{task.fields[now]}", style="dim"),
                                 console=self._console, transient=True, auto_refresh=False)
            self._bar.add_task("", total=float(planned), facts="", now="")
            self._bar.start()
        row = ledger.last_round(study)
        answered, asked = 0, 0
        if row is not None and row.state not in ENDED_ROUND:
            states = ledger.task_states(study, row.number, row.phase)
            answered, asked = sum(state is not TaskState.OPEN for state in states.values()), len(states)
        part = (answered + (fraction if answered < asked else 0)) / asked if asked else 0.0
        done = float(number) if row is not None and row.state in ENDED_ROUND else max(0, number - 1) + min(1.0, part)
        silos = f", {answered} of {asked} silos" if asked else ""
        self._bar.update(self._bar.task_ids[0], description=f"round {number}/{planned}{silos}", completed=done,
                         facts=facts, now=text[:60], refresh=True)


def _named(measure: StudyMeasure, score: float) -> str:
    return f"{measure.title} {describe_metric(measure.metric, score, decimals=2)}"


def show_result(console: Console, result: SimulationResult, page: Path) -> None:
    """The outcome as a small table, and where its files are."""
    down = sum(each.payload_down for each in result.rounds)
    up = sum(each.payload_up for each in result.rounds)
    dense = sum(each.dense_bytes for each in result.rounds)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    rows = [("rounds", str(result.rounds[-1].round if result.rounds else 0)),
            ("payload down, up", f"{describe_bytes(down)}, {describe_bytes(up)}"),
            ("of dense", describe_share((down + up) / dense if dense else None)),
            ("from start to end", describe_seconds(result.seconds)), ("state (SHA-256)", result.digest[:16])]
    by_accuracy = result.choice.measure == str(ACCURACY)
    named = "" if by_accuracy else f"{result.choice.title} "
    for words, score in ((f"{result.shown.column} ({result.method})", result.test_score),
                         ("labels alone", result.labels_alone_test_score)):
        if score is not None:
            rows.insert(0, (words, f"{named}{describe_metric(result.choice.metric, score, decimals=2)}"))
    for name, value in rows:
        table.add_row(name, Text(value, "bold" if name.startswith("federated") else ""))
    console.print()
    console.print(table)
    if result.beside:
        beside = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in ("beside labels alone", result.shown.column, "labels alone"):
            beside.add_column(column, justify="left" if column.startswith("beside") else "right")
        for each in result.beside:
            if "/" in each.name:
                continue  # by class: in the report
            beside.add_row(each.words, measure_text(each, each.federated), measure_text(each, each.labels_alone))
        console.print()
        console.print(fitted(beside, console))
    console.print()
    choice = result.choice
    if said := choice.conclusion or (f"Model: {choice.text}" if choice.text else ""):
        console.print(Text(said), soft_wrap=True)
    console.print(Text(f"Report: {page}"), soft_wrap=True)
