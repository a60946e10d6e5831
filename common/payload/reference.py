"""Tensors against a reference that the reader holds: which form, and the arithmetic of both. Pure functions.

Two forms, both exact: differences of the bit patterns, always possible; or a difference in the type's own arithmetic,
where reference + difference gives every bit of the result, as when a model was made by adding an update with few
significant bits. A sample decides which is smallest, or whether the tensors are better sent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from semisilo.common.errors import LayoutMismatch
from semisilo.common.methods.contract import TensorSpec
from semisilo.common.payload.codec import (
    ELEMENT_TYPES,
    Bits,
    ElementType,
    Plan,
    add_bits,
    coded_kind,
    encode_blocks,
    subtract_bits,
)
from semisilo.common.payload.manifest import ReferenceForm

__all__ = ["HeldInMemory", "HeldTensors", "add_reference", "can_sum", "choose_form", "code_against"]

_SAMPLE_ELEMENTS = 2**18
_SUM_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


class HeldTensors(Protocol):
    """One tensor group that writer and reader of a payload both hold."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Its tensors, in order."""

    def rows(self) -> Iterator[Bits]:
        """The elements (n,) of every tensor in order, as little-endian unsigned integers; one tensor at a time."""

    def sample(self, name: str, count: int) -> Bits:
        """The first `count` elements, or all, of one tensor."""


@dataclass(frozen=True, slots=True)
class HeldInMemory:
    """Tensors that somebody has at hand: no second copy on disk, and none in memory.

    `semisilo.common.payload.torch_tensors.held_in_memory` makes it of torch tensors; light processes may import this
    module.
    """

    tensors: Sequence[tuple[TensorSpec, Callable[[], Bits]]]
    """(spec, gives its elements as little-endian unsigned integers) in order."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of all tensors."""
        return tuple(spec for spec, _ in self.tensors)

    def rows(self) -> Iterator[Bits]:
        """See `HeldTensors`."""
        for _, bits in self.tensors:
            yield bits().reshape(-1)

    def sample(self, name: str, count: int) -> Bits:
        """See `HeldTensors`."""
        return next(bits for spec, bits in self.tensors if spec.name == name)().reshape(-1)[:count]


def choose_form(held: HeldTensors, tensors: Sequence[tuple[TensorSpec, Callable[[], Bits]]],
                plan: Plan) -> ReferenceForm:
    """The form in which a group becomes smallest, judged by a sample of its largest tensor.

    Args:
        held: the reference, of the same layout.
        tensors: (spec, its elements as little-endian unsigned integers) in order.
        plan: how the blocks will be encoded.
    Raises: LayoutMismatch when the reference has other tensors.
    """
    if tuple(spec for spec, _ in tensors) != held.specs:
        raise LayoutMismatch("The reference of a tensor group has other tensors.")
    if not tensors:
        return ReferenceForm.ALONE
    largest = max(range(len(tensors)), key=lambda index: tensors[index][0].num_elements)
    kind = ELEMENT_TYPES[tensors[largest][0].dtype]
    new = tensors[largest][1]().reshape(-1)[:_SAMPLE_ELEMENTS]
    base = held.sample(tensors[largest][0].name, _SAMPLE_ELEMENTS)
    sizes = {ReferenceForm.ALONE: _encoded_bytes(new, kind, plan)}
    for form in (ReferenceForm.BITS, ReferenceForm.SUM):
        if form is ReferenceForm.SUM and not _sums_exactly(new, base, kind):
            continue
        sizes[form] = _encoded_bytes(code_against(new, base, kind, form),
                                     coded_kind(kind) if form is ReferenceForm.BITS else kind, plan)
    best = min(sizes, key=lambda form: sizes[form])
    if best is ReferenceForm.SUM and not _all_sum_exactly(held, tensors):
        del sizes[ReferenceForm.SUM]
        best = min(sizes, key=lambda form: sizes[form])
    return best


def code_against(bits: Bits, base: Bits, kind: ElementType, form: ReferenceForm) -> Bits:
    """What is sent of `bits` (n,) to a reader that holds `base` (n,); a new array, unsigned integers of the width."""
    if form is ReferenceForm.BITS:
        return subtract_bits(bits, base)
    floats = _SUM_TYPES[kind.name]
    with np.errstate(all="ignore"):  # a sample may hold infinities; whether the sum is exact is looked at apart
        coded: Bits = (bits.view(floats) - base.view(floats)).view(kind.bits)
        return coded


def add_reference(coded: Bits, base: Bits, kind: ElementType, form: ReferenceForm) -> None:
    """Turns what was sent (n,) into the tensor's elements, in place."""
    if form is ReferenceForm.BITS:
        add_bits(coded, base, out=coded)
    else:
        floats = _SUM_TYPES[kind.name]
        with np.errstate(all="ignore"):  # the digest of the result is checked
            np.add(base.view(floats), coded.view(floats), out=coded.view(floats))


def can_sum(kind: ElementType) -> bool:
    """Whether the form SUM exists for a type."""
    return kind.name in _SUM_TYPES


def _sums_exactly(bits: Bits, base: Bits, kind: ElementType) -> bool:
    if not can_sum(kind):
        return False
    coded = code_against(bits, base, kind, ReferenceForm.SUM)
    add_reference(coded, base, kind, ReferenceForm.SUM)
    return bool(np.array_equal(coded, bits))


def _all_sum_exactly(held: HeldTensors, tensors: Sequence[tuple[TensorSpec, Callable[[], Bits]]]) -> bool:
    return all(_sums_exactly(bits().reshape(-1), base, ELEMENT_TYPES[spec.dtype])
               for (spec, bits), base in zip(tensors, held.rows(), strict=True))


def _encoded_bytes(bits: Bits, kind: ElementType, plan: Plan) -> int:
    return sum(len(part) for parts in encode_blocks(bits, kind, plan) for part in parts)
