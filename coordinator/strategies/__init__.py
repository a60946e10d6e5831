"""The coordinator halves of the methods, by name. A half is imported only when it is asked for: it brings torch."""

from __future__ import annotations

import importlib
from typing import Any

from common.errors import UnknownName

__all__ = ["STRATEGIES", "load_strategy"]

STRATEGIES: dict[str, str] = {
    "semifl": "coordinator.strategies.semifl:SemiFLStrategy",
}
"""Method -> "module:Class"."""


def load_strategy(name: str) -> type[Any]:
    """The class of a method's strategy, to be built as `Strategy(settings, environment)`.

    Raises: UnknownName, with the names there are.
    """
    if name not in STRATEGIES:
        raise UnknownName(f"There is no strategy for method '{name}'.",
                          remedy=f"Methods: {', '.join(sorted(STRATEGIES))}.")
    module, _, cls = STRATEGIES[name].partition(":")
    strategy: type[Any] = getattr(importlib.import_module(module), cls)
    return strategy
