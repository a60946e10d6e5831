"""What the numbers of a tensor group mean to the half of a method that receives them.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Meaning"]


class Meaning(StrEnum):
    """How the numbers of a tensor group act on the receiver; independent of how they are encoded."""

    VALUES = "values"
    """The tensors themselves."""
    DIFFERENCE = "difference"
    """To be added to the group named by the base digest."""
    OVERWRITE = "overwrite"
    """Indices with values; all other elements stay as in the base. In memory the result: the base, overwritten."""
