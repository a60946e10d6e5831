"""What the export commands show at their end: the main facts as a small table, and where the files are.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from semisilo.common.measures.study_measure import ACCURACY, parse_measure
from semisilo.common.text.describe import (
    counted,
    describe_bytes,
    describe_metric,
    describe_percentage,
    describe_range,
)
from semisilo.coordinator.export.choose_model import BEST_ON_TEST
from semisilo.coordinator.ledger.records import LABELS_ALONE

if TYPE_CHECKING:
    from semisilo.coordinator.export.card import ModelCard  # needs torch

__all__ = ["show_export"]


def show_export(folder: Path, card: ModelCard, console: Console | None = None) -> None:
    """The main facts of the card, and where the files are."""
    console = console or Console(highlight=False)
    model, test, onnx, silos = card.model, card.test, card.onnx, card.data.silos
    which = "labels alone, without silos" if model.chosen == LABELS_ALONE else \
        f"round {model.round} of {model.planned_rounds} ({model.chosen})"
    rows = [("model", f"{model.network.name}, {which}"),
            *([("chosen", model.choice)] if model.choice else []),
            *([("trained on", f"{silos.took_part} of {counted(silos.of, 'silo')}")]
              if silos.of and model.chosen != LABELS_ALONE else [])]
    measure = parse_measure(model.measure)
    if test is None and (findings := card.findings) is not None:
        around = findings.interval_of(measure)
        between = "" if around is None else f" ({around.low:.3f} to {around.high:.3f})"
        rows += [(measure.title, f"{describe_metric(measure.metric, findings.value_of(measure))}{between} of"
                                 f" {findings.images} images"),
                 ("F1, macro, micro", f"{describe_percentage(findings.f1_macro)},"
                                      f" {describe_percentage(findings.micro.f1)}"),
                 ("exact match", describe_percentage(findings.exact_match)),
                 ("calibration error", f"{describe_percentage(findings.expected_error_macro)}, mean over classes"),
                 *([] if findings.expected_error_macro_with_scaling is None else
                   [("  with scaling", describe_percentage(findings.expected_error_macro_with_scaling))]),
                 ("thresholds", findings.thresholds_from)]
    elif test is None:
        rows.append((measure.title if card.multi_label else "accuracy", "not measured: no test images"))
    else:
        interval = describe_range(test.accuracy_interval.low, test.accuracy_interval.high)
        if measure != ACCURACY:
            around = test.interval_of(measure)
            between = "" if around is None else f" ({around.low:.3f} to {around.high:.3f})" if measure.is_area else \
                f" ({describe_range(around.low, around.high).removesuffix(' %')})"
            rows.append((measure.title, f"{describe_metric(measure.metric, test.value_of(measure))}{between}"))
        rows += [("accuracy", f"{describe_percentage(test.accuracy)} ({interval.removesuffix(' %')})"
                              f" of {test.images} images"),
                 *([] if measure.kind == "balanced_accuracy" else
                   [("balanced accuracy", describe_percentage(test.balanced_accuracy))]),
                 ("calibration error", describe_percentage(test.calibration.expected_error))]
        if test.calibration_with_temperature is not None:
            rows.append(("  with temperature",
                         f"{describe_percentage(test.calibration_with_temperature.expected_error)} at"
                         f" {test.temperature:.3g}"))
    if (at := card.operating_point) is not None:
        measured = at.validation if at.test is None else at.test
        where = "validation" if at.test is None else "test"
        rows.append(("operating point",
                     f"{at.point.describe()}: threshold {at.point.threshold:.4g}; on {where} images sensitivity"
                     f" {describe_percentage(measured.sensitivity)}, specificity"
                     f" {describe_percentage(measured.specificity)}"))
    if card.labelled_only is not None:
        alone = card.labelled_only
        told = [f"{measure.title} {describe_metric(measure.metric, alone.metrics[measure.metric])}"] \
            if measure != ACCURACY and measure.metric in alone.metrics else []
        if alone.accuracy is not None:
            told.append(f"{'accuracy ' if told else ''}{describe_percentage(alone.accuracy)}")
        rows.append(("labels alone", ", ".join(told)))
    if onnx is not None:
        rows.append(("ONNX", f"differs from the network by at most {onnx.largest_difference:.2g}"))
    rows += [(name, describe_bytes(each.bytes)) for name, each in card.files.items()]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    console.print(table)
    console.print(Text(f"Written: {folder}"), soft_wrap=True)
    if model.chosen == BEST_ON_TEST:
        console.print(Text("Chosen by the test images: they no longer measure this model. Measure it on others: --test"
                           " SOURCE.", "yellow"), soft_wrap=True)
    console.print(Text("Not for clinical use."), soft_wrap=True)
