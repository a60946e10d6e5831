"""How long to wait before the same request is made again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from common.seeds import derive_seed

__all__ = ["Backoff", "waits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Waiting times that double from the first to the largest, each multiplied by a random share."""

    first_seconds: float = 0.2
    """Wait after the first failure."""
    largest_seconds: float = 30.0
    """No wait is longer."""
    jitter: float = 0.5
    """A wait is drawn evenly from (1 - jitter) to 1 times its nominal length, so that silos that lost the same
    coordinator do not come back in step."""


def waits(backoff: Backoff, *, silo: str, seed: int = 0) -> Iterator[float]:
    """Endless waiting times in seconds; a fresh iterator starts from the shortest.

    Args:
        backoff: lengths and jitter.
        silo: name of the silo, so that each has its own sequence.
        seed: counts the fresh starts of one silo.
    """
    draw = random.Random(derive_seed(seed, "backoff", silo=silo))
    nominal = backoff.first_seconds
    while True:
        yield nominal * (1 - backoff.jitter * draw.random())
        nominal = min(backoff.largest_seconds, 2 * nominal)
