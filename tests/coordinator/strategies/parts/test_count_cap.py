"""The largest weight of one silo, held against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semisilo.coordinator.strategies.parts.count_cap import capped_counts, capped_weights, far_above
from semisilo.coordinator.strategies.parts.weights import size_weights


def test_half_lets_no_silo_outweigh_all_others_together() -> None:
    assert capped_counts([100, 10**9, 50], 0.5) == [100, 150, 50]
    assert capped_counts([100, 120, 50], 0.5) == [100, 120, 50], "nobody has more than half: nothing changes"


def test_two_silos_count_the_same_under_half_and_one_alone_keeps_its_count() -> None:
    assert capped_counts([10, 90], 0.5) == [10, 10]
    assert capped_counts([90], 0.5) == [90]
    assert capped_counts([90, 0], 0.5) == [90, 0]
    assert capped_counts([], 0.5) == []
    assert capped_counts([0, 0], 0.5) == [0, 0]


def test_a_share_that_cannot_be_makes_all_count_as_the_smallest() -> None:
    assert capped_counts([10, 20, 30], 0.1) == [10, 10, 10]


def test_a_hundred_percent_lets_counts_stand() -> None:
    assert capped_counts([1, 10**9], 1.0) == [1, 10**9]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.9]))
def test_no_weight_is_above_the_share_or_what_equal_weights_would_be(counts: list[int], share: float) -> None:
    """By whole images: of n silos with images the largest weight is s or 1/n, up to one image."""
    found = capped_counts(counts, share)
    assert all(0 < new <= old if old else new == 0 for new, old in zip(found, counts, strict=True))
    total, there = sum(found), sum(count > 0 for count in counts)
    if there:
        assert max(found) <= max(share, 1 / there) * total + 1
        assert max(size_weights(found)) <= max(share, 1 / there) + 1 / total


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8))
def test_those_below_the_cap_keep_their_counts(counts: list[int]) -> None:
    found = capped_counts(counts, 0.5)
    cap = max(found)
    assert found == [min(count, cap) for count in counts]


def test_two_silos_that_announce_a_billion_do_not_own_the_average_together() -> None:
    """Each has just under a half, so that a cap of each alone cuts nothing: together 0.9999996."""
    counts = [100] * 8 + [10**9] * 2
    assert capped_counts(counts, 0.5) == counts
    assert sum(size_weights(counts)[8:]) > 0.999999
    assert capped_counts(counts, 0.5, together=2) == [100] * 8 + [400] * 2
    assert capped_counts([100, 120, 90, 80, 20], 0.5, together=2) == [95, 95, 90, 80, 20]
    assert capped_counts([100, 100, 90, 110], 0.6, together=2) == [100, 100, 90, 110]


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=12), st.sampled_from([0.25, 0.5, 0.9]), st.integers(1, 5))
def test_the_largest_together_have_their_share_and_no_count_is_cut_in_vain(
        counts: list[int], share: float, together: int) -> None:
    found = capped_counts(counts, share, together=together)
    cap, most = max(found), max(share, together / len(counts))
    assert found == [min(count, cap) for count in counts]
    assert sum(sorted(found)[-together:]) <= most * sum(found) + together
    if found != counts and share * len(counts) > together:
        higher = [min(count, cap + 1) for count in counts]
        assert sum(sorted(higher)[-together:]) > share * sum(higher), "one image more would be too many"


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8))
def test_weights_are_cut_like_counts_and_stay_to_the_bit_where_they_are_not(weights: list[float]) -> None:
    found = capped_weights(weights, 0.5)
    assert found == [min(weight, max(found)) for weight in weights]
    assert max(found) <= max(0.5, 1 / len(found)) * sum(found) * (1 + 1e-12)
    if max(weights) <= 0.5 * sum(weights) * (1 - 1e-12):
        assert found == weights


def test_a_count_far_above_those_of_the_others_is_news() -> None:
    counts = {"a": 100, "b": 90, "c": 0, "d": 1000, "e": 1001}
    assert far_above(counts) == {"e": 100}
    assert far_above({"a": 100, "b": 10**9, "c": 10**9, "d": 80, "e": 90}) == {"b": 90, "c": 90}
    assert far_above({"a": 1, "b": 10**9}) == far_above({}) == {}, "of two one may lie as well as the other"
