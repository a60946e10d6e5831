"""Log lines above a live view: whole, each where it belongs, and none written into the picture.

Tests: tests/coordinator/monitoring/test_terminal.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from semisilo.common.text.logs import LineFormatter

__all__ = ["log_above"]


@contextmanager
def log_above(console: Console) -> Iterator[None]:
    """Lets log lines scroll by above the live view: handlers that write to a terminal give way for the time."""
    root = logging.getLogger()
    silenced = [handler for handler in root.handlers if isinstance(handler, logging.StreamHandler)
                and not isinstance(handler, logging.FileHandler) and _is_terminal(handler)]
    handler = _ConsoleHandler(console)
    for other in silenced:
        root.removeHandler(other)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for other in silenced:
            root.addHandler(other)


def _is_terminal(handler: logging.StreamHandler) -> bool:  # type: ignore[type-arg]
    return bool(getattr(handler.stream, "isatty", lambda: False)())


class _ConsoleHandler(logging.Handler):
    """Prints above the live view, in the format of the plain log; lines are not broken, so that they can be copied."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        self._console.print(Text(self.format(record), style), soft_wrap=True)
