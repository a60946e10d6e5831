"""What a sender wants of the codec.

Tests: tests/common/payload/codec/test_values.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = ["DEFAULT_LINK_BYTES_PER_SECOND", "Aim", "Plan", "ValueForm"]

DEFAULT_LINK_BYTES_PER_SECOND = 12.5e6
"""100 Mbit/s: what FASTEST assumes of a link that was not measured yet."""


class Aim(StrEnum):
    """By what the form of a block is chosen."""

    RAW = "raw"
    """Nothing is compressed; blocks of zeros are left out all the same (and `Plan.sparse`)."""
    SMALLEST = "smallest"
    """By bytes."""
    FASTEST = "auto"
    """By the estimated time to encode, send and decode."""


class ValueForm(StrEnum):
    """What is sent of a value."""

    EXACT = "exact"
    """Every bit."""
    BF16 = "bf16"
    """The nearest bfloat16."""
    INT8 = "int8"
    """255 levels, of a scale for each 256 values."""
    INT4 = "int4"
    """15 levels, of a scale for each 64 values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a tensor is to be encoded. The default only leaves out blocks of zeros."""

    aim: Aim = Aim.RAW
    link_bytes_per_second: float = 0.0
    """For FASTEST; 0 for a link that was not measured: `DEFAULT_LINK_BYTES_PER_SECOND` then."""
    values: ValueForm = ValueForm.EXACT
    """The lossy forms are for float32; other types are sent exactly."""
    sparse: bool = False
    """Whether RAW, too, leaves out single elements that are zero where that saves bytes."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Of INT8 and INT4. Stochastic rounding is unbiased and sqrt(2) noisier; BF16 always takes the nearest."""
