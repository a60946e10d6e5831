"""Epsilon against closed forms and bounds that are computed independently: never below, and within 1 %."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.learning.privacy import accountant
from semisilo.common.learning.privacy.accountant import MAX_STEPS, NoisySteps, epsilon_of, noise_for
from tests.each_of import each_of

DELTA = 1e-5


def steps(noise: float, rate: float, count: int) -> NoisySteps:
    return NoisySteps(noise_multiplier=noise, sampling_rate=rate, steps=count)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(eps) of the Gaussian mechanism with sensitivity / deviation = mu, exactly.

    Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu)        (Balle and Wang, ICML 2018, theorem 8)
    """
    return _phi(mu / 2 - epsilon / mu) - math.exp(epsilon + _log_phi(-mu / 2 - epsilon / mu))


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _log_phi(x: float) -> float:
    value = _phi(x)
    if value > 1e-290:
        return math.log(value)
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2)  # far tail (Mills' ratio)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of `gaussian_delta`, by bisection to 1e-9."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > delta else (low, middle)
    return high


@pytest.mark.slow
@each_of("delta", [1e-5, 1e-7])
@each_of(("noise", "count"), [(0.5, 1), (1.0, 1), (1.0, 20), (5.0, 1), (3.0, 400), (20.0, 10),
                                              (50.0, 30), (400.0, 1)])
def test_without_sampling_it_is_the_closed_form_and_never_below(noise: float, count: int, delta: float) -> None:
    """T Gaussians with multiplier sigma are one with mu = sqrt(T) / sigma."""
    exact = gaussian_epsilon(math.sqrt(count) / noise, delta)
    found = epsilon_of([steps(noise, 1.0, count)], delta)
    assert exact <= found <= 1.01 * exact + 1e-9


@pytest.mark.slow
@given(noise=st.floats(0.7, 20.0), count=st.integers(1, 500))
@settings(max_examples=15)
def test_the_closed_form_holds_whatever_the_noise(noise: float, count: int) -> None:
    exact = gaussian_epsilon(math.sqrt(count) / noise, DELTA)
    assert exact <= epsilon_of([steps(noise, 1.0, count)], DELTA) <= 1.01 * exact + 1e-9


def subsampled_delta(epsilon: float, noise: float, rate: float) -> float:
    """delta of one Poisson-sampled step, exactly, for both directions: integral of (p - e^eps q)^+ over a fine grid.

    With the image the sum is (1 - r) N(0, s^2) + r N(1, s^2), without it N(0, s^2).
    """
    x = np.linspace(-30.0 * noise, 30.0 * noise, 200_001)
    scale = noise * math.sqrt(2 * math.pi)
    without = np.exp(-x * x / (2 * noise**2)) / scale
    with_it = (1 - rate) * without + rate * np.exp(-(x - 1) ** 2 / (2 * noise**2)) / scale
    totals = [float(np.maximum(0.0, one - math.exp(epsilon) * other).sum() * (x[1] - x[0]))
              for one, other in ((with_it, without), (without, with_it))]
    return max(totals)


@pytest.mark.parametrize(("noise", "rate"), [
    (1.0, 0.1), pytest.param(0.8, 0.5, marks=pytest.mark.slow), pytest.param(2.0, 0.3, marks=pytest.mark.slow)])
def test_one_sampled_step_is_the_integral(noise: float, rate: float) -> None:
    found = epsilon_of([steps(noise, rate, 1)], DELTA)
    assert subsampled_delta(found, noise, rate) <= DELTA
    assert subsampled_delta(found * 0.985, noise, rate) > DELTA


def renyi_epsilon(noise: float, rate: float, count: int, delta: float) -> float:
    """An upper bound by Renyi differential privacy at whole orders (Mironov, Talwar and Zhang, 2019, section 3.3), with
    the plain conversion: what older accountants would say."""
    best = math.inf
    for order in range(2, 200):
        logs = [math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1) + k * math.log(rate)
                + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2) for k in range(order + 1)]
        top = max(logs)
        spent = (top + math.log(sum(math.exp(each - top) for each in logs))) / (order - 1)
        best = min(best, count * spent + math.log(1 / delta) / (order - 1))
    return best


@pytest.mark.parametrize(("noise", "rate", "count"), [
    (1.0, 0.1, 500), pytest.param(1.1, 0.01, 5000, marks=pytest.mark.slow), (2.0, 0.5, 40),
    pytest.param(0.6, 0.05, 1000, marks=pytest.mark.slow)])
def test_sampled_steps_lie_between_one_of_them_and_the_renyi_bound(noise: float, rate: float, count: int) -> None:
    found = epsilon_of([steps(noise, rate, count)], DELTA)
    assert epsilon_of([steps(noise, rate, 1)], DELTA) < found <= renyi_epsilon(noise, rate, count, DELTA)


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)])
def test_a_published_table_of_dp_sgd(noise: float, epochs: int, published: float) -> None:
    """MNIST, 60,000 images in batches of 256, delta 1e-5: the table of the tutorial of TensorFlow Privacy, which is by
    Renyi accounting with the plain conversion. The reference here gives it; PLD is below, by a fifth to a quarter."""
    rate, count = 256 / 60_000, epochs * 60_000 // 256
    assert renyi_epsilon(noise, rate, count, DELTA) == pytest.approx(published, rel=0.005)
    assert 0.7 * published < epsilon_of([steps(noise, rate, count)], DELTA) < 0.85 * published


def test_the_published_value_of_the_analytic_gaussian_mechanism() -> None:
    """calibrateAnalyticGaussianMechanism(1.0, 1e-5, 1.0) of Balle and Wang's own code is 3.730631634944469."""
    published = 3.730631634944469
    assert gaussian_epsilon(1 / published, DELTA) == pytest.approx(1.0, abs=1e-9)
    assert epsilon_of([steps(published, 1.0, 1)], DELTA) == pytest.approx(1.0, abs=1e-6)
    assert published <= noise_for(1.0, DELTA, sampling_rate=1.0, steps=1) <= 1.001 * published


@pytest.mark.slow
def test_tasks_of_several_studies_add_up_in_any_order() -> None:
    parts = [steps(1.0, 0.1, 30), steps(2.0, 0.3, 12), steps(1.0, 0.1, 70)]
    together = epsilon_of(parts, DELTA)
    assert together == epsilon_of(reversed(parts), DELTA)
    assert together == epsilon_of([steps(2.0, 0.3, 12), steps(1.0, 0.1, 100)], DELTA)
    assert together > max(epsilon_of([each], DELTA) for each in parts)
    assert together < sum(epsilon_of([each], DELTA) for each in parts)


def test_nothing_spends_nothing() -> None:
    assert epsilon_of([], DELTA) == epsilon_of([steps(1.0, 0.0, 5), steps(1.0, 0.5, 0)], DELTA) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "count"), [
    (2.0, 0.001, MAX_STEPS), pytest.param(2.0, 0.001, 10**6, marks=pytest.mark.slow),
    pytest.param(10.0, 0.01, 10**6, marks=pytest.mark.slow),
    pytest.param(5.0, 0.1, 10**5, marks=pytest.mark.slow)])
def test_many_steps_that_spend_next_to_nothing_are_not_told_as_more(noise: float, rate: float, count: int) -> None:
    """So many are one Gaussian with mu = r sqrt(T (e^(1 / s^2) - 1)) (Bu et al., Harvard Data Science Review 2020), to
    a third of a percent here: on a grid that is wider than the losses of a step epsilon would be a third more and
    beyond. Ten million take a fraction of a second, and not minutes."""
    limit = gaussian_epsilon(rate * math.sqrt(count * math.expm1(1 / noise**2)), DELTA)
    assert 0.997 * limit <= epsilon_of([steps(noise, rate, count)], DELTA) <= 1.01 * limit


def test_a_site_that_has_taken_more_steps_than_a_study_may_still_counts() -> None:
    """In all its studies together: an upper bound, never an error, for nobody could take back what was spent."""
    once, twice = (epsilon_of([steps(4.0, 0.001, count)], DELTA) for count in (MAX_STEPS, 2 * MAX_STEPS))
    assert once < twice <= 1.4 * gaussian_epsilon(0.001 * math.sqrt(2 * MAX_STEPS * math.expm1(1 / 16)), DELTA)


@pytest.mark.parametrize("delta", [1e-15, 1e-30])
def test_a_delta_that_is_smaller_than_what_is_cut_off_has_an_epsilon_all_the_same(delta: float) -> None:
    assert epsilon_of([steps(4.0, 1.0, 10)], 1e-12) < epsilon_of([steps(4.0, 1.0, 10)], delta) < 60.0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rate", "count"), [
    (1.0, 0.1, 100), pytest.param(8.0, 0.5, 40, marks=pytest.mark.slow),
    pytest.param(3.0, 1.0, 5, marks=pytest.mark.slow)])
def test_noise_for_a_target_reaches_it_and_wastes_little(target: float, rate: float, count: int) -> None:
    noise = noise_for(target, DELTA, sampling_rate=rate, steps=count)
    assert epsilon_of([steps(noise, rate, count)], DELTA) <= target
    assert epsilon_of([steps(noise * 0.99, rate, count)], DELTA) > target


def test_steps_without_end_or_noise_are_counted_at_once() -> None:
    """A coordinator that asks for millions of steps must not keep a silo busy: an upper bound, as quick as any."""
    found = epsilon_of([steps(0.1, 1.0, MAX_STEPS)], DELTA)
    assert 1e6 < found < math.inf
    assert epsilon_of([steps(0.1, 0.5, 10**6), steps(0.3, 1.0, 10**6)], DELTA) < math.inf


def test_a_target_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="cannot be reached"):
        noise_for(1e-4, 1e-9, sampling_rate=1.0, steps=10_000)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(accountant.importlib, "import_module", missing)
    with pytest.raises(NotPermitted) as error:
        accountant.require_accountant()
    assert "dp_accounting" in error.value.text
    assert "semisilo[privacy]" in error.value.remedy
