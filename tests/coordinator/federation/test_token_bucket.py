"""A burst at once, then a steady rate; whoever is refused is told when to come again, and pays nothing for asking."""

from __future__ import annotations

import pytest

from semisilo.coordinator.federation.token_bucket import TokenBucket


def test_a_burst_passes_and_then_the_rate() -> None:
    bucket = TokenBucket(3, 0.5)
    assert [bucket.take(100.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(100.0) == pytest.approx(2.0)
    assert bucket.take(101.0) == pytest.approx(1.0)
    assert bucket.take(102.0) == 0.0
    assert bucket.take(102.0) == pytest.approx(2.0), "asking in between has cost nothing"


def test_several_are_taken_together_or_none() -> None:
    bucket = TokenBucket(10, 2.0)
    assert bucket.take(0.0, 8) == 0.0
    assert bucket.take(0.0, 6) == pytest.approx(2.0)
    assert bucket.take(0.0, 2) == 0.0
    assert bucket.take(5.0, 10) == 0.0


def test_it_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(2, 1.0)
    bucket.take(0.0)
    assert [bucket.take(1e9) for _ in range(3)] == [0.0, 0.0, pytest.approx(1.0)]


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    bucket = TokenBucket(1, 1.0)
    assert bucket.take(100.0) == 0.0
    assert bucket.take(50.0) == pytest.approx(1.0)
    assert bucket.take(51.0) == 0.0
