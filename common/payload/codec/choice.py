"""Which form a block takes.

Three questions are answered one after the other: whether elements that are zero are left out; if so, whether their
positions are worth more work than a bitmask; and whether the values are worth compressing. `SMALLEST` says yes to all
and takes what came out smallest, `RAW` says no to all (with `Plan.sparse` to the last only). `FASTEST` compares
seconds: those that encoding and decoding take at the rates below, and those that the saved bytes would take on the
link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semisilo.common.payload.codec.elements import Bits, ElementType
from semisilo.common.payload.codec.plan import DEFAULT_LINK_BYTES_PER_SECOND, Aim, Plan
from semisilo.common.payload.codec.values import encode_values

__all__ = ["Choice", "choose", "worth_squeezing"]

# Seconds that both sides take together, one core each, as benchmarks/codec measured them.
_MOVE_SECONDS_PER_BYTE = 0.1e-9
"""Writing and reading a value as it is; per byte of the values."""
_PLANES_SECONDS_PER_BYTE = 1.4e-9
"""Splitting values into planes, compressing, and back; per byte of the values."""
_PLANES_SECONDS = 80e-6
"""The same, however few values there are."""
_SCAN_SECONDS_PER_ELEMENT = 0.3e-9
"""Looking for the elements with a value, and reading the bitmask; per element of the block."""
_SPARSE_SECONDS_PER_ELEMENT = 1.5e-9
"""Taking the values out and putting them back, once they are a tenth of the block or more; per element of the block."""
_COMPACT_SECONDS_PER_ELEMENT = 2e-9
"""Making and reading a smaller index form than the bitmask, once a tenth is listed; per element of the block."""

_SAMPLE_VALUES = 4096
"""Values of a block that its compression ratio is estimated on."""
_SMALLEST_COMPRESSED_BYTES = 128
"""Values that take less are not compressed: that saves a few bytes, and a network has hundreds of such tensors."""
_DENSE_FROM = 0.999
"""Share of floats with a value above which the few that are zero are written like the others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to try on a block; of what was tried the smallest is taken."""

    dense: bool
    """Every element as a value."""
    sparse: bool
    """Only those that are not zero."""
    compact_index: bool = False
    """Look for something smaller than a bitmask."""


def choose(bits: Bits, kind: ElementType, plan: Plan, with_value: int) -> Choice:
    """What to try on a block.

    Args:
        bits: (n,) unsigned integers.
        kind: their type.
        plan: what the sender wants.
        with_value: how many are not zero, 1 to n.
    """
    if with_value == len(bits) or (plan.aim is Aim.RAW and not plan.sparse):
        return Choice(dense=True, sparse=False)
    if plan.aim is Aim.RAW:
        return Choice(dense=True, sparse=True, compact_index=True)
    if plan.aim is Aim.SMALLEST:
        # A float that is zero stands out among its neighbours, so leaving it out is always smaller. A small integer
        # that is zero does not: labels and counters may well be smaller with their zeros.
        sparse = not kind.is_float or with_value < _DENSE_FROM * len(bits)
        return Choice(dense=not kind.is_float or not sparse, sparse=sparse, compact_index=True)
    seconds_per_byte = 1 / _link(plan)
    n = len(bits)
    compact_seconds = (_COMPACT_SECONDS_PER_ELEMENT * min(n, 10 * with_value, 10 * (n - with_value))
                       + _entropy_bytes(n, with_value) * seconds_per_byte)
    bitmask_seconds = n / 8 * seconds_per_byte
    sample = bits[::max(1, n // _SAMPLE_VALUES)]
    dense_seconds = _value_seconds(sample, kind, plan, n)
    sparse_seconds = (_SCAN_SECONDS_PER_ELEMENT * n + _SPARSE_SECONDS_PER_ELEMENT * min(n, 10 * with_value)
                      + min(compact_seconds, bitmask_seconds)
                      + _value_seconds(sample[sample != 0], kind, plan, with_value))
    sparse = sparse_seconds < dense_seconds
    return Choice(dense=not sparse, sparse=sparse, compact_index=compact_seconds < bitmask_seconds)


def worth_squeezing(values: Bits, kind: ElementType, plan: Plan) -> bool:
    """Whether to compress values (count,) of that type."""
    if plan.aim is Aim.RAW or values.nbytes < _SMALLEST_COMPRESSED_BYTES:
        return False
    if plan.aim is Aim.SMALLEST:
        return True
    plain, squeezed = _plain_and_squeezed_seconds(values[::max(1, len(values) // _SAMPLE_VALUES)], kind, plan,
                                                  len(values))
    return squeezed < plain


def _value_seconds(sample: Bits, kind: ElementType, plan: Plan, count: int) -> float:
    return min(_plain_and_squeezed_seconds(sample, kind, plan, count))


def _plain_and_squeezed_seconds(sample: Bits, kind: ElementType, plan: Plan, count: int) -> tuple[float, float]:
    """Estimated seconds to encode, send and decode `count` values like those of the sample."""
    if not len(sample):
        return (count * kind.size_bytes / _link(plan),) * 2
    scale = count / len(sample)
    plain_bytes = scale * len(encode_values(sample, kind, plan.values, squeeze=False)[1])
    plain = _MOVE_SECONDS_PER_BYTE * count * kind.size_bytes + plain_bytes / _link(plan)
    work = _PLANES_SECONDS + _PLANES_SECONDS_PER_BYTE * count * kind.size_bytes
    if work >= plain / 2:  # not even if half of the bytes were saved, so the sample is saved too
        return plain, plain
    squeezed_bytes = scale * len(encode_values(sample, kind, plan.values, squeeze=True)[1])
    return plain, work + squeezed_bytes / _link(plan)


def _entropy_bytes(n: int, with_value: int) -> float:
    """The bytes that a mask without structure takes at least."""
    shares = np.array([with_value, n - with_value]) / n
    return float(-(shares * np.log2(shares)).sum()) * n / 8


def _link(plan: Plan) -> float:
    return plan.link_bytes_per_second or DEFAULT_LINK_BYTES_PER_SECOND
