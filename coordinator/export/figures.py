"""The reliability diagram of a model card: how often the model is right where it says how sure it is.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semisilo.common.measures.calibration import Calibration
from semisilo.common.measures.finding_calibration import FindingCalibration, ProbabilityBin
from semisilo.common.measures.findings import FindingsMeasures
from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.export.measures import Measures
from semisilo.coordinator.report.figure_style import Theme, legend
from semisilo.coordinator.report.figures import draw_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["finding_reliability_figure", "reliability_figure"]


def reliability_figure(measures: Measures) -> bytes:
    """Accuracy by confidence, and below how many images are how confident; two lines with a fitted temperature. PNG."""
    return draw_picture(lambda axes, _, theme: _draw(axes, measures, theme))


def finding_reliability_figure(measures: FindingsMeasures) -> bytes:
    """Where images may have several labels: how often a class is shown by its probability, all classes together; below
    how many answers have which probability. PNG."""
    return draw_picture(lambda axes, _, theme: _draw_findings(axes, measures, theme))


def _draw_findings(axes: Axes, measures: FindingsMeasures, theme: Theme) -> bool:
    plain = [each.calibration for each in measures.classes if each.calibration is not None]
    series = [("as it comes", plain, measures.expected_error_macro, theme.accent)]
    if measures.expected_error_macro_with_scaling is not None:
        fitted = [each.calibration_with_scaling or each.calibration for each in measures.classes]
        series.append(("fitted", [each for each in fitted if each is not None],
                       measures.expected_error_macro_with_scaling, theme.other))
    upper, lower = _halves(axes, theme, diagonal="as often as said")
    for index, (name, calibrations, error, colour) in enumerate(series):
        bins = _pooled(calibrations)
        upper.plot(*_points(bins), color=colour, marker="o", markersize=4.5,
                   label=f"{name}, mean ECE {describe_percentage(error)}")
        width = 100 / len(bins) / len(series) * 0.9
        lower.bar([100 * (each.low + each.high) / 2 + (index - (len(series) - 1) / 2) * width for each in bins],
                  [each.count for each in bins], width=width, color=colour, linewidth=0)
    upper.set_ylabel("images that show it (%)")
    lower.set_ylabel("answers")
    lower.set_xlabel("probability of a class (%)")
    legend(upper)
    return True


def _points(bins: Sequence[ProbabilityBin]) -> tuple[list[float], list[float]]:
    filled = [(each.probability, each.shown) for each in bins
              if each.probability is not None and each.shown is not None]
    return [100 * x for x, _ in filled], [100 * y for _, y in filled]


def _pooled(calibrations: Sequence[FindingCalibration]) -> list[ProbabilityBin]:
    """The bins of all classes together."""
    found = []
    for same in zip(*(each.bins for each in calibrations), strict=True):
        count = sum(each.count for each in same)
        found.append(ProbabilityBin(
            low=same[0].low, high=same[0].high, count=count,
            probability=sum(each.count * (each.probability or 0.0) for each in same) / count if count else None,
            shown=sum(each.count * (each.shown or 0.0) for each in same) / count if count else None))
    return found


def _halves(axes: Axes, theme: Theme, *, diagonal: str) -> tuple[Any, Any]:
    """The curve above and the counts below, of 0 to 100 %."""
    figure: Any = axes.figure
    axes.remove()
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 100], [0, 100], color=theme.faint, linestyle=(0, (4, 3)), linewidth=1.2, label=diagonal)
    upper.set_ylim(-3, 103)
    upper.set_xlim(0, 100)
    lower.grid(visible=False, axis="x")
    lower.yaxis.get_major_locator().set_params(integer=True)
    return upper, lower


def _draw(axes: Axes, measures: Measures, theme: Theme) -> bool:
    upper, lower = _halves(axes, theme, diagonal="as sure as right")
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
    upper.set_ylabel("accuracy (%)")
    lower.set_ylabel("images")
    lower.set_xlabel("confidence: probability of the predicted class (%)")
    legend(upper)
    return True
