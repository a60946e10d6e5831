"""Progress of simulations that are run from Python: a bar in a notebook or on a terminal, a line per run elsewhere.

Tests: tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

from semisilo.common.text.describe import describe_metric, describe_seconds
from semisilo.common.text.html import render_html
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import ENDED_ROUND
from semisilo.coordinator.monitoring.results.study_numbers import planned_rounds, score_on_test
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.simulation.federation import SimulationWatcher

__all__ = ["Shown", "Watching", "shown_for"]

_REFRESH_SECONDS = 0.25


class Shown(Protocol):
    """Where progress is shown."""

    def move(self, share: float, text: str) -> None:
        """Moves the bar to a share of all runs, 0 to 1."""

    def line(self, text: str) -> None:
        """A run is over."""

    def close(self) -> None:
        """Nothing more comes."""


class _Silent:
    def move(self, share: float, text: str) -> None:
        """See `Shown`."""

    def line(self, text: str) -> None:
        """See `Shown`."""

    def close(self) -> None:
        """See `Shown`."""


class _Lines(_Silent):
    """A line per run on standard error."""

    def line(self, text: str) -> None:
        """See `Shown`."""
        print(text, file=sys.stderr, flush=True)


class _Terminal:
    """A bar of rich on standard error; it goes when all is done."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

        self._bar = Progress(SpinnerColumn(), BarColumn(bar_width=24, complete_style="cyan"), TaskProgressColumn(),
                             TextColumn("{task.description}", markup=False), console=console, transient=True,
                             auto_refresh=False)
        self._step = self._bar.add_task("", total=1.0)
        self._bar.start()

    def move(self, share: float, text: str) -> None:
        """See `Shown`."""
        self._bar.update(self._step, completed=share, description=text[:90], refresh=True)

    def line(self, text: str) -> None:
        """See `Shown`."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See `Shown`."""
        self._bar.stop()


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the template shows in a notebook."""

    lines: tuple[str, ...]
    """One for each run that is over."""
    share: str
    """Of all runs, 0 to 1."""
    text: str
    """Of the run under way; empty when all is done, and then there is no bar."""


class _Notebook:
    """One output of a cell that changes in place: a bar of HTML, and a line for each run that is over."""

    def __init__(self, display: Any, html: Any) -> None:
        self._html = html
        self._lines: list[str] = []
        self._handle = display(html(self._page(0.0, "starting")), display_id=True)

    def _page(self, share: float, text: str) -> str:
        return render_html(__name__, _Cell(tuple(self._lines), f"{share:.4f}", text))

    def move(self, share: float, text: str) -> None:
        """See `Shown`."""
        self._handle.update(self._html(self._page(share, text)))

    def line(self, text: str) -> None:
        """See `Shown`."""
        self._lines.append(text)

    def close(self) -> None:
        """See `Shown`."""
        self._handle.update(self._html(self._page(1.0, "")))


def shown_for(progress: bool) -> Shown:
    """Where progress goes: nowhere, into the notebook's cell, onto the terminal, or as lines to standard error."""
    if not progress:
        return _Silent()
    interactive = sys.modules.get("IPython")  # never imported by us: where it is not loaded there is no notebook
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        return _Notebook(display, HTML)
    from rich.console import Console

    console = Console(stderr=True)
    return _Terminal(console) if console.is_terminal else _Lines()


class Watching(SimulationWatcher):
    """Tells of one run among several."""

    def __init__(self, shown: Shown, label: str, *, index: int, total: int) -> None:
        """`index` counts from 0."""
        self._shown = shown
        self._label = label
        self._index = index
        self._total = total
        self._next = 0.0
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        """See `SimulationWatcher`."""
        self._shown.move(self._index / self._total, f"{self._label}: {text}")

    def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
        """See `SimulationWatcher`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _REFRESH_SECONDS
        self._show(ledger, study, text)

    def finished(self, ledger: Ledger, study: str) -> None:
        """See `SimulationWatcher`."""
        measure = ledger.study(study).study_measure
        score = summarise(ledger, study).test_score
        said = "" if score is None else f"{measure.title} {describe_metric(measure.metric, score, decimals=2)}, "
        took = describe_seconds(time.monotonic() - self._started)
        self._shown.line(f"{self._label}: {said}{took} ({self._index + 1} of {self._total})")
        self._shown.move((self._index + 1) / self._total, self._label)

    def _show(self, ledger: Ledger, study: str, text: str) -> None:
        row, planned = ledger.last_round(study), max(1, planned_rounds(ledger.study(study)))
        number = 0 if row is None else row.number
        done = number if row is not None and row.state in ENDED_ROUND else max(0, number - 1)
        measure = ledger.study(study).study_measure
        score = None if row is None else score_on_test(row.metrics, measure)
        facts = [f"{self._label}: round {number}/{planned}",
                 "" if score is None else describe_metric(measure.metric, score),
                 text]
        self._shown.move((self._index + min(1.0, done / planned)) / self._total,
                         ", ".join(fact for fact in facts if fact))
