"""Which process of a silo calls: two that call in turn have the same identity, of which one is a copy.

Every process of a silo names itself by a random number. One that was started again has another one, and the earlier is
never heard again; so an earlier one that comes back, again and again, is alive beside the other.

Tests: tests/coordinator/tasks/test_silo_processes.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["SiloProcesses"]

_RETURNS = 3
"""So often an earlier process must come back: a call that was held up on its way may come after the next process's, and
then two are counted."""
_WITHIN_SECONDS = 86400.0
"""A round of both may last hours."""
_LASTS_SECONDS = 600.0
"""So long after the last return two are taken to be there; then it takes one more return, not three."""
_REMEMBERED = 8
"""Processes of a silo, those that were heard last."""


@dataclass(slots=True)
class _Heard:
    addresses: dict[bytes, str] = field(default_factory=dict)
    """Process -> where it called from; the last one heard at the end."""
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=_RETURNS))


class SiloProcesses:
    """Of all silos, from the coordinator's start."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, never steps."""
        self._clock = clock
        self._silos: dict[str, _Heard] = {}

    def heard(self, silo: str, process: bytes, *, address: str) -> tuple[str, str] | None:
        """Notes a call of a silo.

        Args:
            process: what the process calls itself; empty when it does not say.
            address: where the call comes from.
        Returns: the addresses of the two processes that call in turn; None where there is one.
        """
        if not process:
            return None
        heard, now = self._silos.setdefault(silo, _Heard()), self._clock()
        known = process in heard.addresses
        if known and next(reversed(heard.addresses)) != process:
            heard.returns.append(now)
        heard.addresses.pop(process, None)
        heard.addresses[process] = address
        if len(heard.addresses) > _REMEMBERED:
            del heard.addresses[next(iter(heard.addresses))]
        if len(heard.returns) < _RETURNS or now - heard.returns[0] > _WITHIN_SECONDS \
                or now - heard.returns[-1] > _LASTS_SECONDS:
            return None
        if not known:  # started again: whether the other is still there shows when that one calls
            heard.returns.clear()
            return None
        last, other = list(heard.addresses.values())[:-3:-1]
        return other, last
