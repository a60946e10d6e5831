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
"""Noisy steps that one sum may have: more is a mistake, or a study that wants to keep a silo busy."""

_INTERVALS = ((1e-2, 20.0), (1e-3, 0.5), (1e-4, 0.05), (1e-5, 0.0))
"""Spacing of the grid of privacy losses, and from which epsilon on it is fine enough for 1 %. A coarse one costs a
tenth of a second, a fine one of a large epsilon minutes."""
_MEANINGLESS = 1000.0
"""Where a bound by Renyi differential privacy, which is up to a third above, is beyond it, that bound will do: of an
epsilon of thousands the distribution of losses takes minutes and memory, which a coordinator could ask for."""
_ORDERS = (*range(2, 65), 96, 128, 256, 512, 1024)
_PRECISION = 1e-2
"""By how much more than the truth may be told, relatively."""
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
    """What all the steps spend together at this delta: at least the truth, and at most 1 % more (beyond several hundred
    more than that).

    The order of the steps does not matter. Neighbours differ in one image that contributes or does not.
    Raises: NotPermitted when dp-accounting is not installed; ValueError for more than `MAX_STEPS` steps.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for each in spent:
        if each.steps and each.sampling_rate:
            counts[each.noise_multiplier, each.sampling_rate] += each.steps
    if not counts:
        return 0.0
    if sum(counts.values()) > MAX_STEPS:
        raise ValueError(f"{sum(counts.values())} noisy steps are more than the {MAX_STEPS} that are counted.")
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
    found = float(bound.get_epsilon(delta))
    if found > _MEANINGLESS:
        return min(found, MOST_EPSILON)
    for interval, enough in _INTERVALS:
        found = _at_interval(counts, delta, interval)
        if found >= enough:
            break
    return found


def _at_interval(counts: tuple[tuple[float, float, int], ...], delta: float, interval: float) -> float:
    library = _library()
    accountant = library.pld.PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE,
                                           value_discretization_interval=interval)
    for noise, rate, steps in counts:
        accountant.compose(_event(library, noise, rate), steps)
    return float(accountant.get_epsilon(delta))


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
