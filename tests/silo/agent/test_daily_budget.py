"""The bytes of a day: counted from the connection, kept over restarts, and refused before they cross."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_what_cannot_be_read_for_a_moment_is_not_written_anew(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A year of days was gone after one failed read: the file was written anew with the day that was left."""
    for ago in range(5, 0, -1):
        budget(tmp_path, now=NOON - ago * DAY).carried(Carried(1000 * ago, 0), NOON - ago * DAY, durably=True)
    counting = budget(tmp_path)
    counting.carried(Carried(10_000, 0), NOON, durably=True)
    before = read_days(tmp_path / "days.json")
    assert [each.bytes for each in before] == [5000, 4000, 3000, 2000, 1000]
    real = Path.read_text

    def failing(path: Path, *arguments: Any, **keywords: Any) -> str:
        if path.name == "days.json":
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", failing)
        with pytest.raises(OSError, match=r"days\.json"):
            read_days(tmp_path / "days.json")
        assert counting.carried(Carried(10_500, 0), NOON + DAY, durably=True).bytes == 500, "the next day goes on"
        assert counting.carried(Carried(10_600, 0), NOON + 2 * DAY, durably=True).bytes == 100
    assert read_days(tmp_path / "days.json") == before
    counting.carried(Carried(10_600, 0), NOON + 2 * DAY)
    assert [each.bytes for each in read_days(tmp_path / "days.json")] == [5000, 4000, 3000, 2000, 1000, 10_000, 500]


def test_what_a_day_has_come_to_before_counts_once_it_can_be_read(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was on another day for a while, and the disk failed when it came back."""
    counting = budget(tmp_path)
    counting.carried(Carried(10_000, 0), NOON, durably=True)
    counting.carried(Carried(10_100, 0), NOON + DAY, durably=True)
    real = Path.read_text
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path, **keywords: (_ for _ in ()).throw(OSError(errno.EIO, "failed")))
        assert counting.carried(Carried(10_120, 0), NOON).bytes == 20
        assert counting.carried(Carried(10_130, 0), NOON).bytes == 30
    assert Path.read_text is real
    assert counting.carried(Carried(10_140, 0), NOON).bytes == 10_040
    assert counting.carried(Carried(10_150, 0), NOON).bytes == 10_050
    assert [each.bytes for each in read_days(tmp_path / "days.json")] == [10_000, 100]
