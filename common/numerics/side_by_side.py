"""Pieces of work that do not need each other, at the same time: a core for each instead of a core for all in turn.

Two passes through a network on a core each take less time than one pass after the other on both, and every operation
is computed as if it were alone: the bits are those of one after the other, on any number of cores. (More threads for
one operation, `Numerics.threads`, change the order of its sums, and so the bits.)
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["lanes", "one_after_the_other", "results_in_order", "set_lanes", "shares", "side_by_side"]

T = TypeVar("T")

_LEAST_SHARE = 2**17
"""Elements from which on it is quicker to change them on another core than to wait for it."""

_pool: ThreadPoolExecutor | None = None
_lanes = 1


def set_lanes(count: int) -> None:
    """How many pieces of work this process does at a time, from 1. For `semisilo.common.numerics.numerics`."""
    global _lanes, _pool
    if count != _lanes:
        if _pool is not None:
            _pool.shutdown(wait=False)
        # The calling thread is one of the lanes.
        _pool = ThreadPoolExecutor(count - 1, thread_name_prefix="semisilo-lane") if count > 1 else None
        _lanes = count


def lanes() -> int:
    """How many pieces of work this process does at a time."""
    return _lanes


def shares(tensors: Sequence[torch.Tensor]) -> list[slice]:
    """Tensors, at least one, in runs of nearly equal size, one for each lane, for work on each of them that needs no
    other; fewer runs where there is little to do."""
    ends = list(itertools.accumulate(tensor.numel() for tensor in tensors))
    count = max(1, min(_lanes, ends[-1] // _LEAST_SHARE))
    cuts = {0, *(bisect.bisect_left(ends, ends[-1] * number / count) + 1 for number in range(1, count)), len(ends)}
    return [slice(start, end) for start, end in itertools.pairwise(sorted(cuts))]


def side_by_side(works: Iterable[Callable[[], T]]) -> list[T]:
    """Does all pieces of work and returns their results in order.

    Each has the caller's gradient mode. None may draw random numbers, or change what another one reads.
    Raises: what the first of them, in order, has raised; all have ended by then.
    """
    first, *rest = works
    pool = _pool
    if pool is None or not rest:
        return one_after_the_other([first, *rest])
    futures = [pool.submit(_in_gradient_mode, torch.is_grad_enabled(), work) for work in rest]
    try:
        result = first()
    finally:
        for future in futures:
            future.exception()  # waits
    return [result, *(future.result() for future in futures)]


def one_after_the_other(works: Iterable[Callable[[], T]]) -> list[T]:
    """As `side_by_side`, in the calling thread alone; stops at the first that raises."""
    return [work() for work in works]


def results_in_order(works: Iterable[Callable[[], T]]) -> Generator[T, None, None]:
    """The results of many pieces of work in order, as many in work at a time as there are lanes; the pieces are taken
    one by one, so that no more images than that are in memory.

    As `side_by_side` otherwise; what one raises comes where its result would.
    """
    pool, waiting = _pool, iter(works)
    if pool is None:
        for work in waiting:
            yield work()
        return
    mode = torch.is_grad_enabled()
    ahead: deque[Future[T]] = deque()
    try:
        for work in waiting:
            # The others go to work on what comes behind while this thread does the piece in front.
            ahead.extend(pool.submit(_in_gradient_mode, mode, each) for each in itertools.islice(waiting, _lanes - 1))
            yield work()
            while ahead:
                yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()
            if not future.cancelled():
                future.exception()


def _in_gradient_mode(enabled: bool, work: Callable[[], T]) -> T:
    with torch.set_grad_enabled(enabled):
        return work()
