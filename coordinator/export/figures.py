"""The reliability diagram of a model card: how often the model is right where it says how sure it is.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semisilo.common.measures.calibration import Calibration
from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.export.measures import Measures
from semisilo.coordinator.report.figure_style import Theme, legend
from semisilo.coordinator.report.figures import DrawnFigure, draw_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["reliability_figure"]


def reliability_figure(measures: Measures) -> DrawnFigure:
    """Accuracy by confidence, and below how many images are how confident; two lines with a fitted temperature."""
    first = measures.calibration
    text = f"Expected calibration error {describe_percentage(first.expected_error)} over {measures.images} images"
    if measures.calibration_with_temperature is not None:
        after = measures.calibration_with_temperature.expected_error
        text += f", {describe_percentage(after)} at the temperature {measures.temperature:.3g}"
    return draw_figure("reliability", "Reliability", f"Lines: accuracy by confidence of the prediction. {text}.",
                       lambda axes, _, theme: _draw(axes, measures, theme))


def _draw(axes: Axes, measures: Measures, theme: Theme) -> bool:
    figure: Any = axes.figure
    axes.remove()
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 100], [0, 100], color=theme.faint, linestyle=(0, (4, 3)), linewidth=1.2, label="as sure as right")
    series: list[tuple[str, Calibration, str]] = [("as it comes", measures.calibration, theme.accent)]
    if measures.calibration_with_temperature is not None:
        series.append((f"temperature {measures.temperature:.3g}", measures.calibration_with_temperature, theme.other))
    for index, (name, calibration, colour) in enumerate(series):
        filled = [each for each in calibration.bins if each.count]
        xs = [100 * each.confidence for each in filled if each.confidence is not None]
        ys = [100 * each.accuracy for each in filled if each.accuracy is not None]
        upper.plot(xs, ys, color=colour, marker="o", markersize=4.5,
                   label=f"{name}, ECE {describe_percentage(calibration.expected_error)}")
        width = 100 / len(calibration.bins) / len(series) * 0.9
        lower.bar([100 * (each.low + each.high) / 2 + (index - (len(series) - 1) / 2) * width
                   for each in calibration.bins], [each.count for each in calibration.bins], width=width, color=colour,
                  linewidth=0)
    upper.set_ylim(-3, 103)
    upper.set_xlim(0, 100)
    upper.set_ylabel("accuracy (%)")
    lower.set_ylabel("images")
    lower.set_xlabel("confidence: probability of the predicted class (%)")
    lower.grid(visible=False, axis="x")
    lower.yaxis.get_major_locator().set_params(integer=True)
    legend(upper)
    return True
