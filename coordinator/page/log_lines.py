"""The last lines of the coordinator's log, for an operator who is not at the hub: kept in memory while `coordinator
serve` runs, one printable line each, with secrets blotted out as in the log itself.

Tests: tests/coordinator/page/test_log_lines.py.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

from semisilo.common.text.log_context import log_context
from semisilo.common.text.logs import printable, without_secrets

__all__ = ["LEVELS", "MOST_LINES", "LogLine", "LogLines", "LogPage"]

LEVELS = ("debug", "info", "warning", "error", "critical")
"""From the least to the most."""
_MOST_KEPT = 3000
_LONGEST = 2000
MOST_LINES = 500
"""In one answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line."""

    number: int
    """Counted from the start of `serve`."""
    unix: float
    level: str
    text: str
    study: str
    """What the line is about, where it says so; empty otherwise."""
    silo: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPage:
    """GET /api/logs."""

    lines: tuple[LogLine, ...]
    """Newest first."""
    kept: int
    """Lines that are kept at all."""
    dropped: int
    """Older lines that are not kept any more."""
    more: bool
    """Whether older lines fit that are not here."""


class LogLines(logging.Handler):
    """Keeps the last lines of this process."""

    def __init__(self, *, most: int = _MOST_KEPT) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=most)
        self._numbers = itertools.count(1)
        self._guard = Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes in one line; a traceback stays in the log at the hub, and the line says so."""
        try:
            text = without_secrets(record.getMessage())
            if record.exc_info:
                text += " (a traceback is in the log at the hub)"
            context = log_context()
            study, silo = (str(getattr(record, name, context.get(name)) or "") for name in ("study", "silo"))
            with self._guard:
                self._lines.append(LogLine(
                    number=next(self._numbers), unix=record.created, level=_level(record.levelno),
                    text=printable(text, limit=_LONGEST), study=printable(study, limit=100),
                    silo=printable(silo, limit=100)))
        except Exception:
            self.handleError(record)

    def find(self, *, level: str = "debug", text: str = "", before: int = 0, limit: int = 200) -> LogPage:
        """The newest lines that fit.

        Args:
            level: the least one, of `LEVELS`.
            text: what a line must hold, whatever the case; words of study and silo count.
            before: lines with smaller numbers only; 0 for all.
        """
        least, wanted = LEVELS.index(level), text.casefold()
        limit = min(max(1, limit), MOST_LINES)
        with self._guard:
            lines = list(self._lines)
        fitting = (line for line in reversed(lines) if (not before or line.number < before)
                   and LEVELS.index(line.level) >= least
                   and (not wanted or wanted in f"{line.text} {line.study} {line.silo}".casefold()))
        found = tuple(itertools.islice(fitting, limit + 1))
        return LogPage(lines=found[:limit], kept=len(lines), dropped=lines[0].number - 1 if lines else 0,
                       more=len(found) > limit)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hears the whole process's log meanwhile."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)


def _level(number: int) -> str:
    """The name of a level, or of the one below."""
    return LEVELS[min(len(LEVELS) - 1, max(0, number // 10 - 1))]
