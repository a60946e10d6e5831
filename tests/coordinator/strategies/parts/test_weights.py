"""Weights of accepted updates: the oracles of the specification, the properties of FedFreq, and the edges."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisilo.coordinator.strategies.parts.weights import (
    FedFreqRule,
    counted,
    fedfreq_weights,
    no_larger,
    share_weights,
    size_weights,
    uniform_weights,
    weights_of,
)
from tests.each_of import each_of

COUNTS = st.lists(st.integers(1, 10_000), min_size=1, max_size=20)
RULES: tuple[FedFreqRule, ...] = ("share", "inverse")


def _average(weights: list[float], models: list[list[float]]) -> list[float]:
    return [sum(weight * value for weight, value in zip(weights, column, strict=True))
            for column in zip(*models, strict=True)]


@each_of(("counts", "expected"), [
    ([1, 1, 1, 1, 1], [0.2, 0.2, 0.2, 0.2, 0.2]),
    ([1, 2, 3, 4, 10], [0.2375, 0.225, 0.2125, 0.2, 0.125]),
    ([7], [1.0]),
    ([1, 9], [0.9, 0.1]),
])
def test_oracles_x1_to_x4_fedfreq(counts: list[int], expected: list[float]) -> None:
    found = fedfreq_weights(counts)
    assert found == pytest.approx(expected, abs=1e-5)
    assert sum(found) == pytest.approx(1.0, abs=1e-12)


def test_oracle_b1_by_size() -> None:
    weights = size_weights([100, 300])
    assert weights == pytest.approx([0.25, 0.75], abs=1e-5)
    assert _average(weights, [[1, 2], [3, 6]]) == pytest.approx([2.5, 5.0], abs=1e-5)


def test_oracle_b2_uniform() -> None:
    weights = uniform_weights(2)
    assert weights == pytest.approx([0.5, 0.5], abs=1e-5)
    assert _average(weights, [[1, 2], [3, 6]]) == pytest.approx([2.0, 4.0], abs=1e-5)


@pytest.mark.parametrize(("scores", "models", "weights", "aggregate"), [
    ([0.5, 0.3, 0.2], [[1, 0], [2, 10], [-1, 5]], [0.5, 0.3, 0.2], [0.9, 4.0]),
    ([0.0, 0.0], [[1, 0], [3, 4]], [0.5, 0.5], [2.0, 2.0]),
])
def test_oracles_m4_and_m5_by_reliability(scores: list[float], models: list[list[float]], weights: list[float],
                                          aggregate: list[float]) -> None:
    found = share_weights(scores)
    assert found == pytest.approx(weights, abs=1e-5)
    assert _average(found, models) == pytest.approx(aggregate, abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
@given(counts=COUNTS)
def test_fedfreq_is_a_mean_that_never_favours_who_came_more_often(rule: FedFreqRule, counts: list[int]) -> None:
    weights = fedfreq_weights(counts, rule)
    assert sum(weights) == pytest.approx(1.0, abs=1e-9)
    assert all(weight > 0 for weight in weights)
    by_count = sorted(zip(counts, weights, strict=True))
    assert all(less >= more - 1e-12 for (_, less), (_, more) in pairwise(by_count))


@given(counts=COUNTS)
def test_a_share_weight_is_at_most_one_over_the_others(counts: list[int]) -> None:
    """0 < p_k <= 1 / (|S| - 1): nobody dominates but where there are one or two."""
    if len(counts) > 1:
        assert max(fedfreq_weights(counts)) <= 1 / (len(counts) - 1)


@pytest.mark.parametrize("rule", RULES)
@given(count=st.integers(1, 10_000), silos=st.integers(1, 20))
def test_equal_counts_give_the_plain_mean(rule: FedFreqRule, count: int, silos: int) -> None:
    assert fedfreq_weights([count] * silos, rule) == pytest.approx(uniform_weights(silos), abs=1e-12)


def test_with_growing_counts_fedfreq_tends_to_the_plain_mean() -> None:
    """Silos that lag by 5 rounds: p_k - 1/m = -(q_k - mean q) / ((m - 1) sum q), which falls as 1 / rounds."""
    gaps = [max(abs(weight - 1 / 3) for weight in fedfreq_weights([rounds, rounds + 5, rounds + 10]))
            for rounds in (1, 100, 10_000)]
    assert gaps[0] > 0.1
    assert gaps[1] == pytest.approx(5 / (2 * 315), rel=1e-9)
    assert gaps[2] < 1e-4


def test_the_inverse_rule_is_one_over_the_count_normalised() -> None:
    parts = [Fraction(1, count) for count in (1, 2, 4)]
    expected = [float(part / sum(parts)) for part in parts]  # 4/7, 2/7, 1/7
    assert fedfreq_weights([1, 2, 4], "inverse") == pytest.approx(expected, abs=1e-12)


def test_a_late_joiner_enters_with_the_largest_weight() -> None:
    weights = fedfreq_weights([40, 40, 1])
    assert weights[2] == max(weights)
    assert weights[2] == pytest.approx((1 - 1 / 81) / 2, abs=1e-12)


def test_a_round_is_counted_for_those_whose_update_was_accepted() -> None:
    before = {"b": 3, "c": 1}
    assert counted(before, ["a", "b"]) == {"a": 1, "b": 4, "c": 1}
    assert before == {"b": 3, "c": 1}, "what was handed in is left as it was"
    assert counted(before, []) == before


def test_counts_stand_in_byte_order_whatever_the_order_of_arrival() -> None:
    one, other = counted({"b": 1}, ["é", "a", "Z"]), counted({"b": 1}, ["Z", "é", "a"])
    assert list(one) == list(other) == ["Z", "a", "b", "é"]


def test_without_accepted_silos_there_are_no_weights() -> None:
    for rule in ("fedfreq", "uniform", "size"):
        assert weights_of(rule, [], [], {"absent": 3}) == {}


def test_weights_are_chosen_by_rule() -> None:
    silos, sizes, counts = ["a", "b"], [100, 300], {"a": 1, "b": 3, "absent": 50}
    assert weights_of("uniform", silos, sizes, counts) == {"a": 0.5, "b": 0.5}
    assert weights_of("size", silos, sizes, counts) == {"a": 0.25, "b": 0.75}
    assert weights_of("fedfreq", silos, sizes, counts) == {"a": 0.75, "b": 0.25}
    assert weights_of("fedfreq", silos, sizes, counts, "inverse") == pytest.approx({"a": 0.75, "b": 0.25})


def test_a_silo_that_has_abstained_so_far_does_not_own_a_round() -> None:
    """Of ten it had 0.85 under "inverse", and of two 0.98 under "share"."""
    silos = list("abcdefghij")
    counts = {**dict.fromkeys(silos, 50), "j": 1}
    bare = weights_of("fedfreq", silos, [1] * 10, counts, "inverse")
    assert bare["j"] == pytest.approx(0.8475, abs=1e-4)
    found = weights_of("fedfreq", silos, [1] * 10, counts, "inverse", largest_share=0.5)
    assert found["j"] == pytest.approx(0.5)
    assert found["a"] == pytest.approx(0.5 / 9)
    assert weights_of("fedfreq", ["a", "j"], [1, 1], counts)["j"] == pytest.approx(50 / 51)
    assert weights_of("fedfreq", ["a", "j"], [1, 1], counts, largest_share=0.5) == {"a": 0.5, "j": 0.5}
    two = {**counts, "i": 1}
    liars = weights_of("fedfreq", silos, [1] * 10, two, "inverse", largest_share=0.5, together=2)
    assert liars["i"] + liars["j"] == pytest.approx(0.5)


@pytest.mark.parametrize("rule", RULES)
@given(counts=st.lists(st.integers(40, 60), min_size=3, max_size=10))
def test_weights_that_none_has_too_much_of_keep_their_bits(rule: FedFreqRule, counts: list[int]) -> None:
    """FedMix's ten silos take part about as often."""
    weights = fedfreq_weights(counts, rule)
    assert no_larger(weights, 0.5) == weights


def test_nobody_with_an_image_weighs_like_everybody() -> None:
    assert size_weights([0, 0, -3]) == uniform_weights(3)
    assert size_weights([0, 5, -3]) == [0.0, 1.0, 0.0], "a negative number counts as none"
