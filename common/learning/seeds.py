"""Named seeds: every random number follows from (study seed, purpose, round, silo), never from global state."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    import torch

__all__ = ["derive_seed", "numpy_generator", "torch_generator"]


def derive_seed(study_seed: int, purpose: str, *, round: int = 0, silo: str = "") -> int:
    """A 63-bit seed that is the same on every machine.

    Args:
        study_seed: `seed` of the study file.
        purpose: what the numbers are for, for example "shuffle"; different purposes give independent streams.
        round: number of the round, 0 where there is none.
        silo: name of the silo, empty at the coordinator.
    """
    text = f"{study_seed}\x1f{purpose}\x1f{round}\x1f{silo}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)


def numpy_generator(study_seed: int, purpose: str, *, round: int = 0, silo: str = "") -> numpy.random.Generator:
    """A numpy generator on the named seed."""
    import numpy

    return numpy.random.Generator(numpy.random.PCG64(derive_seed(study_seed, purpose, round=round, silo=silo)))


def torch_generator(study_seed: int, purpose: str, *, round: int = 0, silo: str = "") -> torch.Generator:
    """A torch generator on the CPU on the named seed."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive_seed(study_seed, purpose, round=round, silo=silo))
    return generator
