"""Random groups of silos, each with a sum of its own: what rules against silos that lie look at, where no single update
can be seen.

Groups stay the same in all rounds as far as the same silos are asked: were they drawn anew each time, the coordinator
could work single updates out of many sums of nearly the same updates.

Tests: tests/coordinator/secure_aggregation/test_groups.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from semisilo.common.learning.seeds import derive_seed
from semisilo.common.secure_aggregation.messages import MaskSeed, in_order

__all__ = ["MaskedGroup", "largest_group", "number_of_groups", "split"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedGroup:
    """The silos of one sum."""

    silos: tuple[str, ...]
    seeds: tuple[MaskSeed, ...]
    """Of the masks to be added to the sum so that all vanish."""
    least_weight: float = 0.0
    """That the weights add up to at least, where silos weigh by size and have told how many images they have."""


def number_of_groups(silos: int, size: int) -> int:
    """Into how many groups so many silos are split.

    Args:
        size: fewest of a group; 0 for one group of all.
    """
    return max(1, silos // size) if size else 1


def largest_group(silos: int, size: int) -> int:
    """Silos of the largest group."""
    return -(-silos // number_of_groups(silos, size))


def split(silos: Collection[str], *, size: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Groups of nearly equal size, each in byte order of names.

    Every silo has a random number of the study's; silos in the order of these numbers go round the groups.
    """
    count = number_of_groups(len(silos), size)
    drawn = sorted(in_order(tuple(silos)), key=lambda silo: derive_seed(seed, "secure groups", silo=silo))
    return tuple(in_order(tuple(drawn[start::count])) for start in range(count))
