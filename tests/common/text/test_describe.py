from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from semisilo.common.text.describe import (
    describe_bytes,
    describe_estimate,
    describe_percentage,
    describe_points,
    describe_progress,
    describe_range,
    describe_seconds,
    describe_share,
)
from tests.each_of import each_of

FORMAT_JS = Path(__file__).parents[3] / "common" / "page" / "static" / "js" / "format.js"
HALVES = [0.8325, 0.735, 0.0625, 0.00125, 0.000125, 0.99949999, 0.9995, 0.9999, 0.01, 0.0099999, 0.57, 0.29, 1.034,
          1e-7, 0.0, 1.0, 0.1 + 0.2, 1e22]
"""Where binary and decimal rounding, or the languages, part."""


@each_of(("count", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4321, "4.3 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
    (12_000_000, "12.0 MB"), (999_950_000, "1.00 GB"), (1_234_000_000, "1.23 GB")])
def test_bytes_are_in_powers_of_ten_and_never_show_a_thousand_of_a_smaller_unit(count: int, text: str) -> None:
    assert describe_bytes(count) == text


@each_of(("seconds", "text"), [
    (-1, "0.0 s"), (4.21, "4.2 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (185, "3 min 5 s"), (3599.6, "1 h 0 min"),
    (7800, "2 h 10 min"), (2 * 86400 + 3 * 3600, "2 d 3 h")])
def test_seconds_grow_into_minutes_hours_and_days(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


@each_of(("seconds", "text"), [
    (-3, "5 s"), (2, "5 s"), (37.2, "40 s"), (58, "1 min"), (95, "1 min 30 s"), (170, "3 min"), (2_230, "37 min"),
    (3_590, "1 h"), (7_800, "2 h 10 min"), (46_000, "13 h"), (273_600, "3 d 4 h"), (8 * 86_400, "8 d")])
def test_estimates_have_as_many_digits_as_they_are_worth(seconds: float, text: str) -> None:
    assert describe_estimate(seconds) == text


@each_of(("share", "text"), [
    (None, "–"), (float("nan"), "–"), (0.0, "0 %"), (0.0031, "0.31 %"), (0.124, "12.4 %"), (0.9996, "100 %"),
    (1.034, "103 %")])
def test_shares_are_per_cent_and_a_dash_when_unknown(share: float | None, text: str) -> None:
    assert describe_share(share) == text


@each_of(("share", "text"), [
    (None, "–"), (float("nan"), "–"), (0.8325, "83.3 %"), (0.73, "73.0 %"), (0.0, "0.0 %"), (1.0, "100.0 %"),
    (333 / 400, "83.3 %"), (0.0625, "6.3 %"), (0.1 + 0.2, "30.0 %")])
def test_percentages_round_halves_of_the_written_number_up(share: float | None, text: str) -> None:
    assert describe_percentage(share) == text


def test_a_share_and_an_accuracy_round_alike() -> None:
    assert describe_share(0.8325) == describe_percentage(0.8325) == "83.3 %"
    assert describe_share(0.00125) == "0.13 %"
    assert describe_percentage(0.83255, decimals=2) == "83.26 %"
    assert describe_range(0.80249, 0.8325) == "80.2 to 83.3 %"


@each_of(("after", "before", "text"), [
    (0.8325, 0.735, "+9.8"), (0.735, 0.8325, "−9.8"), (0.5, 0.5, "+0.0"), (0.50001, 0.5, "+0.0"),
    (0.50049, 0.50051, "−0.1"), (None, 0.5, "–"), (0.5, None, "–"), (float("inf"), 0.5, "–")])
def test_a_difference_is_that_of_the_numbers_that_are_shown(after: float | None, before: float | None,
                                                            text: str) -> None:
    """83.3 % less 73.5 % is 9.8 points: who subtracts what stands there finds the same."""
    assert describe_points(after, before) == text


@each_of(("fraction", "text"), [
    (0.0, "0 %"), (0.42, "42 %"), (0.57, "57 %"), (0.999, "99 %"), (1.0, "100 %"), (1.5, "100 %"), (-1.0, "0 %"),
    (float("nan"), "0 %")])
def test_progress_is_done_only_when_it_is_done(fraction: float, text: str) -> None:
    assert describe_progress(fraction) == text


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; tests/page compares in a browser")
def test_the_page_writes_the_same_texts(tmp_path: Path) -> None:
    """All accuracies of 400 test images and thousands of other numbers, by `format.js` and by this module."""
    chance = random.Random(7)
    pairs = [(number / 400, chance.choice(HALVES)) for number in range(401)]
    pairs += [(value, chance.random()) for value in HALVES]
    pairs += [(number / whole, chance.random()) for whole in (7, 16, 355, 1000) for number in range(whole + 1)]
    pairs += [(10 ** chance.uniform(-9, 3), chance.random()) for _ in range(500)]
    script = tmp_path / "compare.mjs"
    shutil.copy(FORMAT_JS, tmp_path / "format.mjs")
    script.write_text('import * as format from "./format.mjs";\n'
                      f"const pairs = {json.dumps(pairs)};\n"
                      "console.log(JSON.stringify(pairs.map(([a, b]) => [format.percentage(a), format.percentage(a, 2),"
                      " format.share(a), format.progress(a), format.points(a, b)])));\n")
    done = subprocess.run(["node", script], capture_output=True, text=True, check=True)
    for (first, second), said in zip(pairs, json.loads(done.stdout), strict=True):
        assert said == [describe_percentage(first), describe_percentage(first, decimals=2), describe_share(first),
                        describe_progress(first), describe_points(first, second)], (first, second)
