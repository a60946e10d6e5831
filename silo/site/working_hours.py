"""When this site may work: table [hours] of silo.toml, and the moments at which that begins and ends.

Times of day are those of the zone, summer time included: a span that begins in an hour that the clock skips begins when
the clock has skipped it.
"""

from __future__ import annotations

import re
import time
import zoneinfo
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from semisilo.common.text.logs import printable

__all__ = ["DAYS", "Hours", "closes_at", "day_of", "next_day_at", "opens_at", "time_text", "zone_doubt"]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_LOOK_AHEAD_DAYS = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Hours:
    """Table [hours]: when this site may work. Outside of these hours it takes no task, and tells the coordinator."""

    train: tuple[str, ...] = ()
    """Spans of the day in which tasks are taken, such as "20:00-06:00", which ends on the next day. None: at any
    time."""
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = DAYS  # type: ignore[assignment]
    """Days on which a span may begin."""
    zone: str = ""
    """IANA name of the time zone, such as "Europe/Berlin"; empty: that of this machine."""
    at_end: Literal["finish", "abort"] = "finish"
    """What becomes of a task that is under way when the hours end: it is finished and sent, or it is dropped at once
    and taken up again in the next hours, if the study still waits for it."""

    def __post_init__(self) -> None:
        for span in self.train:
            match = _SPAN.fullmatch(span)
            if match is None or (match[3] == "24" and match[4] != "00"):
                raise ValueError(f'train: "{printable(span, limit=40)}" is not a span of the day; write for example '
                                 '"20:00-06:00".')
            if match[1] + match[2] == match[3] + match[4]:
                raise ValueError(f'train: "{span}" ends when it begins; for the whole day write "00:00-24:00".')
        if not self.days:
            raise ValueError("days: is empty, so that there is no hour to work in; name at least one day.")
        if self.zone:
            try:
                zoneinfo.ZoneInfo(self.zone)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(f'zone: "{printable(self.zone, limit=60)}" is not a time zone that this machine '
                                 'knows; write for example "Europe/Berlin".') from None

    @property
    def restricted(self) -> bool:
        """Whether there is any time at which no task is taken."""
        return bool(self.train) or set(self.days) != set(DAYS)


def closes_at(hours: Hours, now_unix: float) -> float | None:
    """When the present hours end, Unix seconds; infinity when they never do, None when it is outside of them."""
    if not hours.restricted:
        return float("inf")
    return next((end for start, end in _spans(hours, now_unix) if start <= now_unix < end), None)


def opens_at(hours: Hours, now_unix: float) -> float:
    """When the next hours begin, Unix seconds; `now_unix` when it is within them."""
    if closes_at(hours, now_unix) is not None:
        return now_unix
    return next(start for start, _ in _spans(hours, now_unix) if start > now_unix)


def zone_doubt(hours: Hours) -> str:
    """What to say where hours are set, no zone is, and this machine's is UTC, as that of every container is in which
    nobody has set another; empty where there is nothing to say."""
    if not hours.restricted or hours.zone or time.tzname != ("UTC", "UTC"):
        return ""
    return ("[hours] of silo.toml are UTC: they name no zone, and this machine's is UTC, as that of a container is"
            " unless TZ is set.")


def day_of(hours: Hours, now_unix: float) -> str:
    """The date in the zone of the hours, for example "2026-11-21": what a daily budget counts in."""
    return _local(hours, now_unix).date().isoformat()


def next_day_at(hours: Hours, now_unix: float) -> float:
    """When the next day begins in the zone of the hours, Unix seconds."""
    return _unix(hours, _local(hours, now_unix).date() + timedelta(days=1), 0, 0)


def time_text(hours: Hours, unix: float) -> str:
    """A moment as a person at this site reads it: "2026-11-21 20:00 CET"."""
    moment = _local(hours, unix)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or time.tzname[0]}"


def _spans(hours: Hours, now_unix: float) -> list[tuple[float, float]]:
    """The spans from yesterday to the day after a week, in order; those that touch are one."""
    today = _local(hours, now_unix).date()
    found: list[tuple[float, float]] = []
    for offset in range(-1, _LOOK_AHEAD_DAYS):
        day = today + timedelta(days=offset)
        if DAYS[day.weekday()] in hours.days:
            found += [_span_on(hours, day, span) for span in hours.train or ("00:00-24:00",)]
    joined: list[tuple[float, float]] = []
    for start, end in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _span_on(hours: Hours, day: date, span: str) -> tuple[float, float]:
    match = _SPAN.fullmatch(span)
    assert match is not None, "checked when the hours were read"
    first, first_minute, last, last_minute = (int(part) for part in match.groups())
    if last == 24:
        return _unix(hours, day, first, first_minute), _unix(hours, day + timedelta(days=1), 0, 0)
    over_midnight = (last, last_minute) <= (first, first_minute)
    return (_unix(hours, day, first, first_minute),
            _unix(hours, day + timedelta(days=int(over_midnight)), last, last_minute))


def _unix(hours: Hours, day: date, hour: int, minute: int) -> float:
    zone = zoneinfo.ZoneInfo(hours.zone) if hours.zone else None
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()


def _local(hours: Hours, unix: float) -> datetime:
    return datetime.fromtimestamp(unix, zoneinfo.ZoneInfo(hours.zone)) if hours.zone else \
        datetime.fromtimestamp(unix).astimezone()
