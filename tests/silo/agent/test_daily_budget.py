"""The bytes of a day: counted from the connection, kept over restarts, and refused before they cross."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from semisilo.common.errors import DailyBudget
from semisilo.silo.agent.daily_budget import DayBudget, DayCount, read_day, read_days
from semisilo.silo.link.traffic import Carried
from semisilo.silo.site.working_hours import Hours

UTC_HOURS = Hours(zone="UTC")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
NEXT_DAY = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
DAY = 86_400.0


def budget(folder: Path, limit: int = 1_000_000, now: float = NOON) -> DayBudget:
    return DayBudget(folder / "day.json", bytes_per_day=limit, hours=UTC_HOURS, now_unix=now)


def test_bytes_add_up_over_restarts_and_a_new_day_begins_at_nothing(tmp_path: Path) -> None:
    first = budget(tmp_path)
    first.carried(Carried(100_000, 200_000), NOON)
    first.carried(Carried(150_000, 200_000), NOON, durably=True)
    assert read_day(tmp_path / "day.json", UTC_HOURS, NOON).bytes == 350_000
    again = budget(tmp_path)  # a process of its own counts from 0
    assert again.carried(Carried(10_000, 0), NOON + 60, durably=True) == DayCount(
        day="2026-11-21", sent_bytes=160_000, received_bytes=200_000)
    assert read_day(tmp_path / "day.json", UTC_HOURS, NEXT_DAY).bytes == 0
    assert again.carried(Carried(10_500, 0), NEXT_DAY + 1).bytes == 500


def test_a_count_that_stands_in_the_file_is_not_written_again_unless_it_must_be_there_for_good(tmp_path: Path) -> None:
    path = tmp_path / "day.json"
    counting = budget(tmp_path)
    counting.carried(Carried(0, 70_000), NOON)  # written, but a loss of power may take it back
    before = path.stat().st_ino
    counting.carried(Carried(0, 70_000), NOON, durably=True)
    for_good = path.stat().st_ino
    counting.carried(Carried(0, 70_000), NOON, durably=True)
    assert before != for_good == path.stat().st_ino
    counting.carried(Carried(0, 70_001), NOON, durably=True)
    assert read_day(path, UTC_HOURS, NOON).bytes == 70_001


def test_a_kill_loses_no_more_than_what_is_not_worth_writing(tmp_path: Path) -> None:
    counting = budget(tmp_path)
    counting.carried(Carried(0, 1_000), NOON)
    assert not (tmp_path / "day.json").exists()
    counting.carried(Carried(0, 70_000), NOON)
    assert budget(tmp_path).carried(Carried(), NOON).bytes == 70_000


def test_what_does_not_fit_is_refused_with_the_time_when_the_day_ends(tmp_path: Path) -> None:
    counting = budget(tmp_path)
    counting.carried(Carried(300_000, 300_000), NOON)
    counting.check(400_000, "this update", NOON)  # exactly what is left
    assert counting.exhausted_until(NOON) is None
    with pytest.raises(DailyBudget, match=r"600\.0 kB of 1\.0 MB.*this update would take 400\.0 kB") as raised:
        counting.check(400_001, "this update", NOON)
    assert "2026-11-22 00:00 UTC" in raised.value.text
    assert "bytes_per_day" in raised.value.remedy
    assert counting.exhausted_until(NOON + 1) == NEXT_DAY  # a task like that one is not to come again today
    assert counting.exhausted_until(NEXT_DAY) is None


def test_a_budget_that_is_used_up_says_so_without_being_asked_for_more(tmp_path: Path) -> None:
    counting = budget(tmp_path)
    counting.carried(Carried(1_000_000, 0), NOON)
    assert counting.exhausted_until(NOON) == NEXT_DAY
    assert counting.exhausted_until(NEXT_DAY + 1) is None


def test_without_a_limit_bytes_are_counted_and_nothing_is_refused(tmp_path: Path) -> None:
    counting = budget(tmp_path, limit=0)
    counting.carried(Carried(10**12, 0), NOON)
    counting.check(10**15, "this update", NOON)
    assert counting.exhausted_until(NOON) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"day": 3}', '{"day": "2026-11-21", "sent_bytes": -5}'])
def test_a_file_that_cannot_be_read_counts_as_a_day_without_bytes(tmp_path: Path, text: str) -> None:
    (tmp_path / "day.json").write_text(text)
    assert read_day(tmp_path / "day.json", UTC_HOURS, NOON) == DayCount(day="2026-11-21")


def test_days_that_are_over_stay_to_be_looked_at_whether_the_silo_ran_at_midnight_or_not(tmp_path: Path) -> None:
    days = tmp_path / "days.json"
    counting = budget(tmp_path)
    counting.carried(Carried(100_000, 200_000), NOON, durably=True)
    assert read_days(days) == ()
    counting.carried(Carried(100_500, 200_000), NEXT_DAY + 1)  # it ran at midnight
    counting.carried(Carried(150_000, 300_000), NEXT_DAY + 9, durably=True)
    budget(tmp_path, now=NEXT_DAY + 86_400.0 * 3)  # it was off for three days
    budget(tmp_path, now=NEXT_DAY + 86_400.0 * 4)  # nothing was carried then
    assert read_days(days) == (DayCount(day="2026-11-21", sent_bytes=100_000, received_bytes=200_000),
                               DayCount(day="2026-11-22", sent_bytes=50_000, received_bytes=100_000))
    days.write_text("[")
    assert read_days(days) == ()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("away", [-3 * DAY, 40 * DAY])
def test_a_clock_that_was_on_another_day_for_a_while_gives_no_second_budget(tmp_path: Path, away: float, restarted: bool
                                                                            ) -> None:
    counting = budget(tmp_path)
    counting.carried(Carried(800_000, 0), NOON, durably=True)
    counting.carried(Carried(801_000, 0), NOON + away, durably=True)
    if restarted:
        counting = budget(tmp_path, now=NOON + away)
        counting = budget(tmp_path, now=NOON + 60)
    seen = Carried() if restarted else Carried(801_000, 0)
    assert counting.carried(seen, NOON + 60).bytes == read_day(tmp_path / "day.json", UTC_HOURS, NOON + 60).bytes \
        == 800_000
    with pytest.raises(DailyBudget):
        counting.check(300_000, "this update", NOON + 60)


def test_an_end_of_the_day_under_a_wrong_clock_keeps_nobody_away_under_the_right_one(tmp_path: Path) -> None:
    counting = budget(tmp_path)
    with pytest.raises(DailyBudget):
        counting.check(1_000_001, "this update", NOON + 40 * DAY)
    assert counting.exhausted_until(NOON + 40 * DAY) == NEXT_DAY + 40 * DAY
    assert counting.exhausted_until(NOON + 60) is None
