"""The silo halves of the methods, by name. A half is imported only when it is asked for: it brings torch."""

from __future__ import annotations

from typing import Any

from common.plugins import load_half

__all__ = ["TRAINERS", "load_trainer"]

TRAINERS: dict[str, str] = {
    "semifl": "silo.trainers.semifl:SemiFLTrainer",
}
"""Built-in method -> "module:Class"; plug-ins name their own."""


def load_trainer(name: str) -> type[Any]:
    """The class of a method's trainer, to be built as `Trainer()`.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    return load_half(name, TRAINERS, "trainer")
