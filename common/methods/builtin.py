"""The table of built-in methods, one row each: what both sides know of a method, and where its two halves are.

The spec of a method is imported when somebody asks for it (decision 0067): twelve of them and their settings are a
fifth of the time that `coordinator status` takes, and most commands need the names alone. A half is named as text and
imported only by the compute process that runs it: it brings torch, and neither side imports the other's. Methods of
others come as plug-ins (`semisilo.common.methods.plugins`); they cannot take a name that is in this table.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Generic, TypeVar

from semisilo.common.methods.spec import MethodPlugin, MethodSpec

__all__ = ["BUILT_IN", "METHODS"]

T = TypeVar("T")

_SPECS_AND_STEMS = {
    "self_training": ("semisilo.common.methods.self_training:SELF_TRAINING", "SelfTraining"),
    "semifl": ("semisilo.common.methods.semifl:SEMIFL", "SemiFL"),
    "fed_shvr": ("semisilo.common.methods.fed_shvr:FED_SHVR", "FedSHVR"),
    "fedmatch": ("semisilo.common.methods.fedmatch:FEDMATCH", "FedMatch"),
    "fedmix": ("semisilo.common.methods.fedmix:FEDMIX", "FedMix"),
    "fedavg": ("semisilo.common.methods.fedavg:FEDAVG", "FedAvg"),
    "fedprox": ("semisilo.common.methods.fedprox:FEDPROX", "FedProx"),
    "fednova": ("semisilo.common.methods.fednova:FEDNOVA", "FedNova"),
    "scaffold": ("semisilo.common.methods.scaffold:SCAFFOLD", "Scaffold"),
    "local": ("semisilo.common.methods.local:LOCAL", "Local"),
    "fedrgd": ("semisilo.common.methods.fedrgd:FEDRGD", "FedRGD"),
    "fedsgd": ("semisilo.common.methods.fedsgd:FEDSGD", "FedSGD"),
}
"""In the order in which methods are listed to people: where the spec is, and the beginning of the names of both halves,
`<stem>Strategy` and `<stem>Trainer`, in the modules of the method's name."""


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
    module, _, constant = _SPECS_AND_STEMS[name][0].partition(":")
    found: MethodSpec = getattr(importlib.import_module(module), constant)
    return found


def _row(name: str) -> MethodPlugin:
    stem = _SPECS_AND_STEMS[name][1]
    return MethodPlugin(spec=METHODS[name], strategy=f"semisilo.coordinator.strategies.{name}:{stem}Strategy",
                        trainer=f"semisilo.silo.trainers.{name}:{stem}Trainer")


METHODS: MutableMapping[str, MethodSpec] = _Table(_SPECS_AND_STEMS, _spec)
BUILT_IN: MutableMapping[str, MethodPlugin] = _Table(_SPECS_AND_STEMS, _row)
