"""Fixed point: levels, rounding without bias, the stated error, and the sum that fits into a word."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload
from semisilo.common.secure_aggregation.fixed_point import decode_sum, largest_level, quantise, to_words
from tests.each_of import each_of


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@each_of(("bits", "silos", "level"), [(16, 10, 3276), (16, 32, 1023), (24, 10, 838860),
                                      (32, 1, 2**31 - 1), (16, 3, 10922)])
def test_the_largest_level(bits: int, silos: int, level: int) -> None:
    assert largest_level(bits, silos) == level
    assert silos * level <= 2**(bits - 1) - 1 < silos * (level + 1)


def test_words_without_room_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="no room"):
        largest_level(4, 8)


@settings(max_examples=60)
@given(bits=st.sampled_from([16, 20, 24, 32]), silos=st.integers(1, 32), bound=st.floats(1e-6, 1e6),
       seed=st.integers(0, 99))
def test_the_decoded_sum_is_within_the_stated_error(bits: int, silos: int, bound: float, seed: int) -> None:
    level = largest_level(bits, silos)
    drawn = generator(seed)
    words = np.zeros(40, dtype=np.uint32)
    exact = [Fraction(0)] * 40
    for _ in range(silos):
        values = (drawn.uniform(-1.3, 1.3, size=40) * bound).astype(np.float32)
        levels, _ = quantise(values, bound=bound, level=level, generator=drawn)
        words += to_words(levels)
        clamped = [max(-Fraction(bound), min(Fraction(bound), Fraction(float(value)))) for value in values]
        exact = [total + value for total, value in zip(exact, clamped, strict=True)]
    words &= np.uint32(2**bits - 1)
    step = Fraction(bound) / level
    for found, wanted in zip(decode_sum(words, bits=bits, bound=bound, level=level), exact, strict=True):
        # float64 adds 1e-15 of the sum itself to what rounding to integers loses.
        assert abs(Fraction(float(found)) - wanted) <= silos * step + Fraction(silos * bound) / 10**15


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [16, 20, 24, 32])
def test_the_largest_sum_does_not_wrap(bits: int, sign: int) -> None:
    for silos in (1, 3, 7, 32):
        level = largest_level(bits, silos)
        levels, clamped = quantise(np.full(3, sign * 5.0, dtype=np.float32), bound=2.0,
                                   level=level, generator=generator())
        assert levels.tolist() == [sign * level] * 3
        assert clamped == 3
        words = np.zeros(3, dtype=np.uint32)
        for _ in range(silos):
            words += to_words(levels)
        decoded = decode_sum(words & np.uint32(2**bits - 1), bits=bits, bound=2.0, level=level)
        assert decoded == pytest.approx([sign * 2.0 * silos] * 3, rel=1e-12)


def test_rounding_has_no_bias() -> None:
    """Mean of n Bernoulli draws: within 5 standard deviations, at several fractions and both signs."""
    n = 200_000
    for value in (0.3, -0.3, 0.001, -7.75, 12.5, -0.999):
        levels, _ = quantise(np.full(n, value, dtype=np.float32), bound=100.0, level=100, generator=generator())
        exact = float(np.float32(value))
        fraction = exact - np.floor(exact)
        assert set(np.unique(levels)) <= {int(np.floor(exact)), int(np.floor(exact)) + 1}
        assert abs(levels.mean() - exact) <= 5 * (fraction * (1 - fraction) / n) ** 0.5 + 1e-12


def test_rounding_to_the_nearest_would_be_found() -> None:
    """The control of the test above: the mean of the nearest integers of 0.3 is 0."""
    assert np.rint(np.full(10, 0.3)).mean() == 0


def test_integers_stay_as_they_are() -> None:
    levels, clamped = quantise(np.arange(-50, 51, dtype=np.float32), bound=50.0, level=50, generator=generator())
    assert levels.tolist() == list(range(-50, 51))
    assert clamped == 0


def test_a_seed_gives_the_same_integers_and_another_seed_others() -> None:
    values = generator().normal(size=100_000).astype(np.float32)
    first, second, third = (quantise(values, bound=4.0, level=1000, generator=generator(seed))[0] for seed in (5, 5, 6))
    assert (first == second).all()
    assert (first != third).any()


def test_draws_do_not_hang_on_blocks() -> None:
    values = generator().normal(size=100_000).astype(np.float32)
    scaled = np.clip(values.astype(np.float64) * (1000 / 4.0), -1000, 1000)
    assert (quantise(values, bound=4.0, level=1000, generator=generator(5))[0]
            == np.floor(scaled + generator(5).random(100_000))).all()


@each_of("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    values = np.zeros(70_000, dtype=np.float32)
    values[-1] = value
    with pytest.raises(BadPayload, match="not a finite number"):
        quantise(values, bound=1.0, level=10, generator=generator())


@each_of(("bound", "level"), [(0.0, 1), (-1.0, 1), (np.inf, 1), (np.nan, 1), (1.0, 0), (1.0, 2**31)])
def test_scales_that_are_none_are_our_own_mistake(bound: float, level: int) -> None:
    with pytest.raises(ValueError, match="A bound is finite"):
        quantise(np.zeros(1, dtype=np.float32), bound=bound, level=level, generator=generator())


def test_bits_above_the_word_do_not_count() -> None:
    assert decode_sum(np.array([0xffff8000, 0x12347fff, 0x0000ffff], dtype=np.uint32), bits=16, bound=1.0,
                      level=1).tolist() == [-32768, 32767, -1]
