"""What `semisilo predict` shows where an image may have several labels and the source knows them: class by class.

Tests: tests/semisilo/prediction/test_predict_findings.py.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from semisilo.common.measures.findings import FindingsMeasures
from semisilo.common.measures.independent_images import by_what
from semisilo.common.measures.intervals import Interval
from semisilo.common.text.describe import describe_metric, describe_percentage

__all__ = ["show_measures"]

_DASH = "–"


def show_measures(measures: FindingsMeasures, console: Console) -> None:
    """A row for each class, then macro and micro; below each number its interval of 95 %."""
    micro = measures.micro
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("class", "images", "AUROC", "average precision", "F1", "sensitivity", "specificity"):
        table.add_column(name, justify="left" if name == "class" else "right", min_width=len(name.split()[-1]))
    for each in measures.classes:
        table.add_row(Text(each.name), str(each.images), _area(each.auroc, each.auroc_interval),
                      _area(each.average_precision, each.average_precision_interval), _share(each.f1, each.f1_interval),
                      _share(each.sensitivity, each.sensitivity_interval),
                      _share(each.specificity, each.specificity_interval))
    table.add_row("macro", str(measures.images), _area(measures.auroc_macro, measures.auroc_macro_interval),
                  _area(measures.average_precision_macro, measures.average_precision_macro_interval),
                  _share(measures.f1_macro, measures.f1_macro_interval), Text(), Text())
    table.add_row("micro", str(measures.images), _area(micro.auroc, micro.auroc_interval),
                  _area(micro.average_precision, micro.average_precision_interval),
                  _share(micro.f1, micro.f1_interval), _share(micro.sensitivity, micro.sensitivity_interval),
                  _share(micro.specificity, micro.specificity_interval))
    console.print(table)
    by = by_what(measures.independent)
    console.print(Text(f"Below each number its 95 % interval, {by}. F1, sensitivity and specificity are at the"
                       f" thresholds. Exact match {describe_percentage(measures.exact_match)}, calibration error"
                       f" {describe_percentage(_error(measures))} (mean over classes).", "dim"), soft_wrap=True)


def _error(measures: FindingsMeasures) -> float | None:
    """Of the probabilities that are given out."""
    fitted = measures.expected_error_macro_with_scaling
    return measures.expected_error_macro if fitted is None else fitted


def _area(value: float | None, interval: Interval | None) -> Text:
    return _cell(describe_metric("auroc", value),
                 "" if interval is None else f"{interval.low:.2f}{_DASH}{interval.high:.2f}")


def _share(value: float | None, interval: Interval | None) -> Text:
    return _cell(describe_percentage(value),
                 "" if interval is None else f"{100 * interval.low:.1f}{_DASH}{100 * interval.high:.1f}")


def _cell(value: str, between: str) -> Text:
    return Text(f"{value}\n").append(between, "dim") if between else Text(value)
