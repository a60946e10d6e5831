"""The silo half of `perturb`: noise, seeded by study, round and silo, on all elements or on a share of them.

Normal noise for 25 million elements takes longer than a quick round may. So a silo draws 5 x 2^20 normal numbers once,
in its first round, with zeros where elements stay; each block of 2^20 elements of an update is a piece of these from a
random offset, times a random factor. A codec codes blocks of that size alone, so it meets nothing but noise: all bits
of the mantissas differ from block to block, and positions are uniform within each.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.methods.contract import Meaning, Memory, SiloData, SiloTask, TensorGroup, Update
from semisilo_perturb.method import PerturbSettings

__all__ = ["PerturbTrainer", "perturbation"]

_BLOCK = 2**20
_BASE = 5 * _BLOCK


class PerturbTrainer:
    """The silo half; it keeps nothing between rounds."""

    Memory = type(None)

    def train(self, task: SiloTask, data: SiloData, memory: Memory | None) -> tuple[Update, Memory | None]:
        """The perturbation of this round as a difference to the received model."""
        settings: PerturbSettings = task.settings
        sent = task.groups["model"]
        received = sent.tensors
        generator = numpy_generator(task.seed, "perturb", round=task.round, silo=task.silo)
        base = _noise(task.seed, task.silo, settings.density)
        delta = {name: perturbation(tensor, base, int(generator.integers(0, 2**63)), settings.scale)
                 for name, tensor in received.items()}
        group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.group_digest(task.groups["model"]))
        count = 0 if data.unlabelled is None else len(data.unlabelled)
        return Update(groups={"model": group}, num_examples=count), None


def perturbation(like: Tensor, base: Tensor, seed: int, scale: float) -> Tensor:
    """Noise in the shape of `like`, float32: pieces of `base` (n,) from random offsets, each with a factor of its own.

    Args:
        base: more than 2^20 elements.
        seed: of the offsets and factors.
        scale: the factors are uniform in 0.5 to 1.5 times this.
    """
    generator = numpy_generator(seed, "perturb_blocks")
    flat = torch.empty(like.numel(), dtype=torch.float32)
    for start in range(0, len(flat), _BLOCK):
        piece = flat[start:start + _BLOCK]
        offset = int(generator.integers(0, len(base) - _BLOCK))
        torch.mul(base[offset:offset + len(piece)], scale * float(generator.uniform(0.5, 1.5)), out=piece)
    return flat.reshape(like.shape)


@lru_cache(maxsize=1)
def _noise(seed: int, silo: str, density: float) -> Tensor:
    """(5 x 2^20,) standard normal, float32; each element is kept with probability `density`, else 0."""
    generator = numpy_generator(seed, "perturb_noise", silo=silo)
    values = generator.standard_normal(_BASE, dtype="float32")
    if density < 1:
        values *= generator.random(_BASE, dtype="float32") < density
    return torch.from_numpy(values)
