"""Studies side by side."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from semisilo.common.errors import UnknownName, UsageError
from semisilo.common.measures.intervals import wilson
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring.cost_book import CostBook
from semisilo.coordinator.monitoring.results import comparison
from semisilo.coordinator.monitoring.results.comparison import Comparison, compare_studies
from tests.coordinator.ledger_fixture import (
    LABELLED_ONLY,
    OVERHEAD,
    SECONDS_PER_ROUND,
    SILOS,
    WIRE_DOWN,
    WIRE_UP,
    Filled,
    accuracy_after,
    add_study,
    fill_study,
    study_config,
)


def compared(ledger: Ledger, *names: str) -> Comparison:
    costs = CostBook()
    costs.refresh(ledger)
    return compare_studies(ledger, names, costs={name: costs.study(name) for name in names}, now_unix=time.time())


@pytest.fixture
def two(tmp_path: Path) -> Filled:
    filled = fill_study(tmp_path / "hub", rounds=4)
    add_study(filled, "second", rounds=8, done=2)
    return filled


def test_curves_have_rounds_bytes_seconds_and_intervals(two: Filled) -> None:
    found = compared(two.ledger, "first", "second")
    assert (found.measure, found.title) == ("accuracy", "accuracy")
    first, second = found.studies
    assert [point.round for point in first.points] == [0, 1, 2, 3, 4]
    assert [point.round for point in second.points] == [0, 1, 2]
    point = first.points[2]
    assert point.score == accuracy_after(2)
    assert point.interval == wilson(round(355 * accuracy_after(2)), 355)
    (spent,), = two.ledger.query("SELECT sum(bytes) FROM cost WHERE study = 'first' AND kind = 'wire' AND round <= 2")
    assert point.wire_bytes == spent > OVERHEAD + 2 * len(SILOS) * (WIRE_DOWN + WIRE_UP)
    assert first.points[3].seconds - point.seconds == pytest.approx(SECONDS_PER_ROUND, abs=0.01)
    assert (first.score, first.labels_alone, first.test_images) == (accuracy_after(4), LABELLED_ONLY, 355)
    assert first.gain.startswith("+")
    assert (second.rounds_completed, second.rounds_planned, second.state) == (2, 8, "running")
    assert found.remarks == ()


def test_settings_that_differ_are_listed_and_no_others(two: Filled) -> None:
    found = compared(two.ledger, "second", "first")
    assert [(each.setting, each.values) for each in found.differences] == [("[study] rounds", ("8", "4"))]


def test_other_measures_and_other_test_images_are_said(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=2)
    add_study(filled, "uneven", rounds=2, done=2, measure="balanced_accuracy")
    add_study(filled, "untested", rounds=2, done=1, test=False)
    found = compared(filled.ledger, "first", "uneven")
    assert found.title == "accuracy"
    assert found.remarks == (
        "Their own measures differ (accuracy, balanced accuracy), so they are compared by accuracy.",)
    assert found.studies[1].score == accuracy_after(2)
    assert "different test images" in " ".join(compared(filled.ledger, "first", "untested").remarks)
    assert compared(filled.ledger, "first", "untested").studies[1].points == ()


def test_a_study_that_has_not_begun_has_no_numbers(two: Filled) -> None:
    two.ledger.queue_study("third", study_config(rounds=3))
    third = compared(two.ledger, "first", "third").studies[1]
    assert (third.score, third.seconds, third.points, third.gain, third.wire_bytes) == (None, None, (), "", 0)


def test_of_very_many_rounds_the_last_is_always_there(two: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_MOST_POINTS", 2)
    assert [point.round for point in compared(two.ledger, "first", "second").studies[0].points] == [1, 4]


@pytest.mark.parametrize("names", [(), ("first",), ("first", "first"), tuple("abcdefghi")])
def test_fewer_than_two_or_more_than_eight_cannot_be_compared(names: tuple[str, ...], two: Filled) -> None:
    with pytest.raises(UsageError, match="2 to 8"):
        compare_studies(two.ledger, names, costs={}, now_unix=0.0)


def test_one_that_is_not_there_is_named(two: Filled) -> None:
    with pytest.raises(UnknownName, match="nobody"):
        compared(two.ledger, "first", "nobody")
