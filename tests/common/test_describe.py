from __future__ import annotations

import pytest

from common.describe import describe_bytes, describe_seconds, describe_share


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4321, "4.3 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
    (12_000_000, "12.0 MB"), (999_950_000, "1.00 GB"), (1_234_000_000, "1.23 GB")])
def test_bytes_are_in_powers_of_ten_and_never_show_a_thousand_of_a_smaller_unit(count: int, text: str) -> None:
    assert describe_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (-1, "0.0 s"), (4.21, "4.2 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (185, "3 min 5 s"), (3599.6, "1 h 0 min"),
    (7800, "2 h 10 min"), (2 * 86400 + 3 * 3600, "2 d 3 h")])
def test_seconds_grow_into_minutes_hours_and_days(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


@pytest.mark.parametrize(("share", "text"), [
    (None, "–"), (float("nan"), "–"), (0.0, "0 %"), (0.0031, "0.31 %"), (0.124, "12.4 %"), (0.9996, "100 %"),
    (1.034, "103 %")])
def test_shares_are_per_cent_and_a_dash_when_unknown(share: float | None, text: str) -> None:
    assert describe_share(share) == text
