"""Random numbers that whoever asks for the training cannot know: who enters a step, and the noise.

They follow from a secret key by SHAKE-256 (FIPS 202) in counter mode, so that the same key gives the same bits after a
restart, and without the key they cannot be told from others. Noise is drawn on a grid of whole numbers and added to
sums on the same grid, which are exact: sums of floats in any order have other sensitivities than their formula says
(Casacuberta et al., CCS 2022), and low-order bits of noise in floats tell what it was added to (Mironov, CCS 2012). A
Gaussian that is rounded to the grid before it is added to a number of the grid is the Gaussian mechanism, rounded
after: nothing that was not private before.

What remains: the Gaussian is computed in float64, from 64 uniform bits for its radius, so it ends at 9.4 standard
deviations (beyond, it would be once in 10^20 draws), and its probabilities are right to about 2^-32.

Shapes: P parameters of a network together, N images.

Tests: tests/common/learning/privacy/test_gaussian.py.
"""

from __future__ import annotations

import hashlib
import math

import numpy
import torch
from torch import Tensor

__all__ = ["SecretStream", "grid_of"]

_BLOCK = 2**16
"""Pairs of normal numbers that are made at once."""
_GRID_BITS = 20


def grid_of(clip_norm: float) -> float:
    """Spacing of the grid for contributions of at most this length: a power of two, about clip_norm / 2^20."""
    return float(2.0 ** (math.floor(math.log2(clip_norm)) - _GRID_BITS))


class SecretStream:
    """Random numbers of one task, by purpose and number: asked the same, it answers the same."""

    def __init__(self, key: bytes) -> None:
        """`key`: 32 bytes that nobody else knows, used for nothing else."""
        if len(key) != 32:
            raise ValueError(f"a key of {len(key)} bytes; 32 are needed.")
        self._key = key

    def sampled(self, purpose: str, number: int, count: int, rate: float) -> Tensor:
        """Which of `count` images enter step `number`, each by itself with probability `rate`: int64, ascending, on the
        CPU; often another number of them, sometimes none."""
        if rate >= 1:
            return torch.arange(count)
        threshold = numpy.uint64(int(rate * 2.0**64))
        chosen_N = numpy.frombuffer(self._bytes(f"sample {purpose}", number, 8 * count), dtype="<u8") < threshold
        return torch.from_numpy(numpy.flatnonzero(chosen_N))

    def seed(self, purpose: str) -> int:
        """A 63-bit seed for a generator of its own."""
        return int.from_bytes(self._bytes(f"seed {purpose}", 0, 8), "little") & (2**63 - 1)

    def noise(self, purpose: str, number: int, count: int, deviation: float, *, rounded: bool = True) -> Tensor:
        """Normal numbers with mean 0, rounded to whole ones: float64 (count,), on the CPU.

        Args:
            deviation: standard deviation before they are rounded; far above 1, below 2^40.
            rounded: False leaves them as they are, for whoever rounds them together with what they are added to.
        """
        pairs = -(-count // 2)
        parts = []
        for block, start in enumerate(range(0, pairs, _BLOCK)):
            size = min(_BLOCK, pairs - start)
            raw = numpy.frombuffer(self._bytes(f"noise {purpose} {block}", number, 16 * size), dtype="<u8")
            # (bits + 1/2) / 2^64 lies in (0, 1): a float has room for its smallest values, where the tails come from.
            uniform = torch.from_numpy((raw[:size].astype(numpy.float64) + 0.5) * 2.0**-64)
            turn = torch.from_numpy((raw[size:] >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53)
            radius, angle = torch.sqrt(-2.0 * torch.log(uniform)), 2.0 * math.pi * turn
            parts += [radius * torch.cos(angle), radius * torch.sin(angle)]
        normal = torch.cat(parts)[:count] if parts else torch.zeros(0, dtype=torch.float64)
        return torch.round(normal * deviation) if rounded else normal * deviation

    def _bytes(self, purpose: str, number: int, size: int) -> bytes:
        return hashlib.shake_256(self._key + f"{purpose}\x1f{number}".encode()).digest(size)
