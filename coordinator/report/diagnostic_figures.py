"""Plots of a report that only some studies have: pseudo-labels by class and how right they are, recall, local accuracy,
what is forgotten, and the numbers of the method itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from semisilo.common.measures.study_measure import VALIDATION_PREFIX
from semisilo.common.methods.spec import MAX_COUNT
from semisilo.coordinator.monitoring import drift
from semisilo.coordinator.monitoring.results.study_numbers import MODEL_METRICS, share_in
from semisilo.coordinator.monitoring.summary import RoundSummary, StudySummary
from semisilo.coordinator.report.figure_style import (
    MAX_LINES,
    Theme,
    legend,
    marker_of,
    measured_rounds,
    percent,
    readable,
    whole_numbers,
    wide_enough,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DIAGNOSTIC_FIGURES", "describe_diagnostic", "method_metrics", "pseudo_label_counts"]

_RECALL = "recall/"
_AUROC = "auroc/"
_LOCAL = "local_accuracy"
_KNOWN = (*MODEL_METRICS, _LOCAL, "labelled_accuracy_before", "labelled_accuracy_after", "stationarity_gap",
          "stationarity_gradient", "stationarity_labels")
_MAX_CLASSES = 40
_REMEMBERED = {"labelled_accuracy": "at the coordinator", "labelled_accuracy_before": "at silos, before training",
               "labelled_accuracy_after": "at silos, after training"}
_GAP = {"stationarity_gap": "gap", "stationarity_gradient": "model: squared gradient",
        "stationarity_labels": "soft labels: squared change"}


def pseudo_label_counts(entry: RoundSummary, num_classes: int) -> dict[int, float]:
    """Label -> pseudo-labels of that class in a round, over all silos with an update; of the study's classes alone, and
    at no silo of more images than its update is from."""
    counts: dict[int, float] = {}
    for silo, metrics in entry.silo_metrics.items():
        for label, value in drift.pseudo_label_counts(metrics, num_classes=num_classes,
                                                      num_images=entry.examples.get(silo, MAX_COUNT)).items():
            counts[label] = counts.get(label, 0.0) + value
    return counts


def method_metrics(study: StudySummary) -> dict[str, list[tuple[int, float]]]:
    """Numbers of the method itself by name: (round, value) of each; what every method has is not among them."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in study.rounds:
        for name, value in entry.metrics.items():
            of_model = name in _KNOWN or name.startswith(VALIDATION_PREFIX)
            if not of_model and "/" not in name and math.isfinite(value):
                found.setdefault(name, []).append((entry.number, value))
    return {name: points for name, points in found.items() if len(points) > 1}


def _pseudo_label_classes(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    names = _class_names(study)
    counts = {entry.number: pseudo_label_counts(entry, len(names)) for entry in study.rounds}
    counts = {number: found for number, found in counts.items() if sum(found.values()) > 0}
    if not counts or len(names) > _MAX_CLASSES:
        return False
    numbers = sorted(counts)
    shares = [[100 * counts[number].get(label, 0.0) / sum(counts[number].values()) for number in numbers]
              for label in range(len(names))]
    _heat_map(axes, shares, numbers, names, theme, top=max(map(max, shares)), what="of the pseudo-labels (%)")
    return True


def _recall_by_class(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    return not _is_multi_label(study) and _by_class(axes, study, theme, prefix=_RECALL, what="recall (%)")


def _auroc_by_class(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    """Where images may have several labels or none: what a recall at 0.5 says hangs on the threshold."""
    return _is_multi_label(study) and _by_class(axes, study, theme, prefix=_AUROC, what="AUROC (hundredths)")


def _is_multi_label(study: StudySummary) -> bool:
    return study.row.frozen is not None and study.row.frozen.task == "multi_label"


def _by_class(axes: Axes, study: StudySummary, theme: Theme, *, prefix: str, what: str) -> bool:
    rounds = [entry for entry in measured_rounds(study) if any(name.startswith(prefix) for name in entry.metrics)]
    names = _class_names(study)
    if not rounds or not names or len(names) > _MAX_CLASSES:
        return False
    shares = [[100 * entry.metrics.get(prefix + name, math.nan) for entry in rounds] for name in names]
    _heat_map(axes, shares, [entry.number for entry in rounds], names, theme, top=100.0, what=what)
    return True


def _heat_map(axes: Axes, values: list[list[float]], numbers: list[int], names: tuple[str, ...], theme: Theme, *,
              top: float, what: str) -> None:
    """Rows are classes, columns rounds; the numbers stand in the cells where they fit."""
    axes.grid(visible=False)
    picture = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="cividis", vmin=0.0, vmax=max(top, 1e-9),
                          extent=(-0.5, len(numbers) - 0.5, len(names) - 0.5, -0.5))
    shown = [readable(name, otherwise=f"class {label}") for label, name in enumerate(names)]
    axes.set_yticks(range(len(names)), [name if len(name) <= 18 else f"{name[:17]}…" for name in shown])
    step = max(1, math.ceil(len(numbers) / 16))
    axes.set_xticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])
    axes.set_xlabel("round")
    axes.set_ylabel("class")
    bar = axes.figure.colorbar(picture, ax=axes, pad=0.02)
    bar.set_label(what)
    bar.outline.set_visible(False)
    if len(numbers) <= 16 and len(names) <= 12:
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                if math.isfinite(value):
                    axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7,
                              color="#000000" if value > 0.5 * top else "#ffffff")


def _pseudo_label_accuracy(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    drawn = False
    # The second may hide the first where all are kept, so the first is broader.
    for name, label, colour, width in (("pseudo_label_accuracy", "of all pseudo-labels", theme.other, 4.5),
                                       ("threshold_accuracy", "of those that were kept", theme.accent, 2.0)):
        points = _mean_over_silos(study, name)
        if points:
            axes.plot([number for number, _ in points], [100 * value for _, value in points], color=colour,
                      linewidth=width, marker=marker_of(len(points)), markersize=1.75 * width, label=label)
            drawn = True
    ratios = _mean_over_silos(study, "label_ratio")
    if drawn:
        axes.plot([number for number, _ in ratios], [100 * value for _, value in ratios], color=theme.faint,
                  linestyle=(0, (2, 2)), label="label ratio")
        axes.set_ylim(-3, 103)
        axes.set_xlabel("round")
        axes.set_ylabel("right, mean over silos (%)")
        legend(axes)
        whole_numbers(axes)
    return drawn


def _local_accuracy(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    rounds = [entry for entry in study.rounds if _LOCAL in entry.metrics]
    if not rounds:
        return False
    numbers = [entry.number for entry in rounds]
    own = [[100 * value for name, value in entry.metrics.items() if name.startswith(f"{_LOCAL}/")]
           or [100 * entry.metrics[_LOCAL]] for entry in rounds]
    axes.fill_between(numbers, [min(values) for values in own], [max(values) for values in own], color=theme.other,
                      alpha=0.2, linewidth=0, label="range over silos")
    axes.plot(numbers, [100 * entry.metrics[_LOCAL] for entry in rounds], color=theme.other,
              marker=marker_of(len(numbers)), markersize=3.5, label="local: mean over silos")
    common = [entry for entry in measured_rounds(study) if entry.number]
    if common:
        axes.plot([entry.number for entry in common], [100 * (entry.accuracy or 0.0) for entry in common],
                  color=theme.accent, marker=marker_of(len(common)), markersize=3.5, label="global")
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    wide_enough(axes)
    legend(axes)
    whole_numbers(axes)
    return True


def _forgetting(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    drawn = False
    lines = {label: _points(study, name) for name, label in _REMEMBERED.items()}
    for (label, points), colour in zip(lines.items(), theme.lines, strict=False):
        if points:
            axes.plot([number for number, _ in points], [100 * value for _, value in points], color=colour,
                      marker=marker_of(len(points)), markersize=3.5, label=label)
            drawn = True
    if drawn:
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy on labelled images (%)")
        wide_enough(axes)
        legend(axes)
        whole_numbers(axes)
    return drawn


def _stationarity(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    drawn = False
    for (name, label), colour, style in zip(_GAP.items(), (theme.accent, theme.other, theme.lines[2]),
                                            ("-", (0, (5, 2)), (0, (2, 2))), strict=True):
        points = [(number, value) for number, value in _points(study, name) if value > 0]  # 0 has no logarithm
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker=marker_of(len(points)),
                      markersize=3.5, label=label)
            drawn = True
    if drawn:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("round")
        axes.set_ylabel("distance from standing still")
        legend(axes)
        whole_numbers(axes)
    return drawn


def _of_the_method(axes: Axes, study: StudySummary, theme: Theme) -> bool:
    metrics = method_metrics(study)
    if not metrics:
        return False
    figure: Any = axes.figure
    axes.remove()
    shown = sorted(metrics.items())[:MAX_LINES]
    columns = min(4, math.ceil(len(shown) / 2) if len(shown) > 3 else len(shown))
    cells = figure.subplots(math.ceil(len(shown) / columns), columns, squeeze=False)
    for cell in cells.flat[len(shown):]:
        cell.remove()
    for (name, points), cell in zip(shown, cells.flat, strict=False):
        cell.plot(*zip(*points, strict=True), color=theme.accent, linewidth=1.6, marker=marker_of(3 * len(points)),
                  markersize=3)
        cell.set_title(name.replace("_", " "), fontsize=9, color=theme.text)
        cell.tick_params(labelsize=8)
        cell.margins(y=0.12)
        cell.locator_params(axis="y", nbins=4)
        whole_numbers(cell)
    figure.supxlabel("round", fontsize=10, color=theme.faint)
    return True


DIAGNOSTIC_FIGURES: dict[str, tuple[str, Callable[[Axes, Any, Theme], bool]]] = {
    "pseudo_label_classes": ("Classes of the pseudo-labels", _pseudo_label_classes),
    "pseudo_label_accuracy": ("How right the pseudo-labels are", _pseudo_label_accuracy),
    "recall_by_class": ("Recall of every class", _recall_by_class),
    "auroc_by_class": ("AUROC of every class", _auroc_by_class),
    "local_accuracy": ("Local and global accuracy", _local_accuracy),
    "forgetting": ("Labelled images: what is remembered", _forgetting),
    "stationarity": ("Stationarity gap", _stationarity),
    "method": ("Numbers of the method", _of_the_method),
}
"""File name -> title and how it is drawn; a function returns False when the study has no such numbers."""


def describe_diagnostic(name: str, study: StudySummary) -> str:
    """What a plot shows, with its last numbers, for those who cannot see it."""
    last = measured_rounds(study)[-1] if measured_rounds(study) else None
    if name == "pseudo_label_classes":
        names = _class_names(study)
        entry, counts = next((entry, counts) for entry in reversed(study.rounds)
                             if sum((counts := pseudo_label_counts(entry, len(names))).values()) > 0)
        total = sum(counts.values())
        shares = ", ".join(f"{names[label]} {percent(count / total)}" for label, count in sorted(counts.items()))
        return f"Heat map: share of each class among the pseudo-labels, by round. In round {entry.number}: {shares}."
    if name == "recall_by_class" and last is not None:
        recalls = ", ".join(f"{key.removeprefix(_RECALL)} {percent(value)}" for key, value in last.metrics.items()
                            if key.startswith(_RECALL))
        return f"Heat map: recall of each class, by round. In round {last.number}: {recalls}."
    if name == "auroc_by_class" and last is not None:
        areas = ", ".join(f"{key.removeprefix(_AUROC)} {value:.3f}" for key, value in last.metrics.items()
                          if key.startswith(_AUROC))
        return f"Heat map: AUROC of each class, by round. In round {last.number}: {areas}."
    if name == "pseudo_label_accuracy":
        ends = {key: _mean_over_silos(study, key) for key in ("pseudo_label_accuracy", "threshold_accuracy")}
        said = "; ".join(f"{key.replace('_', ' ')} {percent(points[-1][1])}" for key, points in ends.items() if points)
        return f"Lines: how many pseudo-labels are right, mean over silos, by round; at the end: {said}."
    if name == "local_accuracy":
        entry = next(entry for entry in reversed(study.rounds) if _LOCAL in entry.metrics)
        return (f"Lines: test accuracy of the silos' own models and of the aggregated one; in round {entry.number}: "
                f"{percent(entry.metrics[_LOCAL])} and {percent(entry.accuracy)}.")
    if name == "forgetting":
        return f"Lines: accuracy on the labelled images, by round; {_ends(study, _REMEMBERED, percent)}."
    if name == "stationarity":
        end = _ends(study, _GAP, "{:.3g}".format)
        return f"Lines, logarithmic: the stationarity gap and its parts, by round; {end}."
    said = "; ".join(f"{key.replace('_', ' ')} {points[-1][1]:.4g}" for key, points in
                     sorted(method_metrics(study).items()))
    return f"Lines: numbers of the method by round, each on a scale of its own. At the end: {said}."


def _ends(study: StudySummary, names: Mapping[str, str], written: Callable[[float], str]) -> str:
    """The last value of each metric that there is."""
    ends = [f"{label} {written(points[-1][1])}" for name, label in names.items() if (points := _points(study, name))]
    return f"at the end: {', '.join(ends)}"


def _points(study: StudySummary, name: str) -> list[tuple[int, float]]:
    """(round, value) of a metric of the round."""
    return [(entry.number, entry.metrics[name]) for entry in study.rounds if _is_number(entry.metrics, name)]


def _mean_over_silos(study: StudySummary, name: str) -> list[tuple[int, float]]:
    """(round, mean over the silos that sent it) of a metric that is a share."""
    points = []
    for entry in study.rounds:
        values = [value for metrics in entry.silo_metrics.values() if (value := share_in(metrics, name)) is not None]
        if values:
            points.append((entry.number, sum(values) / len(values)))
    return points


def _is_number(metrics: Mapping[str, object], name: str) -> bool:
    value = metrics.get(name)
    return isinstance(value, (int, float)) and math.isfinite(value)


def _class_names(study: StudySummary) -> tuple[str, ...]:
    return study.row.classes
