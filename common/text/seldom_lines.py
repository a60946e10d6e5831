"""What the log says once in a while, though others may bring it about at any rate: a peer must not fill a disk with it.

Tests: tests/common/text/test_seldom_lines.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SeldomLines"]

_SECONDS = 3600.0
_MOST = 4096
"""Of which it is known when they were written. With more the oldest are forgotten, and may be written again."""


class SeldomLines:
    """Lines that are written once an hour for each of whatever tells them apart."""

    def __init__(self, *, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds, never steps.
        """
        self._seconds = seconds
        self._clock = clock
        self._written: dict[tuple[str, ...], tuple[float, str]] = {}
        """When, and the mark; oldest first."""

    def standing(self, *key: str, mark: str = "") -> str | None:
        """The mark of the line that stands for this one; None where there is none, and the caller writes it now.

        Args:
            key: tells lines apart: who brings it about, and why. Nothing in it may be of the peer's own invention.
            mark: of the line, should it be written.
        """
        now = self._clock()
        written = self._written.get(key)
        if written is not None and now - written[0] < self._seconds:
            return written[1]
        self._written.pop(key, None)
        if len(self._written) >= _MOST:
            del self._written[next(iter(self._written))]
        self._written[key] = now, mark
        return None

    def forget(self) -> None:
        """As if nothing had been written."""
        self._written.clear()
