"""The coordinator halves of the methods, a module each. A half is imported only when it is asked for: it brings torch.

Imports `common` alone; the compute process imports it.
"""

from __future__ import annotations

from typing import Any

from semisilo.common.methods.plugins import load_half

__all__ = ["load_strategy"]


def load_strategy(name: str) -> type[Any]:
    """The class of a method's strategy, to be built as `Strategy(settings, environment)`.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be imported.
    """
    return load_half(name, "strategy")
