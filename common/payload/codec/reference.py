"""A tensor against a base that both sides hold: exact, on bit patterns.

The patterns are subtracted as integers (wrapping), and the difference is folded so that small ones of either sign
become small unsigned numbers (zigzag). Floats that lie near each other have near patterns, so a model that was trained
a little further gives numbers with zeros on top. Any pattern comes back bit for bit.
"""

from __future__ import annotations

import numpy as np

from semisilo.common.payload.codec.elements import Bits

__all__ = ["add_bits", "subtract_bits"]


def subtract_bits(bits: Bits, base: Bits, out: Bits | None = None) -> Bits:
    """Codes elements against a base.

    Args:
        bits: elements as unsigned integers, any shape.
        base: the same dtype and shape.
        out: where the result goes, the same dtype and shape; may be `bits` itself. None for a new array.
    Returns: unsigned integers of the same width, 0 where both are equal. Their type is `coded_kind(kind)`.
    """
    difference = _checked_out(bits, base, out)
    np.subtract(bits, base, out=difference)
    signed = difference.view(f"<i{bits.dtype.itemsize}")
    signs = signed >> (bits.dtype.itemsize * 8 - 1)  # all ones for a negative difference, else 0
    np.left_shift(signed, 1, out=signed)
    np.bitwise_xor(signed, signs, out=signed)
    return difference


def add_bits(coded: Bits, base: Bits, out: Bits | None = None) -> Bits:
    """Undoes `subtract_bits`.

    Args:
        coded: from `subtract_bits`, any shape.
        base: the base it was coded against, the same dtype and shape.
        out: where the result goes, the same dtype and shape; may be `coded` or `base` itself. None for a new array.
    Returns: the elements as unsigned integers.
    """
    result = _checked_out(coded, base, out)
    one = coded.dtype.type(1)
    difference = (coded >> one) ^ np.negative(coded & one)
    np.add(difference, base, out=result)
    return result


def _checked_out(first: Bits, second: Bits, out: Bits | None) -> Bits:
    target = np.empty_like(first) if out is None else out
    if first.dtype.kind != "u" or not first.dtype == second.dtype == target.dtype \
            or not first.shape == second.shape == target.shape:
        raise ValueError(f"{first.dtype}{list(first.shape)} cannot be coded against {second.dtype}{list(second.shape)} "
                         f"into {target.dtype}{list(target.shape)}.")
    return target
