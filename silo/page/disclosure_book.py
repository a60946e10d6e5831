"""The record of disclosures as the page shows it: read on from where the last look ended, added up by day, study and
kind, and given out a piece at a time.

A look reads a bounded stretch, so that a long record never keeps the page from answering. Reading does not disturb the
agent, which only ever appends. Used from one thread.

Tests: tests/silo/page/test_disclosure_book.py.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from semisilo.silo.site.disclosures import Broken, Line, read_line

__all__ = ["DayLeft", "DisclosureBook", "Left", "LeftLine", "LeftOf", "LeftPage"]

_STRETCH_BYTES = 8 * 2**20
"""That one look reads: a tenth of a second."""
_LONGEST_LINE = 2**20
_MOST_LINES = 2_000_000
_MOST_BROKEN = 20
_MOST_NAMES = 1000
"""Studies and kinds that are told apart; a record has a few."""
MOST_IN_PAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOf:
    """What left in all, of a study or of a kind."""

    name: str
    lines: int
    bytes: int
    last: str
    """When, as the record has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayLeft:
    """What left on one day of this machine's clock."""

    day: str
    """2026-11-21; empty for lines whose time cannot be read."""
    lines: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """The record in short."""

    lines: int
    bytes: int
    whole: bool
    """Whether all of it has been read."""
    days: tuple[DayLeft, ...]
    """Oldest first, the last 400."""
    studies: tuple[LeftOf, ...]
    """In the order in which they came; "" is what belongs to none."""
    kinds: tuple[LeftOf, ...]
    broken_count: int
    broken: tuple[Broken, ...]
    """The first lines that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftLine:
    """A line for the table."""

    number: int
    unix: float | None
    time: str
    kind: str
    study: str
    round: int
    phase: str
    method: str
    groups: tuple[str, ...]
    bytes: int
    digest: str
    num_examples: int
    metrics: dict[str, float]
    text: str
    content: dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftPage:
    """Some lines, newest first."""

    lines: tuple[LeftLine, ...]
    total: int
    """That fit what was asked for."""
    before: int
    """What to ask for next: lines before this number; 0 where there are none."""


@dataclass(slots=True)
class _Sum:
    lines: int = 0
    bytes: int = 0
    last: str = ""

    def add(self, line: Line) -> None:
        self.lines += 1
        self.bytes += line.bytes
        self.last = max(self.last, line.time)


@dataclass(slots=True)
class _Known:
    """What has been read of the file."""

    inode: int = 0
    offset: int = 0
    number: int = 0
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """Of the lines that could be read."""
    numbers: array[int] = field(default_factory=lambda: array("q"))
    of_study: array[int] = field(default_factory=lambda: array("h"))
    of_kind: array[int] = field(default_factory=lambda: array("h"))
    studies: dict[str, tuple[int, _Sum]] = field(default_factory=dict)
    kinds: dict[str, tuple[int, _Sum]] = field(default_factory=dict)
    days: dict[str, _Sum] = field(default_factory=dict)
    all: _Sum = field(default_factory=_Sum)
    broken: list[Broken] = field(default_factory=list)
    broken_count: int = 0


class DisclosureBook:
    """Of one record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _Known()
        self._whole = False

    def refresh(self) -> bool:
        """Reads on; whether there is nothing more to read for now."""
        try:
            file = self._path.open("rb")
        except OSError:
            self._known, self._whole = _Known(), True
            return True
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._known.inode or found.st_size < self._known.offset:  # another file
                self._known = _Known(inode=found.st_ino)
            known = self._known
            file.seek(known.offset)
            end = known.offset + _STRETCH_BYTES
            while known.offset < end:
                raw = file.readline(_LONGEST_LINE)
                if not raw.endswith(b"\n") and len(raw) < _LONGEST_LINE:
                    self._whole = True  # the end, or a line that is just being written
                    return True
                self._take(raw)  # one that is too long is told as pieces that cannot be read
                known.offset += len(raw)
        self._whole = False
        return False

    def _take(self, raw: bytes) -> None:
        known = self._known
        known.number += 1
        if not raw.strip():
            return
        line = read_line(known.number, raw)
        if isinstance(line, Broken):
            self._broken(line)
            return
        known.all.add(line)
        study, kind = _index(known.studies, line.study, line), _index(known.kinds, line.kind, line)
        day = "" if line.unix is None else time.strftime("%Y-%m-%d", time.localtime(line.unix))
        known.days.setdefault(day, _Sum()).add(line)
        if len(known.offsets) < _MOST_LINES:
            known.offsets.append(known.offset)
            known.numbers.append(line.number)
            known.of_study.append(study)
            known.of_kind.append(kind)

    def _broken(self, line: Broken) -> None:
        self._known.broken_count += 1
        if len(self._known.broken) < _MOST_BROKEN:
            self._known.broken.append(line)

    def left(self) -> Left:
        """What has left so far, added up."""
        known = self._known
        return Left(lines=known.all.lines, bytes=known.all.bytes, whole=self._whole, studies=_sums(known.studies),
                    days=tuple(DayLeft(day=day, lines=found.lines, bytes=found.bytes)
                               for day, found in sorted(known.days.items())[-400:]),
                    kinds=_sums(known.kinds), broken_count=known.broken_count, broken=tuple(known.broken))

    def page(self, *, study: str | None = None, kind: str = "", before: int = 0, limit: int = 50) -> LeftPage:
        """The newest lines that fit.

        Args:
            study: "" for what belongs to none; None for all.
            before: only lines with a lower number; 0 for no such limit.
        """
        known = self._known
        of_study = None if study is None else known.studies.get(study, (-1, None))[0]
        of_kind = known.kinds.get(kind, (-1, None))[0] if kind else None
        fitting = [index for index in range(len(known.offsets))
                   if (of_study is None or known.of_study[index] == of_study)
                   and (of_kind is None or known.of_kind[index] == of_kind)]
        chosen = [index for index in fitting if not before or known.numbers[index] < before]
        shown, limit = [], max(1, min(limit, MOST_IN_PAGE))
        try:
            with self._path.open("rb") as file:
                for index in reversed(chosen[-limit:]):
                    file.seek(known.offsets[index])
                    line = read_line(known.numbers[index], file.readline(_LONGEST_LINE))
                    if isinstance(line, Line):
                        shown.append(_shown(line))
        except OSError:
            shown = []
        return LeftPage(lines=tuple(shown), total=len(fitting),
                        before=known.numbers[chosen[-limit]] if len(chosen) > limit else 0)

    def lines(self) -> Iterator[Line | Broken]:
        """All lines that are there now, oldest first, whatever has been read so far."""
        try:
            with self._path.open("rb") as file:
                number = 0
                while raw := file.readline(_LONGEST_LINE):
                    number += 1
                    if raw.strip():
                        yield read_line(number, raw)
        except OSError:
            return


def _index(names: dict[str, tuple[int, _Sum]], name: str, line: Line) -> int:
    known = names.get(name)
    if known is None:
        if len(names) >= _MOST_NAMES:
            return -1
        known = names[name] = len(names), _Sum()
    known[1].add(line)
    return known[0]


def _sums(names: dict[str, tuple[int, _Sum]]) -> tuple[LeftOf, ...]:
    return tuple(LeftOf(name=name, lines=found.lines, bytes=found.bytes, last=found.last)
                 for name, (_, found) in names.items())


def _shown(line: Line) -> LeftLine:
    return LeftLine(number=line.number, unix=line.unix, time=line.time, kind=line.kind, study=line.study,
                    round=line.round, phase=line.phase, method=line.method, groups=line.groups, bytes=line.bytes,
                    digest=line.digest, num_examples=line.num_examples, metrics=dict(line.metrics), text=line.text,
                    content=dict(line.content))
