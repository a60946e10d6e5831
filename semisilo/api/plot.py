"""The plots of runs and comparisons, in the style of the reports. matplotlib is imported late: it is slow.

Tests: tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from semisilo.common.errors import UsageError
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure
from semisilo.common.text.describe import describe_metric
from semisilo.coordinator.report.figure_style import (
    LIGHT,
    legend,
    marker_of,
    style_of,
    unit_of,
    whole_numbers,
    wide_enough,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture_uri", "plot_runs"]

_SIZE_INCHES = (7.2, 4.2)
_DPI = 130
_STYLES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1)), (0, (6, 2, 1, 2)))
"""Of lines, once the colours are used up."""


class PlottedRound(Protocol):
    """What a plot needs of a round."""

    @property
    def round(self) -> int:
        """Its number, 0 for the preparation."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its numbers, from 0 to 1 where they are plotted."""


class PlottedRun(Protocol):
    """What a plot needs of a run; `semisilo.api.results.Run` has it."""

    @property
    def simulated(self) -> bool:
        """Whether bytes are those of payloads, not of the wire."""

    @property
    def rounds(self) -> Sequence[PlottedRound]:
        """In order."""

    @property
    def completed(self) -> Sequence[PlottedRound]:
        """Those of them that count."""

    def bytes_so_far(self) -> Sequence[int]:
        """Bytes up to and with each of `rounds`: on the wire, or of payloads in a simulation."""


def plot_runs(groups: Sequence[tuple[str, Sequence[PlottedRun]]], *, by: Literal["round", "bytes"],
              labelled_only: float | None, measure: StudyMeasure = ACCURACY) -> Figure:
    """A line per group: the mean of a measure over runs, and a band from the lowest to the highest.

    Rounds that only some runs have measured are left out. By bytes, a round stands at the mean of the bytes so far.

    Args:
        labelled_only: the measure of the labels alone, 0 to 1, a dashed line; None where that was not trained.
        measure: what is drawn, on the test images; an AUROC from 0 to 1, all others in percent.
    Raises: UsageError for another axis, or when no run has such a number.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if by not in ("round", "bytes"):
        raise UsageError(f"by = {by!r}: is not an axis.", remedy='Choose "round" or "bytes".')
    drawn = [(label, _points(runs, by, measure.metric)) for label, runs in groups]
    full = 1 if measure.is_area else 100
    if not any(points for _, points in drawn):
        why = "there are no test images" if measure == ACCURACY else "no test images give it"
        raise UsageError(f"No run has {measure.with_article}: {why}.",
                         remedy='Give some: test="folder", or num_test="20%".')
    theme = LIGHT
    with rc_context(style_of(theme)):
        figure = _figure_class()(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        largest = max(x for _, points in drawn for x, *_ in points)
        unit, name = unit_of(largest) if by == "bytes" else (1.0, "")
        for index, ((label, points), (_, runs)) in enumerate(zip(drawn, groups, strict=True)):
            if not points:
                continue
            colour = theme.lines[index % len(theme.lines)]
            xs = [x / unit for x, *_ in points]
            axes.plot(xs, [full * mean for _, mean, _, _ in points], color=colour, marker=marker_of(len(xs)),
                      markersize=4, linestyle=_STYLES[index // len(theme.lines) % len(_STYLES)],
                      label=label if len(runs) == 1 else f"{label}, {len(runs)} seeds")
            if len(runs) > 1:
                axes.fill_between(xs, [full * low for _, _, low, _ in points], [full * high for *_, high in points],
                                  color=colour, alpha=0.15, linewidth=0)
        if labelled_only is not None:
            axes.axhline(full * labelled_only, color=theme.faint, linestyle=(0, (5, 3)), linewidth=1.8,
                         label=f"labels alone, {describe_metric(measure.metric, labelled_only)}")
        axes.set_ylabel(f"test {measure.title}{'' if full == 1 else ' (%)'}")
        if full == 100:
            wide_enough(axes)
        if by == "round":
            axes.set_xlabel("round")
            whole_numbers(axes)
        else:
            kind = "payload" if all(run.simulated for _, runs in groups for run in runs) else "wire"
            axes.set_xlabel(f"{kind} bytes so far, both ways ({name})")
        legend(axes)
        figure.draw_without_rendering()  # with this style, which later drawing would not have
    return figure


def picture_uri(figure: Figure) -> str:
    """A figure's picture as a data: address, for an <img>."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _figure_class() -> type[Figure]:
    """A figure that notebooks show also where pyplot was never imported."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png")
            return stream.getvalue()

    return Shown


def _points(runs: Sequence[PlottedRun], by: str, metric: str) -> list[tuple[float, float, float, float]]:
    """(x, mean, lowest, highest value) of every round that all runs have measured."""
    found = []
    curves = [[(each.round, each.metrics[metric]) for each in run.completed if metric in each.metrics] for run in runs]
    for number in sorted(set.intersection(*({round for round, _ in curve} for curve in curves))):
        values = [value for curve in curves for round, value in curve if round == number]
        spent = [so_far for run in runs for each, so_far in zip(run.rounds, run.bytes_so_far(), strict=True)
                 if each.round == number]
        x = float(number) if by == "round" else sum(spent) / len(spent)
        found.append((x, sum(values) / len(values), min(values), max(values)))
    return found
