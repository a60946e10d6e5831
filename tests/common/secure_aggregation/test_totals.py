"""Numbers that are added up beside tensors: what comes out is the sum, whatever the words."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisilo.common.secure_aggregation.fixed_point import largest_level
from semisilo.common.secure_aggregation.totals import TOTAL_WORDS, decode_totals, total_words
from tests.each_of import each_of

SILOS = st.lists(st.tuples(st.floats(0, 1), st.lists(st.integers(0, 5000), min_size=2, max_size=2)), min_size=1,
                 max_size=32)


@given(bits=st.sampled_from([16, 18, 24, 32]), silos=SILOS)
def test_the_sum_is_that_of_the_rounded_parts_exactly(bits: int, silos: list[tuple[float, list[int]]]) -> None:
    level = largest_level(bits, len(silos))
    total = np.zeros(2 * TOTAL_WORDS, np.uint32)
    for weight, values in silos:
        words, cut = total_words(values, weight=weight, level=level)
        assert not cut
        assert words.max() < level
        total += words
    found = decode_totals(total, bits=bits, level=level, silos=len(silos))
    for place in range(2):
        right = sum(Fraction(round(weight * values[place] * level), level) for weight, values in silos)
        assert found[place] == pytest.approx(float(right), rel=1e-12)


def test_a_total_may_be_a_fraction_and_its_silo_weigh_little() -> None:
    level = largest_level(18, 10)
    words, _ = total_words([27.75], weight=0.25, level=level)
    assert decode_totals(words, bits=18, level=level, silos=1)[0] == pytest.approx(27.75 / 4, abs=1 / level)


def test_a_million_steps_have_room_in_the_coarsest_words_and_more_are_cut() -> None:
    level = largest_level(16, 32)
    words, cut = total_words([1e6, 1e7], weight=1.0, level=level)
    assert cut == 1
    found = decode_totals(words, bits=16, level=level, silos=1)
    assert found[0] == 1e6
    assert found[1] == pytest.approx(level**2, rel=1e-6)


@each_of("wrong", [-1.0, math.nan, math.inf])
def test_what_is_no_count_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="cannot be added up"):
        total_words([wrong], weight=1.0, level=1000)


def test_noise_is_no_sum_of_digits() -> None:
    level = largest_level(18, 3)
    noise = np.random.default_rng(1).integers(0, 2**32, 3 * 8, dtype=np.uint32)
    with pytest.raises(ValueError, match="digit"):
        decode_totals(noise, bits=18, level=level, silos=2)
