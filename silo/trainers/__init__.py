"""The silo halves of the methods, a module each. A half is imported only when it is asked for: it brings torch.

Imports `common` and `semisilo.silo.objectives`; the compute process imports it.
"""

from __future__ import annotations

from typing import Any

from semisilo.common.methods.plugins import load_half

__all__ = ["load_trainer"]


def load_trainer(name: str) -> type[Any]:
    """The class of a method's trainer, to be built as `Trainer()`.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    return load_half(name, "trainer")
