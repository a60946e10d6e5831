"""Tensors that a payload may be coded against, wherever they lie: in a payload file or in memory.

Light processes may import this; whoever has torch tensors wraps them with `common.torch_payload.held_in_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from common.codec import Bits
from common.exchange import TensorSpec

if TYPE_CHECKING:
    from common.payload_reader import PayloadReader

__all__ = ["HeldFile", "HeldInMemory", "HeldTensors"]


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
class HeldFile:
    """The first group of a payload that stands alone; what is read raises BadPayload as `PayloadReader` does."""

    reader: PayloadReader

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """As the manifest says; nothing for a file without groups."""
        return self.reader.groups[0].tensors if self.reader.groups else ()

    def rows(self) -> Iterator[Bits]:
        """See `HeldTensors`."""
        if self.reader.groups:
            for _, bits in self.reader.tensors(self.reader.groups[0].name):
                yield bits.reshape(-1)

    def sample(self, name: str, count: int) -> Bits:
        """See `HeldTensors`."""
        return self.reader.sample(self.reader.groups[0].name, name, count)


@dataclass(frozen=True, slots=True)
class HeldInMemory:
    """Tensors that somebody has at hand: no second copy on disk, and none in memory."""

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
