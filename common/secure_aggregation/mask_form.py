"""How an update becomes words that can be added up behind masks: the same for all silos of a sum.

A tensor's element x of a silo of weight a becomes one of the integers beside a x level / bound, at random, so that the
mean is right. Behind them come the method's totals (`semisilo.common.secure_aggregation.totals`), then two words for
the weight and for how many elements had to be cut.

Tests: tests/common/secure_aggregation/test_mask_form.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.secure_aggregation.messages import MAX_SILOS
from semisilo.common.secure_aggregation.totals import TOTAL_WORDS

__all__ = ["EXTRA_WORDS", "MOMENT_BOUND", "MaskForm", "SumOutcome", "first_bounds", "next_bounds", "share_count",
           "together", "weight_of", "wider_bounds"]

EXTRA_WORDS = 2
"""Last of all: weight, number of elements that were cut."""
_MAX_TOTALS, _MAX_NAME = 8, 32
_ROOM = 16.0
"""A bound is so many times the largest magnitude of the last mean: one silo's update is larger than the mean of all."""
_CUT_SHARE = 1e-5
"""Where a larger share of the elements was cut, the bounds grow."""
_GROWTH, _SHRINKING = 4.0, 0.5
_SMALLEST = 1e-9
MOMENT_BOUND = 4096.0
"""Of moments around a reference, which are near 0 and 1: a mean that is 64 standard deviations off it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskForm:
    """The public scale of one sum."""

    bits: int
    """Of a word, 16 to 32."""
    bounds: tuple[float, ...]
    """Of each tensor the largest magnitude; larger elements are cut. In the order of the update: groups by name, and
    the tensors of a group in its own order."""
    silo_count: int
    """How many silos a sum may have without wrapping."""
    weight_reference: int = 0
    """Silos weigh min(1, examples / weight_reference); 0: all weigh the same."""
    random_k: float = 1.0
    """Share of the elements that is sent, the same random ones at all silos, in (0, 1]."""
    totals: tuple[str, ...] = ()
    """Names of the numbers that are added up beside the tensors."""

    def __post_init__(self) -> None:
        if not 16 <= self.bits <= 32:
            raise ValueError(f"bits = {self.bits}: must be between 16 and 32.")
        if not 1 <= self.silo_count <= MAX_SILOS:
            raise ValueError(f"silo_count = {self.silo_count}: must be between 1 and {MAX_SILOS}.")
        if not all(math.isfinite(bound) and bound > 0 for bound in self.bounds):
            raise ValueError("bounds must be above 0 and finite.")
        if self.weight_reference < 0:
            raise ValueError(f"weight_reference = {self.weight_reference}: must be at least 0.")
        if not 0 < self.random_k <= 1:
            raise ValueError(f"random_k = {self.random_k}: must be above 0 and at most 1.")
        if len(self.totals) > _MAX_TOTALS or any(not 0 < len(each) <= _MAX_NAME for each in self.totals):
            raise ValueError(f"totals: at most {_MAX_TOTALS} names of at most {_MAX_NAME} characters.")

    @property
    def extra_words(self) -> int:
        """Words behind those of the tensors."""
        return TOTAL_WORDS * len(self.totals) + EXTRA_WORDS


@dataclass(frozen=True, kw_only=True, slots=True)
class SumOutcome:
    """What was learned of one sum besides the mean: the next sum's scale follows from it."""

    silos: int
    """That are in it."""
    weight: float
    """Sum of their weights, each 0 to 1."""
    cut: int
    """Elements that had to be cut, at all silos together."""
    elements: int
    """At one silo."""
    largest: tuple[float, ...]
    """Of each tensor the largest magnitude of the mean."""
    totals: tuple[float, ...] = ()
    """The mean of each of the form's totals, by the silos' weights."""


def weight_of(form: MaskForm, num_examples: int) -> float:
    """What a silo weighs in the sum, 0 to 1."""
    return 1.0 if not form.weight_reference else min(1.0, max(0, num_examples) / form.weight_reference)


def first_bounds(largest_weights: Sequence[float]) -> tuple[float, ...]:
    """Bounds before anything is known of updates: the largest weight of each tensor, and at least a tenth."""
    return tuple(max(each, 0.1) for each in largest_weights)


def next_bounds(bounds: Sequence[float], outcome: SumOutcome) -> tuple[float, ...]:
    """The bounds of the next sum: sixteen times the largest magnitude of this mean, no less than half of what they
    were; where much was cut, four times what they were.

    Args:
        bounds: of the sum that gave `outcome`.
    """
    wider = wider_bounds(bounds, outcome)
    return wider if wider != tuple(bounds) else tuple(max(_SMALLEST, _SHRINKING * bound, min(bound, _ROOM * largest))
                 for bound, largest in zip(bounds, outcome.largest, strict=True))


def wider_bounds(bounds: Sequence[float], outcome: SumOutcome) -> tuple[float, ...]:
    """The bounds of the next sum where they never shrink: the same; where much was cut, four times what they were."""
    much = outcome.cut > _CUT_SHARE * outcome.elements * outcome.silos
    return tuple(_GROWTH * bound if much else bound for bound in bounds)


def together(outcomes: Sequence[SumOutcome]) -> SumOutcome:
    """What was learned of several sums of the same form, at least one."""
    weight = math.fsum(each.weight for each in outcomes)
    return SumOutcome(
        silos=sum(each.silos for each in outcomes), weight=weight, cut=sum(each.cut for each in outcomes),
        elements=outcomes[0].elements, largest=tuple(map(max, zip(*(each.largest for each in outcomes), strict=True))),
        totals=tuple(math.fsum(each.weight * value / weight for each, value in zip(outcomes, values, strict=True))
                     for values in zip(*(each.totals for each in outcomes), strict=True)))


def share_count(share: float, elements: int) -> int:
    """How many elements are sent: ceil(share * elements), at least one of any."""
    return min(elements, max(1, math.ceil(share * elements))) if elements else 0
