"""Python's collector of cycles in a process whose event loop must not stand still.

A full collection looks at every object of the process, and the event loop waits: with a thousand silos 0.1 s on a quiet
machine, several times in a round. So what was made at the start, modules above all, is left out for good, and the
collector runs when far more has been made since; reference counts free nearly all of it before that.
"""

from __future__ import annotations

import gc

__all__ = ["settle_collector"]

_YOUNG_OBJECTS = 5_000
"""Made since the last collection, when the next one of the youngest objects begins: a millisecond. gRPC leaves a cycle
of eight objects behind with every call; with more of them a collection takes as long as several answers."""
_YOUNG_COLLECTIONS, _GENERATIONS = 200, 50
"""So many collections of the youngest and of those above, until the generation above is looked at as well."""


def settle_collector() -> None:
    """Sets the collector of this process; to be called once all is imported and made that stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _GENERATIONS)
