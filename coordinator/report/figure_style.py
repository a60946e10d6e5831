"""How plots look: colours for a light and a dark page, axes, legends, units.

Tests: tests/coordinator/report/test_report.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.monitoring.results.study_numbers import score_on_test
from semisilo.coordinator.monitoring.summary import RoundSummary, StudySummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DARK", "LIGHT", "MAX_LINES", "MAX_MARKERS", "Theme", "legend", "marker_of", "measured_rounds",
           "no_tick_above", "percent", "readable", "scored_rounds", "style_of", "unit_of", "whole_numbers",
           "wide_enough"]

MAX_LINES = 8
"""More silos than this become a mean and a range."""
MAX_MARKERS = 60
_FONT = "DejaVu Sans"
"""Comes with matplotlib. It has Latin, Greek, Cyrillic, Arabic and Hebrew letters."""
_OTHER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Source Han Sans SC", "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "IPAexGothic", "IPAGothic", "TakaoGothic", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali",
    "Noto Sans Tamil", "Noto Sans Telugu", "Noto Sans Thai", "Noto Sans Ethiopic", "FreeSans", "Unifont",
    "Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic", "Nirmala UI", "PingFang SC", "Hiragino Sans",
    "Apple SD Gothic Neo", "Arial Unicode MS")
"""With letters that the first one lacks, as systems bring them."""
_LEGEND_CHARACTERS = 112
"""That fit into the width of a plot, the line before each label counted as six."""


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of one page."""

    text: str
    faint: str
    grid: str
    paper: str
    accent: str
    other: str
    lines: tuple[str, ...]


# Okabe and Ito's palette, which colour-blind people can tell apart; brighter on dark paper.
LIGHT = Theme(text="#1f2933", faint="#5b6770", grid="#e3e7eb", paper="#ffffff", accent="#0072b2", other="#d55e00",
                lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fbf", "#5b6770"))
DARK = Theme(text="#e6eaee", faint="#9aa7b3", grid="#303a45", paper="#171d24", accent="#56b4e9", other="#f0954e",
               lines=("#56b4e9", "#f0954e", "#2fcf9d", "#e59cc4", "#f0e442", "#9ad1f5", "#b79cf0", "#9aa7b3"))


def style_of(theme: Theme) -> Any:
    """matplotlib's settings for a plot on a page; to be in force while it is drawn."""
    return {
        "font.size": 10, "font.family": list(_fonts()), "text.color": theme.text, "axes.labelcolor": theme.faint,
        "axes.edgecolor": theme.grid, "xtick.color": theme.faint, "ytick.color": theme.faint,
        "axes.grid": True, "grid.color": theme.grid, "axes.axisbelow": True, "axes.spines.top": False,
        "axes.spines.right": False, "figure.facecolor": theme.paper, "axes.facecolor": theme.paper,
        "legend.frameon": False, "lines.linewidth": 2.0, "axes.formatter.useoffset": False,
        "text.parse_math": False,  # a silo's name may hold a dollar sign
    }


@cache
def _fonts() -> tuple[str, ...]:
    """Families in which letters are looked for, in order: one that is not installed would be named in a warning."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return (_FONT, *(name for name in _OTHER_FONTS if name in installed))


def readable(text: str, *, otherwise: str) -> str:
    """The text where this machine has a font for each of its letters, else what stands in its place: matplotlib would
    draw boxes, and print a warning for each of them."""
    from matplotlib.font_manager import findfont, get_font

    fonts = [get_font(findfont(family)) for family in _fonts()]
    return text if all(any(font.get_char_index(ord(letter)) for font in fonts) for letter in set(text)) else otherwise


def unit_of(largest: float) -> tuple[float, str]:
    """A unit of bytes for numbers up to `largest`, and its name."""
    return next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= unit), (1.0, "B"))


def legend(axes: Axes) -> None:
    """A legend above the axes, where it covers no line; in as many columns as fit."""
    _, labels = axes.get_legend_handles_labels()
    longest = max((len(label) for label in labels), default=1)
    columns = max(1, min(4, _LEGEND_CHARACTERS // (longest + 6)))
    axes.figure.legend(loc="outside upper center", ncols=columns, fontsize=9)


def no_tick_above(axes: Axes, full: float) -> None:
    """Leaves room above the largest value that there can be, and writes no larger one there."""
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= full * (1 + 1e-9)])
    axes.set_ylim(low, high)


def wide_enough(axes: Axes, percents: float = 5.0) -> None:
    """Widens an axis of percents from 0 to 100, so that a difference of nothing does not fill the picture, and has it
    show nothing that no share can be."""
    low, high = axes.get_ylim()
    low, high = max(low, -0.5), min(high, 100.5)
    if high - low < percents:
        middle = min(max((low + high) / 2, percents / 2), 100 - percents / 2)
        low, high = middle - percents / 2 - 0.5, middle + percents / 2 + 0.5
    axes.set_ylim(low, high)


def whole_numbers(axes: Axes) -> None:
    """Rounds have no halves."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def percent(value: float | None) -> str:
    """A share as text."""
    return "unknown" if value is None else describe_percentage(value)


def measured_rounds(study: StudySummary) -> list[RoundSummary]:
    """Committed rounds whose model was measured on test images."""
    return [entry for entry in study.rounds if entry.state is RoundState.COMPLETED
            and (entry.accuracy is not None or "auroc" in entry.metrics)]


def scored_rounds(study: StudySummary) -> list[tuple[RoundSummary, float]]:
    """Committed rounds with the study's measure of their model on test images, 0 to 1."""
    found = [(entry, score_on_test(entry.metrics, study.measure)) for entry in study.rounds
             if entry.state is RoundState.COMPLETED]
    return [(entry, score) for entry, score in found if score is not None]


def marker_of(points: int) -> str:
    """Dots, unless there are too many."""
    return "o" if points <= MAX_MARKERS else ""
