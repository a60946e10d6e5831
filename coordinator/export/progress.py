"""What the export commands show: a bar on a terminal while they work, then the result as a small table.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semisilo.common.text.describe import describe_bytes, describe_percentage, describe_range

if TYPE_CHECKING:
    from semisilo.coordinator.export.card import ModelCard  # needs torch, which the bar does without

__all__ = ["export_bar", "show_export"]


@contextmanager
def export_bar(console: Console | None = None) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error, if that is a terminal; gives a function that is told the share that is done, and what is
    being done."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        def nothing(share: float, text: str = "") -> None:
            pass

        yield nothing
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24, complete_style="cyan"),
                  TaskProgressColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        step = bar.add_task("", total=1.0)

        def tell(share: float, text: str = "") -> None:
            bar.update(step, completed=share, description=text[:60])

        yield tell


def show_export(folder: Path, card: ModelCard, console: Console | None = None) -> None:
    """The main facts of the card, and where the files are."""
    console = console or Console(highlight=False)
    model, test, onnx = card.model, card.test, card.onnx
    rows = [("model", f"{model.network.name}, round {model.round} of {model.planned_rounds} ({model.chosen})")]
    if test is None:
        rows.append(("accuracy", "not measured: no test images"))
    else:
        interval = describe_range(test.accuracy_interval.low, test.accuracy_interval.high)
        rows += [("accuracy", f"{describe_percentage(test.accuracy)} ({interval.removesuffix(' %')})"
                              f" of {test.images} images"),
                 ("balanced accuracy", describe_percentage(test.balanced_accuracy)),
                 ("calibration error", describe_percentage(test.calibration.expected_error))]
        if test.calibration_with_temperature is not None:
            rows.append(("  with temperature",
                         f"{describe_percentage(test.calibration_with_temperature.expected_error)} at"
                         f" {test.temperature:.3g}"))
    if card.labelled_only is not None:
        rows.append(("labels alone", describe_percentage(card.labelled_only.accuracy)))
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
    console.print(Text("Not for clinical use."), soft_wrap=True)
