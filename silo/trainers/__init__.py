"""The silo halves of the methods, by name. A half is imported only when it is asked for: it brings torch."""

from __future__ import annotations

import importlib
from typing import Any

from common.errors import UnknownName

__all__ = ["TRAINERS", "load_trainer"]

TRAINERS: dict[str, str] = {
    "semifl": "silo.trainers.semifl:SemiFLTrainer",
}
"""Method -> "module:Class"."""


def load_trainer(name: str) -> type[Any]:
    """The class of a method's trainer, to be built as `Trainer()`.

    Raises: UnknownName, with the names there are.
    """
    if name not in TRAINERS:
        raise UnknownName(f"There is no trainer for method '{name}'.",
                          remedy=f"Methods: {', '.join(sorted(TRAINERS))}.")
    module, _, cls = TRAINERS[name].partition(":")
    trainer: type[Any] = getattr(importlib.import_module(module), cls)
    return trainer
