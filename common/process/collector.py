"""Python's collector of cycles in a process whose event loop must not stand still.

A full collection looks at every object of the process, and the event loop waits: with a thousand silos 0.1 s on a quiet
machine, several times in a round. So what was made at the start, modules above all, is left out for good, and the
collector runs when far more has been made since; reference counts free nearly all of it before that.
"""

from __future__ import annotations

import gc

__all__ = ["settle_collector"]

_YOUNG_OBJECTS = 20_000
"""Made since the last collection, when the next one of the youngest objects begins: some milliseconds."""
_GENERATIONS = 50
"""So many collections of a generation, until the one above is looked at as well."""


def settle_collector() -> None:
    """Sets the collector of this process; to be called once all is imported and made that stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _GENERATIONS, _GENERATIONS)
