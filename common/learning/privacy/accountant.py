"""How much of a privacy budget noisy steps spend: epsilon at a delta, by privacy loss distributions (PLD).

A step draws every image by itself with the sampling rate (Poisson sampling), sums their clipped gradients, and adds
Gaussian noise. What several steps spend together follows from the convolution of their privacy loss distributions
(Koskela et al., AISTATS 2020; Doroshenko et al., PETS 2022), by the library dp-accounting, which rounds upwards: what
is told here is never below the truth. Imports neither torch nor, before it is asked something, that library.

Tests: tests/common/learning/privacy/test_accountant.py.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.methods.parts.privacy import MAX_NOISE, MIN_NOISE
from semisilo.common.text.installing import how_to_install

__all__ = ["MAX_STEPS", "MOST_EPSILON", "NoisySteps", "epsilon_of", "noise_for", "require_accountant",
           "within_target"]

MOST_EPSILON = 1e12
"""What a larger one is told as: it means nothing either, and can be written."""
MAX_STEPS = 10**7
"""Noisy steps that a study may have: more is a mistake, or a study that wants to keep a silo busy. What a site has
taken in all studies may be more: that is told by the bound by Renyi differential privacy."""

_INTERVALS = ((1e-2, 20.0), (1e-3, 0.5), (1e-4, 0.05), (1e-5, 0.0))
"""Spacing of the grid of privacy losses, and from which epsilon on it is fine enough for 1 %. A coarse one costs a
tenth of a second, a fine one of a large epsilon minutes."""
_MEANINGLESS = 1000.0
"""Where a bound by Renyi differential privacy, which is up to a third above, is beyond it, that bound will do: of an
epsilon of thousands the distribution of losses takes minutes and memory, which a coordinator could ask for."""
_ORDERS = (*range(2, 65), 96, 128, 256, 512, 1024)
_PRECISION = 1e-2
"""By how much more than the truth may be told, relatively."""
_FINE = 0.05
"""The square of the spacing over the mean square of a step's loss up to which it is fine enough for 1 %, too: every
step is spread to the grid anew, and a million of them that are smaller than its spacing by far more than they are."""
_AT_ONCE = 10**5
"""Steps that are composed in one go."""
_POINTS = 800
"""At which the loss of a step is looked at, over sixteen standard deviations of the noise."""
_FINEST_NOISE = 1e-3
"""Relative step in which a noise multiplier is searched."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class NoisySteps:
    """Steps of one kind."""

    noise_multiplier: float
    """Standard deviation of the noise over the largest contribution of one image."""
    sampling_rate: float
    """Probability with which each image enters a step, 0 to 1."""
    steps: int

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and 0 <= self.sampling_rate <= 1 and self.steps >= 0):
            raise ValueError(f"{self}: no such steps can be.")


def require_accountant() -> None:
    """Raises: NotPermitted, naming what to install, where dp-accounting is missing."""
    _library()


def epsilon_of(spent: Iterable[NoisySteps], delta: float) -> float:
    """What all the steps spend together at this delta: at least the truth, and at most 1 % more.

    More than that, by a third or so, for more than `MAX_STEPS` steps, steps that enter less than one image in 50,000
    each, or a delta below 1e-12; and by much more where a bound by Renyi differential privacy is beyond 1000, as with
    noise that is far less than half of what one image contributes.

    The order of the steps does not matter. Neighbours differ in one image that contributes or does not.
    Raises: NotPermitted when dp-accounting is not installed.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for each in spent:
        if each.steps and each.sampling_rate:
            counts[each.noise_multiplier, each.sampling_rate] += each.steps
    if not counts:
        return 0.0
    return _epsilon(tuple(sorted((noise, rate, steps) for (noise, rate), steps in counts.items())), delta)


def within_target(epsilon: float, target_epsilon: float) -> bool:
    """Whether what is told to be spent is no more than a target, to the precision with which it is told."""
    return epsilon <= target_epsilon * (1 + _PRECISION)


def noise_for(target_epsilon: float, delta: float, *, sampling_rate: float, steps: int) -> float:
    """The smallest noise multiplier, to a thousandth, with which so many steps spend at most `target_epsilon`.

    Raises: BadConfiguration where none does; NotPermitted as `epsilon_of`.
    """
    def spends(noise: float) -> float:
        return epsilon_of([NoisySteps(noise_multiplier=noise, sampling_rate=sampling_rate, steps=steps)], delta)

    low, high = MIN_NOISE, 1.0
    if spends(low) <= target_epsilon:
        return low
    while spends(high) > target_epsilon:
        low, high = high, 2 * high
        if high > MAX_NOISE:
            raise BadConfiguration(f"target_epsilon = {target_epsilon:g} cannot be reached with noise of up to"
                                   f" {MAX_NOISE:g} times clip_norm.", remedy="Raise it, or take fewer steps.")
    while high / low > 1 + _FINEST_NOISE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spends(middle) <= target_epsilon else (middle, high)
    return high


@functools.lru_cache(maxsize=256)
def _epsilon(counts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    library = _library()
    bound = library.rdp.RdpAccountant(orders=_ORDERS)
    for noise, rate, steps in counts:
        bound.compose(_event(library, noise, rate), steps)
    most = float(bound.get_epsilon(delta))
    if most > _MEANINGLESS or sum(steps for _, _, steps in counts) > MAX_STEPS:
        return min(most, MOST_EPSILON)
    fine, found = _fine_enough(counts), most
    for interval, enough in {min(each, fine): enough for each, enough in _INTERVALS}.items():
        found = _at_interval(counts, delta, interval)
        if found >= enough:
            break
    return min(found, most)  # at a delta below 1e-14 the tails that are cut off leave nothing else


def _fine_enough(counts: tuple[tuple[float, float, int], ...]) -> float:
    """The widest spacing of the grid on which so many steps tell no more than 1 % too much; no less than the finest
    of `_INTERVALS`.

    Rounding adds to the mean square of a step's loss that of the spacing h at most, and of a loss l that is far below
    it h |l|.
    """
    losses = [(steps, _mean_square_loss(noise, rate)) if rate < 1 else (1, steps / noise**2)
              for noise, rate, steps in counts]
    room = _FINE * sum(steps * square for steps, square in losses)
    interval = _INTERVALS[0][0]
    while interval > _INTERVALS[-1][0] and room < sum(
            steps * min(interval**2, interval * math.sqrt(square)) for steps, square in losses):
        interval *= 0.8
    return max(interval, _INTERVALS[-1][0])


def _mean_square_loss(noise: float, rate: float) -> float:
    """Of one step, 0 < r < 1: of log p / q with p = (1 - r) N(0, s^2) + r N(1, s^2) and q = N(0, s^2), under p."""
    total = weight = 0.0
    for number in range(_POINTS):
        for centre, share in ((0.0, 1.0 - rate), (1.0, rate)):
            away = 16.0 * ((number + 0.5) / _POINTS - 0.5)  # in standard deviations
            exponent = (2.0 * (centre + noise * away) - 1.0) / (2.0 * noise**2)
            loss = _log_of_mixture(exponent, rate)
            density = share * math.exp(-away**2 / 2)
            total, weight = total + density * loss**2, weight + density
    return total / weight


def _log_of_mixture(exponent: float, rate: float) -> float:
    """log(1 - r + r e^x), 0 < r < 1."""
    if exponent > 0:
        return exponent + math.log(rate + (1.0 - rate) * math.exp(-exponent))
    return math.log1p(rate * math.expm1(exponent))


def _at_interval(counts: tuple[tuple[float, float, int], ...], delta: float, interval: float) -> float:
    distributions = _library().pld.privacy_loss_distribution
    together = distributions.identity(value_discretization_interval=interval)
    for noise, rate, steps in counts:
        if rate >= 1:  # of the same kind they are one with less noise
            every = distributions.from_gaussian_mechanism(noise / math.sqrt(steps),
                                                          value_discretization_interval=interval)
        else:
            every = _composed(distributions.from_gaussian_mechanism(
                noise, value_discretization_interval=interval, sampling_prob=rate), steps)
        together = together.compose(every)
    return float(together.get_epsilon_for_delta(delta))


def _composed(one: Any, steps: int) -> Any:
    """The distribution of so many steps from that of one. Part by part: of very many the library works out how many
    losses there might be, a number with more digits than there are steps, which takes minutes."""
    if steps <= _AT_ONCE:
        return one.self_compose(steps)
    parts, rest = divmod(steps, _AT_ONCE)
    found = one.self_compose(_AT_ONCE).self_compose(parts)
    return found.compose(one.self_compose(rest)) if rest else found


def _event(library: Any, noise: float, rate: float) -> Any:
    event = library.GaussianDpEvent(noise)
    return event if rate >= 1 else library.PoissonSampledDpEvent(rate, event)


def _library() -> Any:  # Any: the library has no types
    try:
        found = importlib.import_module("dp_accounting")
        for part in ("pld", "rdp"):
            importlib.import_module(f"dp_accounting.{part}")
    except ModuleNotFoundError as error:
        raise NotPermitted(f"Differential privacy needs the package '{error.name}', which is not installed here.",
                           remedy=how_to_install("semisilo[privacy]")) from None
    return found
