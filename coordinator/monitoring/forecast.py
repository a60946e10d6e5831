"""What a study will have cost at its end, if the rounds to come are like the last few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FORECAST_ROUNDS", "Forecast", "forecast_of"]

FORECAST_ROUNDS = 5
"""How many finished rounds the rounds to come are taken to be like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """At the end of a study."""

    wire_bytes_at_end: int
    """Both ways, what is spent already included."""
    seconds_left: float
    unix_at_end: float | None
    """None while the study is paused."""


def forecast_of(finished_wire_bytes: Sequence[int], *, spent_bytes: int, open_round_bytes: int, rounds_left: int,
                seconds_left: float | None, now_unix: float, paused: bool = False) -> Forecast | None:
    """Spent before the open round + rounds left x mean of the last finished rounds; None before the first.

    Args:
        finished_wire_bytes: of the finished rounds in order, without round 0.
        spent_bytes: all wire bytes of the study so far.
        open_round_bytes: those of the open round among them.
        rounds_left: that are not finished; the open one counts.
        seconds_left: what `semisilo.coordinator.monitoring.results.study_numbers.seconds_left` says.
    """
    if not finished_wire_bytes or seconds_left is None:
        return None
    recent = finished_wire_bytes[-FORECAST_ROUNDS:]
    expected = spent_bytes - open_round_bytes + rounds_left * sum(recent) / len(recent)
    return Forecast(wire_bytes_at_end=max(spent_bytes, round(expected)), seconds_left=seconds_left,
                    unix_at_end=None if paused else now_unix + seconds_left)
