"""When a site may work: spans of the day in a time zone, over midnight, weekends, and nights on which clocks change."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration
from semisilo.silo.site.working_hours import Hours, closes_at, day_of, next_day_at, opens_at, time_text, zone_doubt
from tests.each_of import each_of

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NIGHTS = Hours(train=("20:00-06:00",), zone=BERLIN)
WEEKDAY_NIGHTS = Hours(train=("20:00-06:00",), days=("mon", "tue", "wed", "thu", "fri"), zone=BERLIN)
LUNCH_AND_NIGHT = Hours(train=("12:00-13:30", "22:00-24:00"), zone=BERLIN)
WEEKENDS = Hours(days=("sat", "sun"), zone=BERLIN)


@pytest.mark.parametrize(("hours", "machine", "said"), [
    (Hours(train=("20:00-06:00",)), "UTC", True), (Hours(days=("sat",)), "UTC", True), (Hours(), "UTC", False),
    (NIGHTS, "UTC", False), (Hours(train=("20:00-06:00",), zone="UTC"), "UTC", False),
    (Hours(train=("20:00-06:00",)), BERLIN, False), (Hours(train=("20:00-06:00",)), "Europe/London", False)])
def test_hours_of_a_machine_whose_zone_nobody_has_set_are_doubted(monkeypatch: pytest.MonkeyPatch, hours: Hours,
                                                                 machine: str, said: bool) -> None:
    """A container has UTC; the hospital's clock hangs somewhere else."""
    monkeypatch.setenv("TZ", machine)
    time.tzset()
    try:
        assert bool(zone_doubt(hours)) is said
    finally:
        monkeypatch.undo()
        time.tzset()


def test_without_a_table_a_site_works_at_any_time() -> None:
    assert not Hours().restricted
    assert closes_at(Hours(), 0.0) == math.inf
    assert opens_at(Hours(), 123.0) == 123.0


@each_of(("hours", "now", "closes", "opens"), [
    (NIGHTS, "2026-11-21 19:59:59", None, "2026-11-21 20:00"),
    (NIGHTS, "2026-11-21 20:00", "2026-11-22 06:00", None),
    (NIGHTS, "2026-11-22 05:59:59", "2026-11-22 06:00", None),
    (NIGHTS, "2026-11-22 06:00", None, "2026-11-22 20:00"),
    # Friday's night ends on Saturday; the next begins on Monday.
    (WEEKDAY_NIGHTS, "2026-11-21 05:00", "2026-11-21 06:00", None),
    (WEEKDAY_NIGHTS, "2026-11-21 21:00", None, "2026-11-23 20:00"),
    (LUNCH_AND_NIGHT, "2026-11-21 12:45", "2026-11-21 13:30", None),
    (LUNCH_AND_NIGHT, "2026-11-21 14:00", None, "2026-11-21 22:00"),
    (LUNCH_AND_NIGHT, "2026-11-21 23:59", "2026-11-22 00:00", None),
    # Saturday and Sunday are one span.
    (WEEKENDS, "2026-11-21 10:00", "2026-11-23 00:00", None),
    (WEEKENDS, "2026-11-23 00:00", None, "2026-11-28 00:00"),
])
def test_hours_close_and_open_when_the_file_says(hours: Hours, now: str, closes: str | None, opens: str | None) -> None:
    end = closes_at(hours, at(now))
    assert end == (None if closes is None else at(closes))
    assert opens_at(hours, at(now)) == (at(now) if opens is None else at(opens))


def test_a_night_on_which_the_clock_changes_is_an_hour_shorter_or_longer() -> None:
    spring, autumn = at("2026-03-28 22:00"), at("2026-10-24 22:00")
    end_spring, end_autumn = closes_at(NIGHTS, spring), closes_at(NIGHTS, autumn)
    assert end_spring is not None
    assert end_autumn is not None
    assert end_spring - spring == 7 * 3600
    assert end_autumn - autumn == 9 * 3600


def test_the_zone_decides_and_not_this_machine() -> None:
    noon_utc = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
    assert closes_at(Hours(train=("21:00-22:00",), zone="Asia/Tokyo"), noon_utc) is not None
    assert closes_at(Hours(train=("21:00-22:00",), zone="UTC"), noon_utc) is None


def test_a_day_begins_at_midnight_of_the_zone() -> None:
    late = datetime(2026, 11, 21, 23, 30, tzinfo=UTC).timestamp()
    assert day_of(Hours(zone="UTC"), late) == "2026-11-21"
    assert day_of(Hours(zone=BERLIN), late) == "2026-11-22"
    assert next_day_at(Hours(zone="UTC"), late) == datetime(2026, 11, 22, tzinfo=UTC).timestamp()
    assert next_day_at(Hours(zone=BERLIN), late) == at("2026-11-23 00:00")
    assert time_text(Hours(zone=BERLIN), at("2026-11-21 20:00")) == "2026-11-21 20:00 CET"


@each_of(("table", "said"), [
    ({"train": ["20-6"]}, "20:00-06:00"), ({"train": ["25:00-06:00"]}, "25:00-06:00"),
    ({"train": ["08:00-24:30"]}, "24:30"), ({"train": ["08:00-08:00"]}, "ends when it begins"),
    ({"days": []}, "no hour"), ({"days": ["monday"]}, "mon"), ({"zone": "Europe/Atlantis"}, "Atlantis"),
    ({"zone": "../../etc/passwd"}, "time zone"), ({"at_end": "stop"}, "abort"), ({"hours": []}, "hours"),
])
def test_what_cannot_be_is_refused_by_name(table: dict[str, object], said: str) -> None:
    with pytest.raises(BadConfiguration) as raised:
        from_dict(Hours, table, where="silo.toml: [hours]")
    assert said in raised.value.line()
