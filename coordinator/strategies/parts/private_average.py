"""The average of updates with differential privacy of whole silos: each clipped, noise on the sum (DP-FedAvg).

    w' = w + (sum_k clip(w_k - w, C) + N(0, (sigma C)^2)) / m        m accepted updates

Sums are whole numbers on a public grid, so that one silo moves them by at most C exactly, and the noise lies on the
same grid (`semisilo.common.learning.privacy.gaussian`). It follows from a secret of the coordinator's and a digest of
the round, the model and the sum: the same round after a restart has the same bits, and another sum has other noise. The
study's seed would not do: every silo knows it.

Source: McMahan et al., ICLR 2018, with equal weights and no amplification by sampling.

Tests: tests/coordinator/strategies/parts/test_private_average.py.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of
from semisilo.common.methods.parts.privacy import SiloNoise

__all__ = ["PrivateAverage"]

_SLACK = 1.0 - 2.0**-40
"""What is clipped comes out shorter than C by this: the float64 product by which it is clipped is off by 2^-53."""


class PrivateAverage:
    """Of one study. Holds no state of it."""

    def __init__(self, noise: SiloNoise) -> None:
        """`noise`: of the environment."""
        self._noise = noise
        self._grid = grid_of(noise.clip_norm)

    def plus(self, so_far: Mapping[str, Tensor] | None, update: Mapping[str, Tensor], *,
             like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum with one silo's update, clipped: whole numbers in units of the grid, float64 by name, on the CPU.

        Args:
            so_far: None before the first.
            like: gives the names. Raises: LayoutMismatch where `update` has others.
        """
        tensors.check_same_layout(like, update)
        exact = {name: update[name].detach().cpu().double() for name in like}
        norm = float(torch.stack([each.square().sum() for each in exact.values()]).sum().sqrt())
        factor = min(1.0, self._noise.clip_norm / norm) * _SLACK if norm else 1.0
        found = {name: torch.trunc(each * (factor / self._grid)) for name, each in exact.items()}
        return found if so_far is None else {name: so_far[name] + each for name, each in found.items()}

    def mean(self, total: Mapping[str, Tensor], *, w: Mapping[str, Tensor], silos: int,
             round: int) -> dict[str, Tensor]:
        """The noised sum over the number of updates, in the types of `w`."""
        text = f"{round}\x1f{silos}\x1f{tensors.digest(w)}\x1f{tensors.digest(total)}"
        key = hmac.digest(self._noise.key, hashlib.sha256(text.encode()).digest(), "sha256")
        count = sum(each.numel() for each in total.values())
        deviation = self._noise.noise_multiplier * self._noise.clip_norm / self._grid
        parts = torch.split(SecretStream(key).noise("update", round, count, deviation),
                            [each.numel() for each in total.values()])
        return {name: ((each + part.reshape(each.shape)) * (self._grid / silos)).to(w[name].dtype).to(w[name].device)
                for (name, each), part in zip(total.items(), parts, strict=True)}
