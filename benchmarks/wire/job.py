"""The job that every system does: send the model, perturb it at each silo, send the result back, average. Only numpy.

One round costs a silo one pass over the model (5 to 20 ms for 25 million parameters), so that the system is measured
and not the arithmetic. The noise comes from a table of a prime length just above 2**20, read from another offset
in every round and silo: within any 2**20 elements the values and the positions are independent draws.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_perturbation", "initial_model", "perturbation", "shapes"]

Arrays = dict[str, NDArray[np.float32]]

_TABLE_ELEMENTS = 1_048_583
"""Prime, so that no power-of-two block ever meets the same stretch."""

_STEP = 1e-3
"""Standard deviation of the noise; the weights' is 0.05."""

_SHARES = (0.01, 0.04, 0.10, 0.20, 0.28, 0.33)
"""Of the parameters, in convolutions that widen; the rest is the classifier and its bias."""


def shapes(parameters: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes as of an image classifier, with exactly so many parameters.

    Args:
        parameters: their number, at least 10 000.
    Returns: six convolutions (width, width, 3, 3), a bias and a classifier (classes, width), by name in this order.
    """
    if parameters < 10_000:
        raise ValueError(f"A model of {parameters} parameters is too small for this job; take at least 10000.")
    found: dict[str, tuple[int, ...]] = {}
    for layer, share in enumerate(_SHARES):
        width = max(1, math.isqrt(int(share * parameters) // 9))
        found[f"layer{layer}.weight"] = (width, width, 3, 3)
    left = parameters - sum(math.prod(shape) for shape in found.values())
    width = found["layer5.weight"][0]
    classes = max(1, left // width - 1)
    found["classifier.weight"] = (classes, width)
    found["classifier.bias"] = (left - classes * width,)
    return found


def initial_model(parameters: int, seed: int = 1) -> Arrays:
    """The model of round 1: float32, normal with standard deviation 0.05."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
            for name, shape in shapes(parameters).items()}


def add_perturbation(model: Arrays, *, silo: int, round: int, density: float) -> None:
    """Adds a silo's noise of one round in place: to all elements (density 1.0), or to a seeded share of them.

    Args:
        model: float32, C-contiguous and writable.
        silo: its number from 0.
        round: from 1.
        density: share of the elements that change, in (0, 1].
    """
    table = _table(density)
    offset = (silo * 7919 + round * 104_729) * 31 % _TABLE_ELEMENTS
    for values in model.values():
        flat = values.reshape(-1)
        if not np.shares_memory(flat, values):
            raise ValueError("The arrays must be contiguous.")
        done = 0
        while done < flat.size:
            count = min(_TABLE_ELEMENTS - offset, flat.size - done)
            flat[done:done + count] += table[offset:offset + count]
            done += count
            offset = (offset + count) % _TABLE_ELEMENTS


def perturbation(parameters: int, *, silo: int, round: int, density: float) -> Arrays:
    """The noise itself, as arrays of the model's names and shapes."""
    arrays: Arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes(parameters).items()}
    add_perturbation(arrays, silo=silo, round=round, density=density)
    return arrays


@lru_cache(maxsize=2)
def _table(density: float) -> NDArray[np.float32]:
    """Noise (elements,), 0 where nothing changes."""
    if not 0 < density <= 1:
        raise ValueError(f"A density of {density} is not in (0, 1].")
    generator = np.random.default_rng(20_240_607)
    table = generator.standard_normal(_TABLE_ELEMENTS, dtype=np.float32) * np.float32(_STEP)
    if density < 1:
        table[generator.random(_TABLE_ELEMENTS) >= density] = 0
    return table
