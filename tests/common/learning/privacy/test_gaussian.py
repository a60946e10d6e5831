"""The secret stream: its distributions, its grid, and that nothing of it comes twice."""

from __future__ import annotations

import math

import pytest
import torch

from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of
from tests.each_of import each_of

KEY = bytes(range(32))
COUNT = 400_000


def test_noise_is_normal_in_mean_deviation_tails_and_shape() -> None:
    """Of 400,000 numbers: mean within 5 standard errors, deviation and kurtosis likewise, and as many beyond 1, 2, 3
    and 4 deviations as the normal distribution has (5 standard deviations of that count)."""
    z = SecretStream(KEY).noise("gradient", 3, COUNT, 2.0**20) / 2.0**20
    error = 1 / math.sqrt(COUNT)
    assert abs(float(z.mean())) < 5 * error
    assert abs(float(z.square().mean()) - 1) < 5 * math.sqrt(2) * error
    assert abs(float(z.pow(4).mean()) - 3) < 5 * math.sqrt(96) * error
    for beyond in (1.0, 2.0, 3.0, 4.0):
        expected = math.erfc(beyond / math.sqrt(2))
        found = float((z.abs() > beyond).double().mean())
        assert abs(found - expected) < 5 * math.sqrt(expected / COUNT)


def test_neighbouring_numbers_have_nothing_to_do_with_each_other() -> None:
    z = SecretStream(KEY).noise("gradient", 0, COUNT, 2.0**20) / 2.0**20
    for lag in (1, 2, 65_536, 131_072):
        assert abs(float((z[lag:] * z[:-lag]).mean())) < 5 / math.sqrt(COUNT - lag)


def test_noise_lies_on_the_grid_that_sums_lie_on() -> None:
    """Floating point: what leaves is a whole number of the grid whatever was summed, so its low bits tell nothing."""
    noise = SecretStream(KEY).noise("gradient", 0, 1001, 12345.6)
    assert len(noise) == 1001
    assert torch.equal(noise, noise.round())
    assert grid_of(0.5) == 2.0**-21
    assert grid_of(0.75) == 2.0**-21
    assert grid_of(1.0) == 2.0**-20


@each_of(("first", "second"), [
    ((KEY, "gradient", 0), (KEY, "gradient", 1)), ((KEY, "gradient", 0), (KEY, "other", 0)),
    ((KEY, "gradient", 0), (KEY[::-1], "gradient", 0))])
def test_another_step_purpose_or_key_has_other_noise(first: tuple[bytes, str, int],
                                                     second: tuple[bytes, str, int]) -> None:
    """Reused noise: independent draws of 10,000 numbers correlate by less than 5 standard errors."""
    one, other = (SecretStream(key).noise(purpose, number, 10_000, 2.0**20) / 2.0**20
                  for key, purpose, number in (first, second))
    assert abs(float((one * other).mean())) < 5 / math.sqrt(10_000)


def test_the_same_question_has_the_same_bits() -> None:
    one, other = SecretStream(KEY), SecretStream(KEY)
    assert torch.equal(one.noise("a", 2, 999, 1e6), other.noise("a", 2, 999, 1e6))
    assert torch.equal(one.sampled("l", 5, 300, 0.3), other.sampled("l", 5, 300, 0.3))
    assert one.seed("views") == other.seed("views") != one.seed("model")


def test_images_enter_a_step_independently_with_the_rate() -> None:
    """Poisson sampling: the number that enters varies as a binomial one does, and so does how often each enters."""
    stream, count, rate, steps = SecretStream(KEY), 200, 0.1, 2000
    entered = torch.zeros(steps, count)
    for number in range(steps):
        entered[number, stream.sampled("labelled", number, count, rate)] = 1
    lots, each = entered.sum(dim=1), entered.mean(dim=0)
    deviation = math.sqrt(count * rate * (1 - rate))
    assert abs(float(lots.mean()) - count * rate) < 5 * deviation / math.sqrt(steps)
    assert 0.9 < float(lots.std()) / deviation < 1.1
    assert float((each - rate).abs().max()) < 5 * math.sqrt(rate * (1 - rate) / steps)


def test_a_small_rate_leaves_steps_empty_and_a_rate_of_one_leaves_nobody_out() -> None:
    stream = SecretStream(KEY)
    assert any(len(stream.sampled("labelled", number, 5, 0.05)) == 0 for number in range(20))
    assert stream.sampled("labelled", 0, 5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert stream.sampled("labelled", 0, 5, 0.0).tolist() == []


def test_a_key_of_another_length_is_refused_and_no_key_is_shown() -> None:
    with pytest.raises(ValueError, match="32"):
        SecretStream(b"short")
    assert KEY.hex() not in repr(vars(SecretStream(KEY)).keys())
