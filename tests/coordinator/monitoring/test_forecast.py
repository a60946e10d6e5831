"""What a study will have cost at its end."""

from __future__ import annotations

from semisilo.coordinator.monitoring.forecast import FORECAST_ROUNDS, forecast_of


def test_rounds_to_come_are_like_the_last_few() -> None:
    """10 rounds planned, 6 finished, the seventh open with 30 bytes: (600 + 0) + 4 x 100."""
    found = forecast_of([100] * 6, spent_bytes=630, open_round_bytes=30, rounds_left=4, seconds_left=80.0,
                        now_unix=1000.0)
    assert found is not None
    assert (found.wire_bytes_at_end, found.seconds_left, found.unix_at_end) == (1000, 80.0, 1080.0)


def test_early_rounds_do_not_count_for_long() -> None:
    found = forecast_of([10_000, *[10] * FORECAST_ROUNDS], spent_bytes=10_050, open_round_bytes=0, rounds_left=2,
                        seconds_left=1.0, now_unix=0.0)
    assert found is not None
    assert found.wire_bytes_at_end == 10_070


def test_the_end_is_never_cheaper_than_now() -> None:
    found = forecast_of([10], spent_bytes=510, open_round_bytes=500, rounds_left=1, seconds_left=1.0, now_unix=0.0)
    assert found is not None
    assert found.wire_bytes_at_end == 510


def test_a_paused_study_has_no_end_time() -> None:
    found = forecast_of([10], spent_bytes=10, open_round_bytes=0, rounds_left=1, seconds_left=1.0, now_unix=5.0,
                        paused=True)
    assert found is not None
    assert found.unix_at_end is None
    assert found.wire_bytes_at_end == 20


def test_before_the_first_finished_round_nothing_is_said() -> None:
    assert forecast_of([], spent_bytes=5, open_round_bytes=5, rounds_left=9, seconds_left=None, now_unix=0.0) is None
