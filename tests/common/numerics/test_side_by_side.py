"""Work side by side: order, errors, gradient mode, and that it really is at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from semisilo.common.numerics.side_by_side import (
    lanes,
    one_after_the_other,
    results_in_order,
    set_lanes,
    shares,
    side_by_side,
)


@pytest.fixture(autouse=True)
def _lanes_as_before() -> Iterator[None]:
    before = lanes()
    yield
    set_lanes(before)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_results_come_in_order_whatever_the_number_of_lanes(count: int) -> None:
    set_lanes(count)
    works = [partial(pow, number, 2) for number in range(7)]
    assert side_by_side(works) == one_after_the_other(works) == list(results_in_order(works))
    assert list(results_in_order([])) == []


def test_two_pieces_are_in_work_at_the_same_time() -> None:
    """Each waits for the other; one after the other the first would wait for ever, here until the barrier breaks."""
    set_lanes(2)
    met = threading.Barrier(2, timeout=30)
    assert sorted(side_by_side([met.wait, met.wait])) == [0, 1]
    assert sorted(results_in_order([met.wait, met.wait])) == [0, 1]


def test_an_error_comes_where_its_result_would_and_the_others_have_ended_by_then() -> None:
    set_lanes(2)
    done: list[int] = []

    def fails() -> int:
        raise ValueError("third")

    def works() -> int:
        done.append(1)
        return 1

    with pytest.raises(ValueError, match="third"):
        side_by_side([works, fails])
    assert done == [1]
    with pytest.raises(ValueError, match="third"):
        side_by_side([fails, works])
    assert done == [1, 1]
    results = results_in_order([works, works, fails, works])
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ValueError, match="third"):
        next(results)


def test_pieces_are_taken_only_as_far_ahead_as_there_are_lanes() -> None:
    set_lanes(2)
    taken: list[int] = []

    def pieces() -> Iterator[partial[int]]:
        for number in range(10):
            taken.append(number)
            yield partial(int, number)

    results = results_in_order(pieces())
    next(results)
    assert taken == [0, 1]
    results.close()


def test_the_callers_gradient_mode_holds_in_every_lane() -> None:
    set_lanes(3)
    modes = [torch.is_grad_enabled] * 4
    assert side_by_side(modes) == [True] * 4
    with torch.no_grad():
        assert side_by_side(modes) == [False] * 4
        assert list(results_in_order(modes)) == [False] * 4


@pytest.mark.parametrize(("lanes_set", "sizes", "expected"), [
    (2, [2**18, 2**18], [[2**18], [2**18]]),
    (2, [2**16, 2**17, 2**18, 2**18], [[2**16, 2**17, 2**18], [2**18]]),
    (2, [1, 2**20], [[1, 2**20]]),  # one tensor is never cut
    (3, [2**17] * 3, [[2**17], [2**17], [2**17]]),
    (4, [2**17] * 2, [[2**17], [2**17]]),  # more lanes than there is work for
    (2, [100] * 50, [[100] * 50]),  # quicker alone
    (1, [2**20] * 2, [[2**20] * 2])])
def test_tensors_are_shared_out_in_order_and_only_where_there_are_many_elements(
        lanes_set: int, sizes: list[int], expected: list[list[int]]) -> None:
    set_lanes(lanes_set)
    tensors = [torch.empty(size, device="meta") for size in sizes]
    assert [[tensor.numel() for tensor in tensors[share]] for share in shares(tensors)] == expected
