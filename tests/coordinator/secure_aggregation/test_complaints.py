"""Whom a sum goes on without where silos complain of one another."""

from __future__ import annotations

import itertools

import pytest

from semisilo.coordinator.secure_aggregation.complaints import at_odds


@pytest.mark.parametrize(("complaints", "left_out"), [
    ([], {}),
    ([("a", "b")], {}),
    ([("a", "b"), ("b", "a"), ("a", "b")], {}),
    ([("a", "b"), ("c", "b")], {"b": ("a", "c")}),
    ([("b", "a"), ("b", "c")], {"b": ("a", "c")}),
    ([("a", "b"), ("c", "b"), ("d", "a")], {}),
    ([("a", "b"), ("c", "b"), ("e", "b"), ("d", "a")], {"b": ("a", "c", "e")}),
    ([("a", "b"), ("b", "c"), ("c", "a")], {}),
    ([("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")], {"x": ("a", "b"), "y": ("c", "d")}),
    ([("a", "a"), ("a", "b")], {}),
])
def test_who_is_at_odds_with_most_is_left_out(complaints: list[tuple[str, str]],
                                              left_out: dict[str, tuple[str, ...]]) -> None:
    assert at_odds(complaints) == left_out


def test_the_order_of_complaints_does_not_matter() -> None:
    complaints = [("a", "b"), ("c", "b"), ("e", "b"), ("e", "d"), ("f", "d"), ("g", "d"), ("h", "d")]
    assert at_odds(complaints) == {"b": ("a", "c", "e"), "d": ("e", "f", "g", "h")}
    for turned in itertools.permutations(complaints, 7):
        assert at_odds(turned) == at_odds(complaints)
