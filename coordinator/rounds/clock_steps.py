"""Steps of this machine's clock: it was set, by hand or by NTP, or it went on while the machine slept.

Deadlines are times of day, for people and for the ledger; how long a phase lasts is not to hang on who sets a clock. So
the engine looks for steps before it looks at a deadline, and moves the deadline with the clock.

Tests: tests/coordinator/rounds/test_clock_steps.py.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ClockSteps"]

_LEAST_SECONDS = 1.0
"""A smaller difference is the clock being read twice, or NTP turning it slowly; small ones add up until they count."""


class ClockSteps:
    """Compares the clock with one that nobody sets."""

    def __init__(self, clock: Callable[[], float], *, steady: Callable[[], float] | None) -> None:
        """
        Args:
            clock: Unix seconds.
            steady: seconds since any moment, that nobody sets and that stand still while the machine sleeps, such as
                `time.monotonic`; None where nobody sets `clock` either.
        """
        self._clock = clock
        self._steady = steady
        self._apart = self._difference()

    def look(self) -> float:
        """By how much the clock was set since the last look, seconds: negative where it was set back."""
        step = self._difference() - self._apart
        if abs(step) < _LEAST_SECONDS:
            return 0.0
        self._apart += step
        return step

    def _difference(self) -> float:
        return 0.0 if self._steady is None else self._clock() - self._steady()
