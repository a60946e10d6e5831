"""The silo halves of the methods, by name. A half is imported only when it is asked for: it brings torch."""

from __future__ import annotations

from typing import Any

from common.plugins import load_half

__all__ = ["TRAINERS", "load_trainer"]

TRAINERS: dict[str, str] = {
    "fedavg": "silo.trainers.fedavg:FedAvgTrainer",
    "fednova": "silo.trainers.fednova:FedNovaTrainer",
    "fedprox": "silo.trainers.fedprox:FedProxTrainer",
    "local": "silo.trainers.local:LocalTrainer",
    "fed_shvr": "silo.trainers.fed_shvr:FedSHVRTrainer",
    "fedmatch": "silo.trainers.fedmatch:FedMatchTrainer",
    "fedmix": "silo.trainers.fedmix:FedMixTrainer",
    "fedrgd": "silo.trainers.fedrgd:FedRGDTrainer",
    "fedsgd": "silo.trainers.fedsgd:FedSGDTrainer",
    "scaffold": "silo.trainers.scaffold:ScaffoldTrainer",
    "semifl": "silo.trainers.semifl:SemiFLTrainer",
}
"""Built-in method -> "module:Class"; plug-ins name their own."""


def load_trainer(name: str) -> type[Any]:
    """The class of a method's trainer, to be built as `Trainer()`.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    return load_half(name, TRAINERS, "trainer")
