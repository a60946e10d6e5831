"""How fast the line to each silo was when a payload last went down it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

__all__ = ["SMALLEST_MEASURED_BYTES", "LinkRates"]

SMALLEST_MEASURED_BYTES = 256 * 1024
"""Less than this says more about round trips than about the line."""


@dataclass(slots=True)
class LinkRates:
    """Silo -> bytes per second of its last download of at least 256 KiB; kept in memory, so unknown after a start."""

    rates: dict[str, float] = field(default_factory=dict)

    def rate(self, silo: str) -> float:
        """Bytes per second, 0.0 when unknown."""
        return self.rates.get(silo, 0.0)

    def slowest(self, silos: Collection[str]) -> float:
        """The lowest rate among silos of which it is known, 0.0 when it is of none."""
        return min((self.rates[silo] for silo in silos if silo in self.rates), default=0.0)

    def measured(self, silo: str, *, sent_bytes: int, seconds: float, delivered_per_second: float = 0.0) -> None:
        """Takes note of a stream that has ended, complete or not.

        Args:
            sent_bytes: payload bytes that were handed to the transport.
            seconds: from the first byte until the last was handed over. On a slow line the socket's buffer may hold
                megabytes then, so this alone flatters it.
            delivered_per_second: what the kernel saw the other end acknowledge, 0 where it does not tell: never more
                than the line carries. The smaller of the two counts.
        """
        if sent_bytes < SMALLEST_MEASURED_BYTES:
            return
        rate = sent_bytes / max(seconds, 1e-6)
        self.rates[silo] = min(rate, delivered_per_second) if delivered_per_second > 0 else rate
