"""Newcombe's interval of a difference of two shares, from Wilson's of each: what the gain in a share must have."""

from __future__ import annotations

from semisilo.common.measures.intervals import Interval, difference_interval, wilson

__all__ = ["newcombe"]


def newcombe(successes: int, others: int, count: int) -> Interval:
    """Interval of successes / count - others / count.

    Source: Newcombe, Statistics in Medicine 17 (1998), method 10; its published example is in
    `tests/common/measures/test_intervals.py`.
    """
    first, second = wilson(successes, count), wilson(others, count)
    assert first is not None
    assert second is not None
    return difference_interval(successes / count, first, others / count, second)
