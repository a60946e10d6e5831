"""The plot of what each encoding saved: two bars for each, its bytes and what the same elements take dense.

Tests: tests/coordinator/report/test_diagnostic_figures.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semisilo.common.payload.usage import FRAMING, describe_encoding
from semisilo.common.text.describe import describe_bytes, describe_percentage
from semisilo.coordinator.ledger.encodings import EncodingUse
from semisilo.coordinator.monitoring.summary import StudySummary
from semisilo.coordinator.report.figure_style import Theme, legend, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["describe_encodings", "draw_encodings"]

_MOST_BARS = 9
_SMALLEST_SHARE = 0.002
"""Of the dense bytes of the largest: less would be a bar that nobody sees."""
_ARROWS = {"down": "↓", "up": "↑"}


def draw_encodings(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    """Bars of the encodings that carried most; False when there are none."""
    shown = _shown(study)
    if not shown:
        return False
    unit, name = unit_of(max(max(use.dense_bytes, use.bytes) for use in shown))
    ys = [float(y) for y in range(len(shown), 0, -1)]
    axes.barh([y + 0.2 for y in ys], [use.dense_bytes / unit for use in shown], height=0.36,
              color=theme.grid, label="the same elements, dense")
    axes.barh([y - 0.2 for y in ys], [use.bytes / unit for use in shown], height=0.36, color=theme.accent,
              label="what crossed")
    for y, use in zip(ys, shown, strict=True):
        if use.dense_bytes:
            axes.annotate(describe_percentage(use.bytes / use.dense_bytes, decimals=0),
                          (use.bytes / unit, y - 0.2), xytext=(4, 0), textcoords="offset points", va="center",
                          color=theme.text, fontsize=9)
    axes.set_yticks(ys, [f"{_ARROWS[use.direction]} {use.encoding}" for use in shown])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"payload bytes ({name}); ↓ to silos, ↑ from silos")
    axes.set_ylim(0.3, len(shown) + 0.7)
    legend(axes)
    return True


def describe_encodings(study: StudySummary) -> str:
    """The same in words."""
    words = {"down": "to silos", "up": "from silos"}
    lines = [f"{describe_encoding(use.encoding)} {words[use.direction]}: {describe_bytes(use.bytes)} instead of"
             f" {describe_bytes(use.dense_bytes)}" for use in _shown(study)]
    return f"Bars: payload bytes by encoding, and the same elements dense. {'; '.join(lines)}."


def _shown(study: StudySummary) -> list[EncodingUse]:
    uses = [use for use in study.encodings if use.encoding != FRAMING]
    if not uses:
        return []
    least = _SMALLEST_SHARE * max(use.dense_bytes for use in uses)
    uses = sorted((use for use in uses if max(use.dense_bytes, use.bytes) >= max(1, least)),
                  key=lambda use: -use.dense_bytes)[:_MOST_BARS]
    return sorted(uses, key=lambda use: (use.direction, -use.dense_bytes))
