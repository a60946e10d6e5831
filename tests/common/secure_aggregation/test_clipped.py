"""Updates as whole numbers of a bounded length: never longer than the clip, right on average, and sums that fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.secure_aggregation.clipped import (
    LEAST_DEVIATION,
    bits_of_clip,
    bits_of_step,
    bound_of_clip,
    bound_of_step,
    clipped_levels,
    length_in_levels,
)
from semisilo.common.secure_aggregation.fixed_point import largest_level
from tests.each_of import each_of


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def length_of(levels: np.ndarray) -> float:
    return math.sqrt(sum(int(each)**2 for each in levels))


@settings(max_examples=80)
@given(count=st.integers(1, 3000), magnitude=st.sampled_from([1e-8, 1e-3, 1.0, 1e6, 1e30]),
       length=st.sampled_from([80.0, 500.0, 6553.0, 2.5e7]), spike=st.booleans(), seed=st.integers(0, 999))
def test_no_update_is_longer_than_the_clip(count: int, magnitude: float, length: float, *, spike: bool,
                                           seed: int) -> None:
    values = (generator(seed).standard_normal(count) * magnitude).astype(np.float32)
    if spike:
        values[0] = np.float32(magnitude * 1e3)
    if length**2 < 2 * (count / 4 + 6 * math.sqrt(count)):
        with pytest.raises(ValueError, match="no room"):
            clipped_levels(values, length, scale=1e3, generator=generator(seed))
        return
    assert length_of(clipped_levels(values, length, scale=1e3, generator=generator(seed))) <= length


@each_of("draw", [0.0, 0.5, 1.0 - 2.0**-53])
def test_not_even_where_every_number_is_rounded_up(draw: float) -> None:
    """The worst that a generator can give: then it is rounded towards zero."""
    class Stuck:
        def random(self, count: int) -> np.ndarray:
            return np.full(count, draw)

    values = np.full(1000, 0.3, np.float32)
    found = clipped_levels(values, 60.0, scale=100.0, generator=Stuck())  # type: ignore[arg-type]
    assert length_of(found) <= 60.0
    assert (found == 1).all()


def test_what_is_short_is_kept_on_average() -> None:
    values = (generator().standard_normal(400) * 0.01).astype(np.float32)  # length 0.2 of a clip of 1
    mean = sum(clipped_levels(values, 5000.0, scale=5000.0, generator=generator(seed)) for seed in range(400)) / 400
    assert np.abs(mean / 5000.0 - values).max() < 5 * 0.5 / 5000.0 / math.sqrt(400)


def test_what_is_long_keeps_its_direction_and_has_nearly_the_length() -> None:
    values = (generator().standard_normal(400) * 3).astype(np.float32)
    found = clipped_levels(values, 5000.0, scale=5000.0, generator=generator()).astype(np.float64)
    assert 0.998 < length_of(found) / 5000.0 <= 1
    assert np.dot(found, values) / np.linalg.norm(found) / np.linalg.norm(values) > 0.9999


@each_of(("bits", "silos", "noise", "shares"), [(18, 10, 1.0, 4), (18, 32, 0.1, 12), (16, 10, 8.0, 1),
                                               (32, 10, 1.0, 7)])
def test_the_sum_of_all_silos_fits_into_a_word_noise_and_all(bits: int, silos: int, noise: float, shares: int) -> None:
    bound = bound_of_clip(0.5, noise_multiplier=noise, silo_count=silos, shares=shares)
    length = length_in_levels(0.5, bits=bits, bound=bound, silo_count=silos)
    worst = silos * length + 10 * noise * length * math.sqrt(silos / shares)
    assert worst <= 2**(bits - 1) - 1
    assert worst > 0.99 * (2**(bits - 1) - 1) - silos  # and not much less
    assert length * bound / largest_level(bits, silos) == pytest.approx(0.5)


def test_words_have_bits_enough_for_rounding() -> None:
    bound = bound_of_clip(1.0, noise_multiplier=1.0, silo_count=10, shares=4)
    assert bits_of_clip(18, 10_000, clip_norm=1.0, bound=bound, silo_count=10) == 18
    many = bits_of_clip(18, 25_000_000, clip_norm=1.0, bound=bound, silo_count=10)
    assert many == 19
    length = length_in_levels(1.0, bits=many, bound=bound, silo_count=10)
    assert length**2 / 16 >= 25e6 / 4
    assert bits_of_clip(18, 10**17, clip_norm=1.0, bound=bound, silo_count=10) == 32


@each_of(("bits", "images", "noise", "shares"), [(18, 100, 1.0, 4), (18, 1000, 1.0, 7),
                                                 (16, 30, 20.0, 1)])
def test_the_sum_of_a_step_fits_into_a_word_even_where_all_gradients_are_alike(bits: int, images: int, noise: float,
                                                                                shares: int) -> None:
    """Ten deviations of how many images come, and of the noise of all silos; and the noise of each is above the grid.
    """
    silos, one = 10, 1e-3
    bound = bound_of_step(one, images=images, noise_multiplier=noise, silo_count=silos, shares=shares)
    bits = bits_of_step(bits, contribution=one, bound=bound, noise_multiplier=noise, silo_count=silos, shares=shares)
    of_image = length_in_levels(one, bits=bits, bound=bound, silo_count=silos)
    worst = silos * of_image * (images + 10 * math.sqrt(images)) + 10 * noise * of_image * math.sqrt(silos / shares)
    assert 0.99 * (2**(bits - 1) - 1) - silos < worst <= 2**(bits - 1) - 1
    assert noise * of_image / math.sqrt(shares) >= LEAST_DEVIATION


def rounded_sum(means: list[float], deviation: float) -> np.ndarray:
    """Probabilities of the sum of Gaussians that were rounded one by one, from -40 per Gaussian."""
    found = np.ones(1)
    for mean in means:
        edges = (np.arange(-40, 42) - 0.5 - mean) / deviation
        below = np.array([0.5 * math.erfc(-edge / math.sqrt(2)) for edge in edges])
        found = np.convolve(found, np.diff(below))
    return found


@each_of("deviation", [0.6, 0.8, 1.0, 1.4])
def test_a_sum_of_rounded_gaussians_knows_of_its_parts_their_sum_alone(deviation: float) -> None:
    """By Fourier: what it knows besides, of n of them, is at most n exp(-pi^2 deviation^2) in any word. Two silos, and
    four, whose values have the same sum and lie otherwise between the grid's lines."""
    for one, other in ([0.3, 0.4], [0.0, 0.7]), ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]):
        apart = float(np.abs(rounded_sum(one, deviation) - rounded_sum(other, deviation)).max())
        assert apart <= len(one) * math.exp(-(math.pi * deviation)**2)
        if deviation < 1:
            assert apart > 1e-3 * math.exp(-(math.pi * deviation)**2), "a coarse grid shows"
    assert 40 * math.exp(-(math.pi * LEAST_DEVIATION)**2) < 1e-270
