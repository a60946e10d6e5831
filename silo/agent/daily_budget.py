"""How many bytes this silo has carried today, against `[limits] bytes_per_day` of silo.toml.

What counts is what the kernel counts on the connection to the coordinator, both ways, TLS included; where it does
not, an estimate from the messages, never below the payloads. Before a transfer its declared size must fit into
what is left; what TLS adds to it is counted when it has crossed. The file `day.json` is rewritten while bytes move, and
on disk before a task begins and after it has ended: a kill loses the bytes of the last half second, if any.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration, DailyBudget
from semisilo.common.storage.durable import write_durably
from semisilo.common.text.describe import describe_bytes
from semisilo.silo.link.traffic import Carried
from semisilo.silo.site.working_hours import Hours, day_of, next_day_at, time_text

__all__ = ["DayBudget", "DayCount", "read_day"]

_WORTH_WRITING_BYTES = 64 * 1024


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
    """What was carried on the present day; zeros when there is no note of it."""
    today = day_of(hours, now_unix)
    try:
        count = from_dict(DayCount, json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, BadConfiguration):
        return DayCount(day=today)
    return count if count.day == today and min(count.sent_bytes, count.received_bytes) >= 0 else DayCount(day=today)


class DayBudget:
    """Counts the bytes of the day, durably, and refuses what does not fit."""

    def __init__(self, path: Path, *, bytes_per_day: int, hours: Hours, now_unix: float) -> None:
        """
        Args:
            path: `day.json` of the silo's home.
            bytes_per_day: 0 for no limit; the bytes are counted all the same.
            hours: their zone decides when a day begins.
        """
        self._path = path
        self._limit = bytes_per_day
        self._hours = hours
        self._count = read_day(path, hours, now_unix)
        self._seen = Carried()
        self._written = self._count.bytes
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
        before = self._count if self._count.day == today else DayCount(day=today)
        # The bytes around midnight belong to the new day: that never allows more than the limit.
        self._count = DayCount(day=today, sent_bytes=before.sent_bytes + added.sent_bytes,
                               received_bytes=before.received_bytes + added.received_bytes,
                               estimated=before.estimated or added.estimated)
        if durably or abs(self._count.bytes - self._written) >= _WORTH_WRITING_BYTES:
            self._write(durably=durably and self._limit > 0)
        return self._count

    def check(self, wanted_bytes: int, what: str, now_unix: float) -> None:
        """Whether so many bytes more may cross today.

        Args:
            what: for the error: what they are.
        Raises: DailyBudget, with the time when the day ends; from then until that time `exhausted_until` says so too.
        """
        if not self._limit or self._count.bytes + wanted_bytes <= self._limit:
            return
        self._over_until = next_day_at(self._hours, now_unix)
        raise DailyBudget(
            f"The daily budget of this silo does not suffice: {describe_bytes(self._count.bytes)} of "
            f"{describe_bytes(self._limit)} are used today, and {what} would take {describe_bytes(wanted_bytes)}. The "
            f"next day begins on {time_text(self._hours, self._over_until)}.",
            remedy="To allow more, raise [limits] bytes_per_day in silo.toml of this silo.")

    def exhausted_until(self, now_unix: float) -> float | None:
        """When bytes may cross again, Unix seconds; None while they may."""
        if self._limit and self._count.day == day_of(self._hours, now_unix) and self._count.bytes >= self._limit:
            return next_day_at(self._hours, now_unix)
        return self._over_until if now_unix < self._over_until else None

    def _write(self, *, durably: bool) -> None:
        text = (json.dumps(asdict(self._count)) + "\n").encode()
        if durably:
            write_durably(self._path, text)
        else:
            temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(text)
            os.replace(temporary, self._path)
        self._written = self._count.bytes
