"""Dealing class by class against hand-made cases."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.simulation.splits.class_pools import hand_out, shuffled_classes, spread_evenly


def test_each_class_of_the_pool_is_shuffled_and_nothing_else_is_in_it():
    labels = np.array([0, 1, 0, 1, 2, 0, 0])
    pool = np.array([0, 1, 2, 5, 6])
    first, second, third = shuffled_classes(labels, pool, 3, np.random.default_rng(0))
    assert sorted(first) == [0, 2, 5, 6]
    assert list(second) == [1]
    assert len(third) == 0
    orders = {tuple(shuffled_classes(labels, pool, 3, np.random.default_rng(seed))[0]) for seed in range(20)}
    assert len(orders) > 5


def test_silos_take_from_the_front_one_after_another_until_a_class_is_exhausted():
    """Class 0 has [5, 3, 1], class 1 [2, 4]: silo 0 wants 2 + 1 and gets {5, 3} and {2}; silo 1 wants 2 + 0 and gets
    the last of class 0; silo 2 wants 1 + 5 and gets what is left of class 1."""
    parts = hand_out([np.array([5, 3, 1]), np.array([2, 4])], [[2, 1], [2, 0], [1, 5]])
    assert [part.tolist() for part in parts] == [[2, 3, 5], [1], [4]]
    assert all(part.dtype == np.int64 for part in parts)


def test_what_one_class_cannot_give_the_others_do():
    """7 over classes that have 1, 5 and 0: 4 + 3 are asked of the open ones, the first gives 1, the second 3 and then
    the 3 that are lacking, of which it has 2."""
    assert spread_evenly(7, np.array([1, 5, 0])).tolist() == [1, 5, 0]
    assert spread_evenly(5, np.array([1, 5, 0])).tolist() == [1, 4, 0]
    assert spread_evenly(5, np.array([9, 9, 9])).tolist() == [2, 2, 1], "largest remainder, ties to the lowest class"
    assert spread_evenly(0, np.array([3, 3])).tolist() == [0, 0]
    assert spread_evenly(4, np.array([0, 0])).tolist() == [0, 0]


@settings(max_examples=100)
@given(st.integers(0, 200), st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_an_even_spread_gives_all_it_can_and_no_class_gives_more_than_another_that_has_some_left(total, left):
    given_C = spread_evenly(total, np.array(left))
    assert given_C.sum() == min(total, sum(left))
    assert (given_C <= left).all()
    for class_ in range(len(left)):
        if given_C[class_] < left[class_]:
            assert given_C.max() <= given_C[class_] + 1 + len(left), "but for rounding, once per refill"
