"""The plots of a report, each drawn for a light and a dark page. matplotlib is imported late: it is slow.

Tests: tests/coordinator/report/test_report.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure
from semisilo.common.text.describe import describe_bytes, describe_metric
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.results.study_numbers import labels_alone_note, score_on_test
from semisilo.coordinator.monitoring.summary import RoundSummary, StudySummary
from semisilo.coordinator.report.diagnostic_figures import DIAGNOSTIC_FIGURES, describe_diagnostic
from semisilo.coordinator.report.encoding_figure import describe_encodings, draw_encodings
from semisilo.coordinator.report.figure_style import (
    DARK,
    LIGHT,
    MAX_LINES,
    MAX_MARKERS,
    Theme,
    legend,
    marker_of,
    measured_rounds,
    no_tick_above,
    percent,
    scored_rounds,
    style_of,
    unit_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "DrawnFigure", "describe_figure", "draw_figure", "draw_figures", "draw_picture"]

_SIZE_INCHES = (7.2, 3.9)
_DPI = 160


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """One plot, in words and pictures."""

    name: str
    """File name without the ending."""
    title: str
    description: str
    """What it shows, with its numbers, for those who cannot see it."""
    light_png: bytes
    dark_png: bytes


def draw_figures(study: StudySummary) -> tuple[DrawnFigure, ...]:
    """The plots of a study. One of `FIGURES` without data says so in the picture; a diagnostic that the study does not
    have is left out."""
    plots = []
    for name, (drawn_title, draw) in {**FIGURES, **_ENCODINGS, **DIAGNOSTIC_FIGURES}.items():
        light = _draw(draw, study, LIGHT)
        if light is None and name not in FIGURES:
            continue
        dark = _draw(draw, study, DARK)
        title = f"{study.measure.heading} by {_BY[name]}" if name in _BY else drawn_title
        description = (describe_figure(name, study) if name in FIGURES else describe_encodings(study)
                       if name in _ENCODINGS else describe_diagnostic(name, study))
        plots.append(DrawnFigure(name=name, title=title, description=description, light_png=light or _nothing(LIGHT),
                                 dark_png=dark or _nothing(DARK)))
    return tuple(plots)


def draw_figure(name: str, title: str, description: str, draw: Callable[[Axes, None, Theme], bool]) -> DrawnFigure:
    """A plot that does not come from the ledger; `draw` may put other axes in the place of those that it gets."""
    light, dark = _draw(draw, None, LIGHT), _draw(draw, None, DARK)
    assert light is not None
    assert dark is not None
    return DrawnFigure(name=name, title=title, description=description, light_png=light, dark_png=dark)


def draw_picture(draw: Callable[[Axes, None, Theme], bool]) -> bytes:
    """As PNG, for a file beside a page: in its light colours alone."""
    picture = _draw(draw, None, LIGHT)
    assert picture is not None
    return picture


def _nothing(theme: Theme) -> bytes:
    def draw(axes: Axes, study: None, theme: Theme) -> bool:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "Nothing to plot yet", ha="center", va="center", color=theme.faint, fontsize=13)
        return True

    picture = _draw(draw, None, theme)
    assert picture is not None
    return picture


def _draw(draw: Callable[[Axes, Any, Theme], bool], study: StudySummary | None, theme: Theme) -> bytes | None:
    """The picture as PNG; None when there is nothing to draw."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(style_of(theme)):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if not draw(axes, study, theme):
            return None
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _score_by_round(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    scored = scored_rounds(study)
    if not scored:
        return False
    _score_line(axes, [entry.number for entry, _ in scored], scored, study, theme, second=True)
    axes.set_xlabel("round (0: the coordinator alone, before any silo has worked)")
    whole_numbers(axes)
    return True


def _score_by_bytes(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    scored = scored_rounds(study)
    kind, spent = _spent(study)
    if not scored or not kind:
        return False
    unit, name = unit_of(max(spent.values()))
    _score_line(axes, [spent[entry.number] / unit for entry, _ in scored], scored, study, theme)
    axes.set_xlabel(f"{kind} bytes so far, both ways ({name}{', estimated' if study.traffic.estimated else ''})")
    return True


def _score_line(axes: Axes, xs: list[float] | list[int], scored: list[tuple[RoundSummary, float]], study: StudySummary,
                theme: Theme, *, second: bool = False) -> None:
    """The study's measure, in percent, an AUROC as it is; with `second` another number where there is one to see."""
    measure = study.measure
    full = 1 if measure.is_area else 100
    values = [full * score for _, score in scored]
    axes.plot(xs, values, color=theme.accent, marker=marker_of(len(xs)), markersize=4,
              label="federated")
    low, high = min(values), max(values)
    beside = _second_line(study) if second else None
    if beside is not None:
        points = [(number, full * share) for number, share in beside.points]
        axes.plot(*zip(*points, strict=True), color=theme.lines[2], linestyle=(0, (2, 1)), linewidth=1.6,
                  label=beside.title)
        low, high = min(low, *(value for _, value in points)), max(high, *(value for _, value in points))
    if (chosen := _handed_over(study)) is not None:
        place = next(index for index, (entry, _) in enumerate(scored) if entry.number == chosen[0])
        axes.plot([xs[place]], [values[place]], color=theme.accent, linestyle="none", marker="o", markersize=11,
                  markerfacecolor="none", markeredgewidth=1.8,
                  label=f"round {chosen[0]}, handed over, {describe_metric(measure.metric, chosen[1])}")
    if (alone := study.labels_alone_test_score) is not None:
        over = ", handed over" if study.choice.labels_alone else ""
        axes.axhline(full * alone, color=theme.other, linestyle=(0, (5, 3)), linewidth=1.8,
                     label=f"labels alone{over}, {describe_metric(measure.metric, alone)}")
        low, high = min(low, full * alone), max(high, full * alone)
    room = max(0.01 * full, 0.08 * (high - low))
    axes.set_ylim(max(0.0, low - room), min(1.005 * full, high + 1.6 * room))
    no_tick_above(axes, full)
    # Beside the axes, where no line goes; its place is made by the layout.
    axes.annotate(describe_metric(measure.metric, scored[-1][1]), (1, values[-1]), xycoords=("axes fraction", "data"),
                  xytext=(6, 0), textcoords="offset points", ha="left", va="center", color=theme.accent,
                  fontweight="bold", annotation_clip=False)
    unit = "" if full == 1 else " (%)"
    axes.set_ylabel(f"test {measure.title}{unit}")
    legend(axes)


def _cost_by_round(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    kind, _ = _spent(study)
    if not kind:
        return False
    numbers, traffic = [entry.number for entry in study.rounds], [entry.traffic for entry in study.rounds]
    wire = kind == "wire"
    unit, name = unit_of(max(row.wire if wire else row.payload for row in traffic))
    parts = [
        ("down: coordinator to silos", theme.accent,
         [row.wire_down - row.overhead_down if wire else row.payload_down for row in traffic]),
        ("up: silos to coordinator", theme.other,
         [row.wire_up - row.overhead_up if wire else row.payload_up for row in traffic])]
    if wire:
        parts.append(("overhead: no silo's", theme.faint, [row.overhead for row in traffic]))
    bottom = [0.0] * len(numbers)
    width = 0.8 if len(numbers) <= MAX_MARKERS else 1.0  # of very many the gaps would be a pattern of their own
    for label, colour, sizes in parts:
        heights = [size / unit for size in sizes]
        axes.bar(numbers, heights, bottom=bottom, width=width, color=colour, label=label, linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("round")
    axes.set_ylabel(f"{kind} bytes ({name}{', estimated' if study.traffic.estimated else ''})")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.05 * max(bottom))
    axes.set_xlim(min(numbers) - 0.8, max(numbers) + 0.8)
    legend(axes)
    whole_numbers(axes)
    return True


def _label_ratio(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    rounds = [entry for entry in study.rounds if entry.label_ratio]
    if not rounds:
        return False
    silos = sorted({silo for entry in rounds for silo in entry.label_ratio}, key=str.encode)
    marker = marker_of(len(rounds))
    alike = all(len(set(entry.label_ratio.values())) == 1 for entry in rounds)
    if len(silos) > 1 and alike and not _has_abstention(study):  # one line would hide the others
        common = [100 * next(iter(entry.label_ratio.values())) for entry in rounds]
        axes.plot([entry.number for entry in rounds], common, color=theme.accent, marker=marker, markersize=3.5,
                  label=f"the same at all {len(silos)} silos")
    elif len(silos) <= MAX_LINES:
        for silo, colour in zip(silos, theme.lines, strict=False):
            points = [(entry.number, 100 * entry.label_ratio[silo]) for entry in rounds if silo in entry.label_ratio]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3.5, label=silo)
            for entry in rounds:
                if entry.outcomes.get(silo) is TaskState.ABSTAINED and silo in entry.label_ratio:
                    axes.plot(entry.number, 100 * entry.label_ratio[silo], marker="x", markersize=9, color=colour,
                              markeredgewidth=2)
    else:
        numbers = [entry.number for entry in rounds]
        means = [100 * sum(entry.label_ratio.values()) / len(entry.label_ratio) for entry in rounds]
        axes.fill_between(numbers, [100 * min(entry.label_ratio.values()) for entry in rounds],
                          [100 * max(entry.label_ratio.values()) for entry in rounds], color=theme.accent, alpha=0.2,
                          linewidth=0, label=f"range of {len(silos)} silos")
        axes.plot(numbers, means, color=theme.accent, marker=marker, markersize=3.5, label="mean")
    axes.set_ylim(-4, 104)
    axes.set_xlabel("round (x: the silo abstained)" if len(silos) <= MAX_LINES and _has_abstention(study)
                    else "round")
    axes.set_ylabel("images with a pseudo-label (%)")
    legend(axes)
    whole_numbers(axes)
    return True


FIGURES: dict[str, tuple[str, Callable[[Axes, StudySummary, Theme], bool]]] = {
    "accuracy_by_round": ("Accuracy by round", _score_by_round),
    "accuracy_by_bytes": ("Accuracy by bytes", _score_by_bytes),
    "cost_by_round": ("Cost by round", _cost_by_round),
    "label_ratio": ("Images that silos could label", _label_ratio),
}
"""File name -> title and how it is drawn; a function returns False when there is nothing to draw."""
_BY = {"accuracy_by_round": "round", "accuracy_by_bytes": "bytes"}
"""Those that draw the study's measure, which their titles name; their files are called the same whatever it is."""
_ENCODINGS: dict[str, tuple[str, Callable[[Axes, StudySummary, Theme], bool]]] = {
    "encodings": ("What each encoding saved", draw_encodings)}


# In words -------------------------------------------------------------------------------------------------------------


def describe_figure(name: str, study: StudySummary) -> str:
    """What one of `FIGURES` shows, with its numbers."""
    if name in _BY:
        scored, measure = scored_rounds(study), study.measure
        kind, spent = _spent(study)
        if not scored or (name == "accuracy_by_bytes" and not kind):
            return "Nothing to plot yet: no round has been measured on test images."
        along = (f"from round {scored[0][0].number} to round {scored[-1][0].number}" if name == "accuracy_by_round"
                 else f"over {describe_bytes(max(spent.values()))} of {kind}")
        text = (f"Line: test {measure.title} {along}, from {describe_metric(measure.metric, scored[0][1])} "
                f"to {describe_metric(measure.metric, scored[-1][1])}.")
        if name == "accuracy_by_round" and (beside := _second_line(study)):
            text += f" Dotted line: {beside.title}, {percent(beside.points[-1][1])} at the end."
        if (chosen := _handed_over(study)) is not None:
            text += f" Ring: round {chosen[0]}, which is handed over, {describe_metric(measure.metric, chosen[1])}."
        if (alone := study.labels_alone_test_score) is not None:
            note = labels_alone_note(study.row)
            text += (f" Dashed line: labels alone reach {describe_metric(measure.metric, alone)}"
                     f"{note and f' ({note})'}.{' They are handed over.' * study.choice.labels_alone}")
        return text
    if name == "cost_by_round":
        kind, _ = _spent(study)
        if not kind:
            return "Nothing to plot yet: no bytes have been counted."
        traffic = study.traffic
        down, up = ((traffic.wire_down, traffic.wire_up) if kind == "wire"
                    else (traffic.payload_down, traffic.payload_up))
        return (f"Bars: {kind} bytes of each round; in all {describe_bytes(down)} down and "
                f"{describe_bytes(up)} up.")
    last = next((entry for entry in reversed(study.rounds) if entry.label_ratio), None)
    if last is None:
        return "Nothing to plot yet: no silo has reported a label ratio."
    values = last.label_ratio.values()
    return (f"Lines: share of a silo's images that got a pseudo-label, by round; in round {last.number} between "
            f"{percent(min(values))} and {percent(max(values))}.")


@dataclass(frozen=True, slots=True)
class _SecondLine:
    """What is drawn beside the study's measure."""

    title: str
    points: list[tuple[int, float]]
    """(round, share of 1)."""


def _second_line(study: StudySummary) -> _SecondLine | None:
    """Accuracy beside another measure; beside accuracy the balanced one, but where it never differs by a point, as with
    as many test images of every class."""
    by_accuracy = study.measure == ACCURACY
    other = StudyMeasure("balanced_accuracy") if by_accuracy else ACCURACY
    pairs = [(entry, score_on_test(entry.metrics, other)) for entry in measured_rounds(study)]
    points = [(entry.number, value) for entry, value in pairs if value is not None]
    if by_accuracy and not any(abs(value - (entry.accuracy or 0.0)) >= 0.01 for entry, value in pairs
                               if value is not None):
        return None
    return _SecondLine(other.title, points) if points else None


def _handed_over(study: StudySummary) -> tuple[int, float] | None:
    """(round, its measure on test images) of the model that is handed over, where that is not the last one measured,
    whose number stands beside the line."""
    scored = scored_rounds(study)
    if study.choice.labels_alone or not scored or scored[-1][0].number == study.choice.round:
        return None
    return next(((entry.number, score) for entry, score in scored if entry.number == study.choice.round), None)


def _spent(study: StudySummary) -> tuple[str, dict[int, int]]:
    """("wire" or "payload", round -> bytes up to its end, those of failed rounds too).

    Payload where nothing crossed a network, as in a simulation; ("", {}) where nothing was counted at all.
    """
    kind = "wire" if study.traffic.wire else "payload" if study.traffic.payload else ""
    total, result = 0, {}
    for entry in study.rounds if kind else ():
        total += entry.traffic.wire if kind == "wire" else entry.traffic.payload
        result[entry.number] = total
    return kind, result


def _has_abstention(study: StudySummary) -> bool:
    return any(entry.count(TaskState.ABSTAINED) for entry in study.rounds)
