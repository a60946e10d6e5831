"""The plots of a report, each drawn for a light and a dark page. matplotlib is imported late: it is slow."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.describe import describe_bytes
from coordinator.states import RoundState, TaskState
from coordinator.summary import RoundSummary, StudySummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "DrawnFigure", "draw_figures"]

_SIZE_INCHES = (7.2, 3.9)
_DPI = 160
_MAX_LINES = 8
_MAX_MARKERS = 60


@dataclass(frozen=True, slots=True)
class _Theme:
    text: str
    faint: str
    grid: str
    paper: str
    accent: str
    other: str
    lines: tuple[str, ...]


# Okabe and Ito's palette, which colour-blind people can tell apart; brighter on dark paper.
_LIGHT = _Theme(text="#1f2933", faint="#5b6770", grid="#e3e7eb", paper="#ffffff", accent="#0072b2", other="#d55e00",
                lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fbf", "#5b6770"))
_DARK = _Theme(text="#e6eaee", faint="#9aa7b3", grid="#303a45", paper="#171d24", accent="#56b4e9", other="#f0954e",
               lines=("#56b4e9", "#f0954e", "#2fcf9d", "#e59cc4", "#f0e442", "#9ad1f5", "#b79cf0", "#9aa7b3"))


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
    """All plots of a study; one without data says so in the picture."""
    return tuple(DrawnFigure(name=name, title=title, description=_describe(name, study),
                             light_png=_draw(draw, study, _LIGHT), dark_png=_draw(draw, study, _DARK))
                 for name, (title, draw) in FIGURES.items())


def _draw(draw: Callable[[Axes, StudySummary, _Theme], bool], study: StudySummary, theme: _Theme) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 10, "font.family": "DejaVu Sans", "text.color": theme.text, "axes.labelcolor": theme.faint,
        "axes.edgecolor": theme.grid, "xtick.color": theme.faint, "ytick.color": theme.faint,
        "axes.grid": True, "grid.color": theme.grid, "axes.axisbelow": True, "axes.spines.top": False,
        "axes.spines.right": False, "figure.facecolor": theme.paper, "axes.facecolor": theme.paper,
        "legend.frameon": False, "lines.linewidth": 2.0, "axes.formatter.useoffset": False,
        "text.parse_math": False,  # a silo's name may hold a dollar sign
    }
    with rc_context(style):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if not draw(axes, study, theme):
            _draw_nothing(figure, axes, theme)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _draw_nothing(figure: Figure, axes: Axes, theme: _Theme) -> None:
    axes.set_axis_off()
    figure.text(0.5, 0.5, "Nothing to plot yet", ha="center", va="center", color=theme.faint, fontsize=13)


def _accuracy_by_round(axes: Axes, study: StudySummary, theme: _Theme) -> bool:
    measured = _measured(study)
    if not measured:
        return False
    _accuracy_line(axes, [entry.number for entry in measured], measured, study, theme)
    axes.set_xlabel("round (0: the coordinator alone, before any silo has worked)")
    _whole_numbers(axes)
    return True


def _accuracy_by_bytes(axes: Axes, study: StudySummary, theme: _Theme) -> bool:
    measured = _measured(study)
    if not measured or study.traffic.wire == 0:
        return False
    spent = _cumulative_wire(study)
    unit, name = _unit(max(spent.values()))
    _accuracy_line(axes, [spent[entry.number] / unit for entry in measured], measured, study, theme)
    axes.set_xlabel(f"wire bytes so far, both ways ({name}{', estimated' if study.traffic.estimated else ''})")
    return True


def _accuracy_line(axes: Axes, xs: list[float] | list[int], measured: list[RoundSummary], study: StudySummary,
                   theme: _Theme) -> None:
    values = [100 * entry.accuracy for entry in measured if entry.accuracy is not None]
    axes.plot(xs, values, color=theme.accent, marker="o" if len(xs) <= _MAX_MARKERS else "", markersize=4,
              label="federated")
    low, high = min(values), max(values)
    if study.labelled_only is not None:
        line = 100 * study.labelled_only
        axes.axhline(line, color=theme.other, linestyle=(0, (5, 3)), linewidth=1.8,
                     label=f"labels alone, {line:.1f} %")
        low, high = min(low, line), max(high, line)
    room = max(1.0, 0.08 * (high - low))
    axes.set_ylim(max(0.0, low - room), min(100.5, high + 1.6 * room))
    axes.annotate(f"{values[-1]:.1f} %", (xs[-1], values[-1]), xytext=(0, 7), textcoords="offset points", ha="right",
                  color=theme.accent, fontweight="bold")
    axes.set_ylabel("test accuracy (%)")
    _legend(axes)


def _cost_by_round(axes: Axes, study: StudySummary, theme: _Theme) -> bool:
    if study.traffic.wire == 0:
        return False
    numbers, traffic = [entry.number for entry in study.rounds], [entry.traffic for entry in study.rounds]
    unit, name = _unit(max(row.wire for row in traffic))
    parts = (
        ("down: coordinator to silos", theme.accent, [row.wire_down - row.overhead_down for row in traffic]),
        ("up: silos to coordinator", theme.other, [row.wire_up - row.overhead_up for row in traffic]),
        ("overhead: no silo's", theme.faint, [row.overhead for row in traffic]))
    bottom = [0.0] * len(numbers)
    for label, colour, sizes in parts:
        heights = [size / unit for size in sizes]
        axes.bar(numbers, heights, bottom=bottom, width=0.8, color=colour, label=label, linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("round")
    axes.set_ylabel(f"wire bytes ({name}{', estimated' if study.traffic.estimated else ''})")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.05 * max(bottom))
    axes.set_xlim(min(numbers) - 0.8, max(numbers) + 0.8)
    _legend(axes)
    _whole_numbers(axes)
    return True


def _label_ratio(axes: Axes, study: StudySummary, theme: _Theme) -> bool:
    rounds = [entry for entry in study.rounds if entry.label_ratio]
    if not rounds:
        return False
    silos = sorted({silo for entry in rounds for silo in entry.label_ratio}, key=str.encode)
    marker = "o" if len(rounds) <= _MAX_MARKERS else ""
    if len(silos) <= _MAX_LINES:
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
    axes.set_xlabel("round (x: the silo abstained)" if len(silos) <= _MAX_LINES and _has_abstention(study)
                    else "round")
    axes.set_ylabel("images with a pseudo-label (%)")
    _legend(axes)
    _whole_numbers(axes)
    return True


FIGURES: dict[str, tuple[str, Callable[[Axes, StudySummary, _Theme], bool]]] = {
    "accuracy_by_round": ("Accuracy by round", _accuracy_by_round),
    "accuracy_by_bytes": ("Accuracy by bytes on the wire", _accuracy_by_bytes),
    "cost_by_round": ("Cost by round", _cost_by_round),
    "label_ratio": ("Images that silos could label", _label_ratio),
}
"""File name -> title and how it is drawn; a function returns False when there is nothing to draw."""


# In words -------------------------------------------------------------------------------------------------------------


def _describe(name: str, study: StudySummary) -> str:
    measured = _measured(study)
    if name in ("accuracy_by_round", "accuracy_by_bytes"):
        if not measured or (name == "accuracy_by_bytes" and study.traffic.wire == 0):
            return "Nothing to plot yet: no round has been measured on test images."
        along = (f"from round {measured[0].number} to round {measured[-1].number}" if name == "accuracy_by_round"
                 else f"over {describe_bytes(study.traffic.wire)} on the wire")
        text = (f"Line: test accuracy {along}, from {_percent(measured[0].accuracy)} "
                f"to {_percent(measured[-1].accuracy)}.")
        if study.labelled_only is not None:
            text += f" Dashed line: labels alone reach {_percent(study.labelled_only)}."
        return text
    if name == "cost_by_round":
        if study.traffic.wire == 0:
            return "Nothing to plot yet: no bytes have been counted."
        return (f"Bars: wire bytes of each round; in all {describe_bytes(study.traffic.wire_down)} down and "
                f"{describe_bytes(study.traffic.wire_up)} up.")
    last = next((entry for entry in reversed(study.rounds) if entry.label_ratio), None)
    if last is None:
        return "Nothing to plot yet: no silo has reported a label ratio."
    values = last.label_ratio.values()
    return (f"Lines: share of a silo's images that got a pseudo-label, by round; in round {last.number} between "
            f"{_percent(min(values))} and {_percent(max(values))}.")


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _measured(study: StudySummary) -> list[RoundSummary]:
    return [entry for entry in study.rounds if entry.state is RoundState.COMPLETED and entry.accuracy is not None]


def _cumulative_wire(study: StudySummary) -> dict[int, int]:
    """Round -> wire bytes up to its end, those of failed rounds too."""
    total, result = 0, {}
    for entry in study.rounds:
        total += entry.traffic.wire
        result[entry.number] = total
    return result


def _unit(largest: float) -> tuple[float, str]:
    return next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= unit), (1.0, "B"))


def _legend(axes: Axes) -> None:
    """Above the axes, where it covers no line."""
    axes.figure.legend(loc="outside upper center", ncols=4, fontsize=9)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _has_abstention(study: StudySummary) -> bool:
    return any(entry.count(TaskState.ABSTAINED) for entry in study.rounds)
