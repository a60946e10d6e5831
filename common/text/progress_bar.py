"""A bar for one long step, such as an export, on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]

_MOST_CHARACTERS = 60
"""Of what is being done."""


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[float, str], None]]:
    """Gives a function that is told the share that is done, 0 to 1, and what is being done. The bar is gone at the end.

    Args:
        console: standard error by default.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _nothing
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24, complete_style="cyan"),
                  TaskProgressColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        step = bar.add_task("", total=1.0)

        def tell(share: float, text: str = "") -> None:
            bar.update(step, completed=share, description=text[:_MOST_CHARACTERS])

        yield tell


def _nothing(share: float, text: str = "") -> None:
    pass
