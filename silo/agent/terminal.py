"""What the person at the silo sees: a live line and a bar on a terminal, one plain line per event elsewhere.

Tests: tests/silo/agent/test_agent.py.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from semisilo.common.text.describe import describe_bytes, describe_seconds
from semisilo.common.text.logs import printable, without_secrets, writes_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["Display", "LiveDisplay", "LogDisplay", "PlainDisplay", "ToldDisplay", "describe_bytes", "describe_seconds",
           "open_display"]

_LOG = logging.getLogger("semisilo.silo")
_CLOCK = re.compile(r"(?<=clock says )[-0-9]+ [:0-9]+ UTC")
"""As every `ClockSkew` tells it."""


class Display(Protocol):
    """Where the agent tells what happens."""

    def event(self, text: str) -> None:
        """Something happened: stays on the screen or in the log."""

    def state(self, text: str) -> None:
        """What the silo is waiting for or doing; replaces the state before."""

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        """How far a download, training or upload is; `fraction` from 0 to 1."""

    def done(self) -> None:
        """The step whose progress was shown is over."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


class PlainDisplay:
    """One line per event with a timestamp; progress is silent, a state is shown when it changes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._state = ""

    def event(self, text: str) -> None:
        self._write(text)
        self._state = ""

    def state(self, text: str) -> None:
        if (same := _lasting(text)) != self._state:
            self._write(text)
            self._state = same

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        """Nothing: a log has no use for every per cent."""

    def done(self) -> None:
        """Nothing to clear."""

    def close(self) -> None:
        """Nothing to restore."""

    def _write(self, text: str) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        with contextlib.suppress(OSError):  # what is said may go to a file on a disk that is full: the work goes on
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {_line(text)}\n")
            stream.flush()


class LiveDisplay:
    """Events scroll by above one live line: a spinner with the state, or a bar while something is under way."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        from semisilo.common.text.log_above import log_above

        self._console = console
        self._log = contextlib.ExitStack()
        self._log.enter_context(log_above(console))
        self._waiting = Progress(SpinnerColumn(), TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                                 TimeElapsedColumn(), console=console, transient=True)
        self._working = Progress(SpinnerColumn(), TextColumn("{task.description:<12}"), BarColumn(bar_width=30),
                                 TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(compact=True),
                                 TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
                                 console=console, transient=True)
        self._line: tuple[Progress, TaskID] | None = None
        self._shown = ""

    def event(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble((time.strftime("%H:%M:%S "), "dim"), _line(text)), soft_wrap=True)

    def state(self, text: str) -> None:
        text = _line(text)
        if self._shown != f"state {text}":
            self._replace(self._waiting, text, f"state {text}")

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        if self._shown != f"progress {what}" or self._line is None:
            self._replace(self._working, _line(what), f"progress {what}")
        assert self._line is not None
        bar, task = self._line
        bar.update(task, completed=min(1.0, max(0.0, fraction)), text=_line(text))

    def done(self) -> None:
        if self._line is not None:
            bar, task = self._line
            bar.stop()
            bar.remove_task(task)
        self._line, self._shown = None, ""

    def close(self) -> None:
        self.done()
        self._log.close()

    def _replace(self, bar: Progress, description: str, shown: str) -> None:
        from rich.markup import escape

        self.done()
        self._line, self._shown = (bar, bar.add_task(escape(description), total=1.0, text="")), shown
        bar.start()


class LogDisplay:
    """Events and states as lines of this process's log, which is JSON; nothing else is written."""

    def __init__(self) -> None:
        self._state = ""

    def event(self, text: str) -> None:
        _LOG.info("%s", text)
        self._state = ""

    def state(self, text: str) -> None:
        if (same := _lasting(text)) != self._state:
            _LOG.info("%s", text)
            self._state = same

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        """Nothing, as in any log."""

    def done(self) -> None:
        """Nothing to clear."""

    def close(self) -> None:
        """Nothing to restore."""


class ToldDisplay:
    """Another display, whose progress somebody else is told as well."""

    def __init__(self, display: Display, tell: Callable[[str, float, str], None]) -> None:
        self._display = display
        self._tell = tell

    def event(self, text: str) -> None:
        self._display.event(text)

    def state(self, text: str) -> None:
        self._display.state(text)

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        self._tell(what, fraction, text)
        self._display.progress(what, fraction, text)

    def done(self) -> None:
        self._display.done()

    def close(self) -> None:
        self._display.close()


def open_display() -> PlainDisplay | LiveDisplay | LogDisplay:
    """The display that fits the log's format and standard output."""
    if writes_json():
        return LogDisplay()
    if not sys.stdout.isatty():
        return PlainDisplay()
    from rich.console import Console

    console = Console(highlight=False)
    return PlainDisplay() if console.is_dumb_terminal else LiveDisplay(console)


def _lasting(text: str) -> str:
    """A state without the time of a clock, which is another at every attempt: a log that repeats the rest all weekend
    hides what else it holds."""
    return _CLOCK.sub("", text)


def _line(text: str) -> str:
    return printable(without_secrets(text), limit=1000)
