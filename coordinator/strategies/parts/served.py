"""What silos are sent of a state: each tensor group made once, and the same object in every silo's task.

Whoever encodes a phase's tasks encodes an object once; and a digest takes a pass over the whole model. So groups are
remembered, not by the strategy but by the state that they are made of: a state never changes, so a group that was made
of it is right as long as it lives, and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeVar, cast

from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.methods.contract import TensorGroup

__all__ = ["ServedGroups", "ServedState"]

T = TypeVar("T")


class ServedGroups:
    """The tensor groups of VALUES that were made of one state so far."""

    def __init__(self) -> None:
        self._groups: dict[str, TensorGroup] = {}
        self._facts: dict[str, object] = {}

    def group(self, name: str, make: Callable[[], Mapping[str, Tensor]], *, digest: bool = True) -> TensorGroup:
        """A group by its name; made when it is asked for the first time.

        Args:
            name: tells it from the others of this state; need not be the name that it is sent under.
            make: gives the tensors; a function of the state and the study's settings alone.
            digest: whether to compute the digest now. Without it whoever sends the group does so.
        """
        if name not in self._groups:
            values = make()
            self._groups[name] = TensorGroup(values, digest=tensors.digest(values) if digest else "")
        return self._groups[name]

    def fact(self, name: str, make: Callable[[], T]) -> T:
        """What settings of tasks say of this state, such as its confidence; made when it is first asked for."""
        if name not in self._facts:
            self._facts[name] = make()
        return cast(T, self._facts[name])

    def batch_norm(self, statistics: Mapping[str, Tensor]) -> dict[str, TensorGroup]:
        """{"batch_norm": the state's static batch-norm statistics}; {} where it has none."""
        return {"batch_norm": self.group("batch_norm", lambda: statistics, digest=False)} if statistics else {}


class ServedState:
    """To be inherited by states: frozen dataclasses without slots. No field, so it is neither compared nor saved, and
    `dataclasses.replace` gives a state that starts with no groups."""

    @cached_property
    def served(self) -> ServedGroups:
        """What silos are sent of this state."""
        return ServedGroups()
