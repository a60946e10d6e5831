"""The silo halves of the methods, a module each. A half is imported only when it is asked for: it brings torch.

Imports `common` and `semisilo.silo.objectives`; the compute process imports it.
"""

from __future__ import annotations

from typing import Any

from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.plugins import load_half

__all__ = ["load_trainer"]


def load_trainer(name: str) -> type[Any]:
    """The class of a method's trainer, to be built as `Trainer()`.

    What a plug-in's module sets in torch where it is imported (threads, a seed) ends with the import, which comes once
    in a process: the settings of the study hold, also for the first task after a restart.
    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    if name in BUILT_IN:
        return load_half(name, "trainer")
    from semisilo.common.numerics.numerics import code_of_others  # later, as the half itself: it brings torch

    with code_of_others():
        return load_half(name, "trainer")
