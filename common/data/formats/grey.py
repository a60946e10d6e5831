"""Grey values of any depth <-> 0..255: the windows of DICOM, and the ranges of files that name none.

Every function is arithmetic in float64, then rounded half up, so that the bits are the same on every machine.

Shapes: ... any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["linear", "linear_exact", "looked_up", "rounded", "sigmoid", "spread"]

Values = NDArray[Any]
Pixels = NDArray[np.uint8]
_ROWS = 2**20
"""Values that are widened to float64 at a time."""


def linear(values: Values, centre: float, width: float) -> NDArray[np.float64]:
    """A window, 0 to 255: y = ((x - (c - 0.5)) / (w - 1) + 0.5) * 255, cut off at both ends.

    Args:
        width: at least 1; 1 is a threshold at c - 0.5.
    Source: DICOM PS3.3 C.11.2.1.2.1.
    """
    x = np.asarray(values, dtype=np.float64)
    low, high = centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    y = ((x - (centre - 0.5)) / (width - 1 if width > 1 else 1.0) + 0.5) * 255.0
    return np.where(x <= low, 0.0, np.where(x > high, 255.0, y))


def linear_exact(values: Values, centre: float, width: float) -> NDArray[np.float64]:
    """A window, 0 to 255: y = ((x - c) / w + 0.5) * 255, cut off at both ends; `width` is above 0.

    Source: DICOM PS3.3 C.11.2.1.3.2.
    """
    x = np.asarray(values, dtype=np.float64)
    y = ((x - centre) / width + 0.5) * 255.0
    return np.where(x <= centre - width / 2, 0.0, np.where(x > centre + width / 2, 255.0, y))


def sigmoid(values: Values, centre: float, width: float) -> NDArray[np.float64]:
    """A window, 0 to 255: y = 255 / (1 + exp(-4 (x - c) / w)); `width` is above 0.

    Source: DICOM PS3.3 C.11.2.1.3.1.
    """
    x = np.asarray(values, dtype=np.float64)
    y: NDArray[np.float64] = 255.0 / (1.0 + np.exp(np.clip(-4.0 * (x - centre) / width, -700.0, 700.0)))
    return y


def spread(values: Values, low: float, high: float) -> NDArray[np.float64]:
    """`low` becomes 0 and `high` 255, in between a straight line, beyond cut off; all 0 where the two are equal."""
    x = np.asarray(values, dtype=np.float64)
    if high <= low:
        return np.zeros(x.shape)
    return np.clip((x - low) * 255.0 / (high - low), 0.0, 255.0)


def rounded(values: NDArray[np.float64]) -> Pixels:
    """uint8, rounded half up. NaN becomes 0."""
    return np.floor(np.nan_to_num(values, nan=0.0) + 0.5).astype(np.uint8)


def looked_up(stored: Values, curve: Callable[[Values], Pixels]) -> Pixels:
    """`curve` of every value, in little memory: whole numbers of at most 16 bits by a table, others in pieces.

    Args:
        stored: C-contiguous or not; its shape is kept.
    """
    if stored.dtype.kind in "iu" and stored.dtype.itemsize <= 2 and stored.size > 2**16:
        low, high = int(stored.min()), int(stored.max())
        table = curve(np.arange(low, high + 1, dtype=np.int64))
        return table[stored.astype(np.int32) - low] if low else table[stored]
    flat = stored.reshape(-1)
    done = np.empty(flat.shape, dtype=np.uint8)
    for start in range(0, len(flat), _ROWS):
        done[start : start + _ROWS] = curve(flat[start : start + _ROWS])
    return done.reshape(stored.shape)
