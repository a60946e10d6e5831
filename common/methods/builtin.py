"""The table of built-in methods, one row each: what both sides know of a method, and where its two halves are.

The spec of a method is imported when somebody asks for it: twelve of them and their settings are a fifth of the time
that `coordinator status` takes, and most commands need the names alone. A half is named as text and imported only by
the compute process that runs it: it brings torch, and neither side imports the other's. Methods of others come as
plug-ins (`semisilo.common.methods.plugins`); they cannot take a name that is in this table.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Generic, TypeVar

from semisilo.common.methods.spec import MethodPlugin, MethodSpec

__all__ = ["BUILT_IN", "METHODS"]

T = TypeVar("T")

_STEMS = {
    "self_training": "SelfTraining",
    "semifl": "SemiFL",
    "fed_shvr": "FedSHVR",
    "fedmatch": "FedMatch",
    "fedmix": "FedMix",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "Scaffold",
    "local": "Local",
    "fedrgd": "FedRGD",
    "fedsgd": "FedSGD",
}
"""In the order in which methods are listed to people. The halves of a method are in the modules of its name, as
`<stem>Strategy` and `<stem>Trainer`; its spec is there in capitals."""


class _Table(MutableMapping[str, T], Generic[T]):
    """A row for each name, made when it is first asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._rows: dict[str, T | None] = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> T:
        if (row := self._rows[name]) is None:
            row = self._rows[name] = self._make(name)
        return row

    def __setitem__(self, name: str, row: T) -> None:
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _spec(name: str) -> MethodSpec:
    found: MethodSpec = getattr(importlib.import_module(f"semisilo.common.methods.{name}"), name.upper())
    return found


def _row(name: str) -> MethodPlugin:
    return MethodPlugin(spec=_spec(name), strategy=f"semisilo.coordinator.strategies.{name}:{_STEMS[name]}Strategy",
                        trainer=f"semisilo.silo.trainers.{name}:{_STEMS[name]}Trainer")


METHODS: MutableMapping[str, MethodSpec] = _Table(_STEMS, _spec)
BUILT_IN: MutableMapping[str, MethodPlugin] = _Table(_STEMS, _row)
