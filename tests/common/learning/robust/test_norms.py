"""Bounds on lengths, against their definitions."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from semisilo.common.learning.robust.norms import clip_factors, norm_limit

NORMS = st.lists(st.floats(0.01, 100), min_size=3, max_size=12)


@given(NORMS, st.floats(1, 10))
def test_the_limit_is_a_multiple_of_the_lower_median(norms: list[float], factor: float) -> None:
    assert norm_limit(norms, factor=factor) == factor * sorted(norms)[(len(norms) - 1) // 2]


@given(NORMS, st.data())
def test_fewer_than_half_cannot_raise_it_above_an_honest_norm(norms: list[float], data: st.DataObject) -> None:
    liars = data.draw(st.integers(0, (len(norms) - 1) // 2))
    lies = data.draw(st.lists(st.floats(1e-9, 1e12), min_size=liars, max_size=liars))
    limit = norm_limit([*norms[liars:], *lies], factor=1.0)
    assert limit is not None
    assert limit <= max(norms[liars:])


def test_norms_of_zero_and_a_missing_median_limit_nothing() -> None:
    assert norm_limit([0.0] * 7 + [1.0, 2.0], factor=1.0) is None
    assert norm_limit([0.0] * 7 + [1.0, 2.0, 3.0], factor=1.0) == 2.0
    assert norm_limit([5.0, 1.0], factor=2.0) is None
    assert norm_limit([5.0, 1.0], factor=2.0, own=2.0) == 4.0
    assert norm_limit([math.inf] * 3, factor=1.0) is None


@given(NORMS, st.floats(0.1, 50))
def test_nothing_is_longer_than_the_limit_and_what_is_shorter_stays_exactly(norms: list[float], limit: float) -> None:
    for norm, factor in zip(norms, clip_factors(norms, limit), strict=True):
        assert norm * factor <= limit * (1 + 1e-12)
        assert (factor == 1.0) == (norm <= limit)


def test_without_a_limit_all_factors_are_one() -> None:
    assert clip_factors([1.0, statistics.fmean([2, 4])], None) == [1.0, 1.0]
