"""How often something may happen: a burst at once, then a steady rate.

Tests: tests/coordinator/federation/test_token_bucket.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TokenBucket"]


@dataclass(slots=True)
class TokenBucket:
    """Begins full. Knows no clock: `take` is told the time, by a clock that never steps (`time.monotonic`)."""

    capacity: float
    """So many at once, >= 1."""
    per_second: float
    """So many come back in a second, > 0."""
    _level: float = field(init=False)
    _then: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._level = self.capacity

    def take(self, now: float, count: float = 1.0) -> float:
        """Takes so many, at most `capacity`, and returns 0.0; where there are fewer, takes nothing and returns the
        seconds until there are."""
        if self._then is not None:
            self._level = min(self.capacity, self._level + max(0.0, now - self._then) * self.per_second)
        self._then = now
        if self._level < count:
            return (count - self._level) / self.per_second
        self._level -= count
        return 0.0
