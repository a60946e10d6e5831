"""The table of built-in methods, one row each: what both sides know of a method, and where its two halves are.

A half is named as text and imported only by the compute process that runs it: it brings torch, and neither side imports
the other's. Methods of others come as plug-ins (`semisilo.common.methods.plugins`); they cannot take a name that is in
this table.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from semisilo.common.methods.fed_shvr import FED_SHVR
from semisilo.common.methods.fedavg import FEDAVG
from semisilo.common.methods.fedmatch import FEDMATCH
from semisilo.common.methods.fedmix import FEDMIX
from semisilo.common.methods.fednova import FEDNOVA
from semisilo.common.methods.fedprox import FEDPROX
from semisilo.common.methods.fedrgd import FEDRGD
from semisilo.common.methods.fedsgd import FEDSGD
from semisilo.common.methods.local import LOCAL
from semisilo.common.methods.scaffold import SCAFFOLD
from semisilo.common.methods.self_training import SELF_TRAINING
from semisilo.common.methods.semifl import SEMIFL
from semisilo.common.methods.spec import MethodPlugin, MethodSpec

__all__ = ["BUILT_IN", "METHODS"]


def _row(spec: MethodSpec, stem: str) -> MethodPlugin:
    """A method whose halves lie in the modules of its name, as `<stem>Strategy` and `<stem>Trainer`."""
    return MethodPlugin(spec=spec, strategy=f"semisilo.coordinator.strategies.{spec.name}:{stem}Strategy",
                        trainer=f"semisilo.silo.trainers.{spec.name}:{stem}Trainer")


BUILT_IN: dict[str, MethodPlugin] = {row.spec.name: row for row in (
    _row(SELF_TRAINING, "SelfTraining"),
    _row(SEMIFL, "SemiFL"),
    _row(FED_SHVR, "FedSHVR"),
    _row(FEDMATCH, "FedMatch"),
    _row(FEDMIX, "FedMix"),
    _row(FEDAVG, "FedAvg"),
    _row(FEDPROX, "FedProx"),
    _row(FEDNOVA, "FedNova"),
    _row(SCAFFOLD, "Scaffold"),
    _row(LOCAL, "Local"),
    _row(FEDRGD, "FedRGD"),
    _row(FEDSGD, "FedSGD"),
)}
"""In the order in which methods are listed to people."""

METHODS: dict[str, MethodSpec] = {name: method.spec for name, method in BUILT_IN.items()}
