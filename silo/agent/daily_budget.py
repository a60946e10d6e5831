"""How many bytes this silo has carried today, against `[limits] bytes_per_day` of silo.toml.

What counts is what the kernel counts on the connection to the coordinator, both ways, TLS included; where it does
not, an estimate from the messages, never below the payloads. Before a transfer its declared size must fit into
what is left; what TLS adds to it is counted when it has crossed. The file `day.json` is rewritten while bytes move, and
on disk before a task begins and after it has ended: a kill loses the bytes of the last half second, if any. What
another day has come to is in `days.json`: for people, and for a clock that is set to that day again. `silo model` may
run beside the agent and counts in `day.models.json` and `days.models.json`; the budget is for both together.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration, DailyBudget
from semisilo.common.storage.durable import write_durably
from semisilo.common.text.describe import describe_bytes
from semisilo.silo.site.working_hours import Hours, day_of, next_day_at, time_text

if TYPE_CHECKING:
    from semisilo.silo.link.traffic import Carried

__all__ = ["DayBudget", "DayCount", "read_day", "read_days"]

_WORTH_WRITING_BYTES = 64 * 1024
_MOST_DAYS = 400
"""Kept in `days.json`: a year, and a month to look back at it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayCount:
    """What `day.json` says."""

    day: str = ""
    """Date in the zone of [hours]."""
    sent_bytes: int = 0
    received_bytes: int = 0
    estimated: bool = False

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.sent_bytes + self.received_bytes


def read_day(path: Path, hours: Hours, now_unix: float) -> DayCount:
    """What was carried on the present day, by the agent and by `silo model`; zeros when there is no note of it.

    Args:
        path: `day.json` of the silo's home.
    """
    today = day_of(hours, now_unix)
    return _sum(_on(path, today), _on(_beside(path), today))


def _on(path: Path, day: str) -> DayCount:
    count = _read(path)
    return count if count is not None and count.day == day else _noted(path, day)


def _sum(one: DayCount, other: DayCount) -> DayCount:
    """Of the same day."""
    return DayCount(day=one.day, sent_bytes=one.sent_bytes + other.sent_bytes,
                    received_bytes=one.received_bytes + other.received_bytes,
                    estimated=one.estimated or other.estimated)


def _beside(path: Path) -> Path:
    """The file in which the other of the two counts: the agent, or `silo model`."""
    stem, _, models = path.name.removesuffix(".json").partition(".")
    return path.with_name(f"{stem}.json" if models else f"{stem}.models.json")


def _noted(path: Path, day: str) -> DayCount:
    """What a day has come to that was left before, for another one."""
    return next((each for each in _days_in(_others(path)) if each.day == day), DayCount(day=day))


def _others(path: Path) -> Path:
    return path.with_name(f"days{path.name.removeprefix('day')}")


def read_days(path: Path) -> tuple[DayCount, ...]:
    """What was carried on days that are over, oldest first; nothing where there is no note of any, or a damaged one.

    Args:
        path: `days.json` of the silo's home.
    Raises: OSError where it cannot be read now.
    """
    days = {each.day: each for each in _days_in(path)}
    for each in _days_in(_beside(path)):
        days[each.day] = _sum(days[each.day], each) if each.day in days else each
    return tuple(days[day] for day in sorted(days))


def _days_in(path: Path) -> tuple[DayCount, ...]:
    """Raises: OSError where it cannot be read now: whoever writes it anew would lose a year."""
    try:
        return from_dict(_Days, json.loads(path.read_text(encoding="utf-8"))).days
    except (FileNotFoundError, ValueError, BadConfiguration):
        return ()


def _read(path: Path) -> DayCount | None:
    try:
        count = from_dict(DayCount, json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, BadConfiguration):
        return None
    return count if min(count.sent_bytes, count.received_bytes) >= 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Days:
    days: tuple[DayCount, ...] = ()


class DayBudget:
    """Counts the bytes of the day, durably, and refuses what does not fit."""

    def __init__(self, path: Path, *, bytes_per_day: int, hours: Hours, now_unix: float) -> None:
        """
        Args:
            path: `day.json` of the silo's home, or `day.models.json` for `silo model`.
            bytes_per_day: 0 for no limit; the bytes are counted all the same.
            hours: their zone decides when a day begins.
        """
        from semisilo.silo.link.traffic import Carried  # late: `silo status` only reads what the agent has counted

        self._path = path
        self._limit = bytes_per_day
        self._hours = hours
        self._left: dict[str, DayCount] = {}
        """By day: days that the clock has left and that are not noted yet."""
        self._unread = False
        """Whether what the present day has come to before could not be read yet."""
        before, today = _read(path), day_of(hours, now_unix)
        if before is not None and before.day != today:
            self._leave(before)
            before = None
        self._count = before or self._begun(today)
        self._seen = Carried()
        self._written = self._count.bytes
        self._on_disk: DayCount | None = None
        """What this process has last written, and whether a loss of power cannot take it back."""
        self._safe = False
        self._over_until = 0.0

    def carried(self, total: Carried, now_unix: float, *, durably: bool = False) -> DayCount:
        """Takes note of what the connection has carried since this process began; returns the count of the day.

        Args:
            total: of this process, never less than before.
            durably: on disk when this returns, where there is a limit to keep; else only written, and that when there
                is something to write.
        """
        added = total.since(self._seen)
        self._seen = total
        today = day_of(self._hours, now_unix)
        before = self._count
        if before.day != today:
            self._leave(before)
            before = self._begun(today)
        elif self._left or self._unread:
            self._note_left()
            before = self._with_unread(before)
        # The bytes around midnight belong to the new day: that never allows more than the limit.
        self._count = DayCount(day=today, sent_bytes=before.sent_bytes + added.sent_bytes,
                               received_bytes=before.received_bytes + added.received_bytes,
                               estimated=before.estimated or added.estimated)
        if durably or abs(self._count.bytes - self._written) >= _WORTH_WRITING_BYTES:
            self._write(durably=durably and self._limit > 0)
        return self._count

    def check(self, wanted_bytes: int, what: str, now_unix: float, *, ends_day: bool = True) -> None:
        """Whether so many bytes more may cross today.

        Args:
            what: for the error: what they are.
            ends_day: False for what no task waits for.
        Raises: DailyBudget, with the time when the day ends; from then until that time `exhausted_until` says so too,
            unless `ends_day` is False.
        """
        if not self._limit or (used := self._used(now_unix)) + wanted_bytes <= self._limit:
            return
        end = next_day_at(self._hours, now_unix)
        if ends_day:
            self._over_until = end
        raise DailyBudget(
            f"The daily budget of this silo does not suffice: {describe_bytes(used)} of "
            f"{describe_bytes(self._limit)} are used today, and {what} would take {describe_bytes(wanted_bytes)}. The "
            f"next day begins on {time_text(self._hours, end)}.",
            remedy="To allow more, raise [limits] bytes_per_day in silo.toml of this silo.")

    def exhausted_until(self, now_unix: float) -> float | None:
        """When bytes may cross again, Unix seconds; None while they may."""
        if self._limit and self._count.day == day_of(self._hours, now_unix) and self._used(now_unix) >= self._limit:
            return next_day_at(self._hours, now_unix)
        # An end that is farther away than this day's was noted under another clock.
        return self._over_until if now_unix < self._over_until <= next_day_at(self._hours, now_unix) else None

    def _used(self, now_unix: float) -> int:
        """Bytes of the day, with those that the other has counted, as far as they can be read."""
        with contextlib.suppress(OSError):
            return self._count.bytes + _on(_beside(self._path), day_of(self._hours, now_unix)).bytes
        return self._count.bytes

    def _leave(self, count: DayCount) -> None:
        """The clock has left a day."""
        self._left[count.day] = self._with_unread(count)
        self._unread = False
        self._note_left()

    def _note_left(self) -> None:
        """Notes days that the clock has left. A full or failing disk keeps nobody from the next one: it is tried again
        with the next count."""
        path = _others(self._path)
        with contextlib.suppress(OSError):
            known = [each for each in _days_in(path) if each.day not in self._left]
            left = [each for each in self._left.values() if each.bytes]
            days = sorted([*known, *left], key=lambda each: each.day)[-_MOST_DAYS:]
            write_durably(path, (json.dumps(asdict(_Days(days=tuple(days)))) + "\n").encode())
            self._left.clear()

    def _begun(self, day: str) -> DayCount:
        """What a day has come to before: nothing, but where the clock was on another one for a while."""
        if (left := self._left.pop(day, None)) is not None:
            return left
        self._unread = True
        return self._with_unread(DayCount(day=day))

    def _with_unread(self, count: DayCount) -> DayCount:
        """A count with what its day has come to before, where that could not be read until now."""
        if not self._unread:
            return count
        try:
            before = _noted(self._path, count.day)
        except OSError:
            return count
        self._unread = False
        return DayCount(day=count.day, sent_bytes=before.sent_bytes + count.sent_bytes,
                        received_bytes=before.received_bytes + count.received_bytes,
                        estimated=before.estimated or count.estimated)

    def _write(self, *, durably: bool) -> None:
        if self._count == self._on_disk and (self._safe or not durably):
            return
        text = (json.dumps(to_dict(self._count)) + "\n").encode()
        if durably:
            write_durably(self._path, text)
        else:
            temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(text)
            os.replace(temporary, self._path)
        self._written, self._on_disk, self._safe = self._count.bytes, self._count, durably
