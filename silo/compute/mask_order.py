"""How the compute process is to hide an update: no torch, no cryptography, so that every process can name it.

Tests: tests/silo/compute/test_masked_update.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import MaskSeed

__all__ = ["Masking"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    """How the update of a task is hidden."""

    form: MaskForm
    phase: str
    """Of the method."""
    threshold: int
    """Silos that the sum has at least."""
    seeds: tuple[MaskSeed, ...] = field(repr=False)
    """Of the masks, secret; none in a simulation."""
