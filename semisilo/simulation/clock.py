"""The clock of a simulation: it stands still while silos work one after the other, as if they did so at once."""

from __future__ import annotations

import time

__all__ = ["PhaseClock"]


class PhaseClock:
    """Unix seconds. Deadlines are met by `jump`, never by waiting."""

    def __init__(self) -> None:
        self._held: float | None = None
        self._ahead = 0.0

    def __call__(self) -> float:
        """The time now."""
        return time.time() + self._ahead if self._held is None else self._held

    def hold(self) -> None:
        """Stands still from now on."""
        self._held = self()

    def release(self) -> None:
        """Goes on: with the real time, or from where a jump has led beyond it."""
        if self._held is not None:
            self._ahead = max(0.0, self._held - time.time())
            self._held = None

    def jump(self, unix: float) -> None:
        """Stands at a later time."""
        self._held = max(self(), unix)
