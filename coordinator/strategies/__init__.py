"""The coordinator halves of the methods, by name. A half is imported only when it is asked for: it brings torch."""

from __future__ import annotations

from typing import Any

from common.plugins import load_half

__all__ = ["STRATEGIES", "load_strategy"]

STRATEGIES: dict[str, str] = {
    "fedavg": "coordinator.strategies.fedavg:FedAvgStrategy",
    "fednova": "coordinator.strategies.fednova:FedNovaStrategy",
    "fedprox": "coordinator.strategies.fedprox:FedProxStrategy",
    "local": "coordinator.strategies.local:LocalStrategy",
    "fed_shvr": "coordinator.strategies.fed_shvr:FedSHVRStrategy",
    "fedmatch": "coordinator.strategies.fedmatch:FedMatchStrategy",
    "fedmix": "coordinator.strategies.fedmix:FedMixStrategy",
    "fedrgd": "coordinator.strategies.fedrgd:FedRGDStrategy",
    "fedsgd": "coordinator.strategies.fedsgd:FedSGDStrategy",
    "scaffold": "coordinator.strategies.scaffold:ScaffoldStrategy",
    "semifl": "coordinator.strategies.semifl:SemiFLStrategy",
}
"""Built-in method -> "module:Class"; plug-ins name their own."""


def load_strategy(name: str) -> type[Any]:
    """The class of a method's strategy, to be built as `Strategy(settings, environment)`.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    return load_half(name, STRATEGIES, "strategy")
