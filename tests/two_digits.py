"""Images that show several things: two of scikit-learn's digits side by side, or one, or none.

A set with several labels for an image that needs no download: each class is one of the ten digits, an image has zero,
one or two of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.formats.archive import digits

CLASSES = tuple(str(digit) for digit in range(10))


def two_digits(count: int, *, seed: int, split: str = "train", empty: float = 0.1, single: float = 0.2
               ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images uint8 (N, 8, 16) and rows of 0 and 1, uint8 (N, 10).

    Args:
        split: which digits they are made of; "train" and "test" have no scan in common.
        empty, single: shares of the images without a digit and with one alone, on either side.
    """
    random = np.random.default_rng(seed)
    arrays = digits(split, source="digits")
    assert arrays.images is not None
    assert arrays.labels_N is not None
    images_NHW, rows_NK = np.zeros((count, 8, 16), dtype=np.uint8), np.zeros((count, 10), dtype=np.uint8)
    for index in range(count):
        draw = random.random()
        sides = () if draw < empty else (int(random.integers(2)),) if draw < empty + single else (0, 1)
        for side in sides:
            scan = int(random.integers(len(arrays.labels_N)))
            images_NHW[index, :, 8 * side:8 * side + 8] = arrays.images[scan]
            rows_NK[index, arrays.labels_N[scan]] = 1
        noise = random.integers(0, 6, (8, 16))  # no two empty images are the same
        images_NHW[index] = np.minimum(images_NHW[index] + noise, 255)
    return images_NHW, rows_NK


def write_two_digits(path: Path, *, train: int, test: int, seed: int = 1) -> Path:
    """An .npz with both splits, as `semisilo simulate` reads it."""
    arrays = {}
    for number, (part, count) in enumerate((("train", train), ("test", test))):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = two_digits(count, seed=2 * seed + number, split=part)
    np.savez(path, **arrays, classes=np.array(CLASSES))
    return path
