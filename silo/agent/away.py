"""Whether this site takes tasks at the moment: it is away outside its hours, when its budget of the day is used up, and
while a person must approve the study.

The coordinator hears of it with every call for a task, and does not ask a silo that is away; a task that comes all the
same is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.common.errors import DailyBudget, OutsideHours, SemisiloError
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.site.working_hours import Hours, closes_at, opens_at, time_text

__all__ = ["Away", "away_now"]

_LONGEST_DECISION_SECONDS = 7 * 86_400.0
"""Nobody knows when a person decides: the coordinator goes on without, and hears of it when it is so."""


@dataclass(frozen=True, slots=True)
class Away:
    """This site takes no task at the moment."""

    reason: pb.Away.Reason
    until_unix: float
    error: SemisiloError
    """What a coordinator hears that gives a task all the same."""


def away_now(hours: Hours, budget: DayBudget, now_unix: float, *, awaits: SemisiloError | None = None) -> Away | None:
    """Why this site takes no task, and until when; None when it does.

    Args:
        awaits: what a person here must decide first.
    """
    if awaits is not None:
        return Away(pb.Away.REASON_AWAITING_APPROVAL, now_unix + _LONGEST_DECISION_SECONDS, awaits)
    if closes_at(hours, now_unix) is None:
        until = opens_at(hours, now_unix)
        return Away(pb.Away.REASON_OUTSIDE_HOURS, until, OutsideHours(
            f"It is outside the working hours of this silo until {time_text(hours, until)}."))
    exhausted = budget.exhausted_until(now_unix)
    if exhausted is None:
        return None
    return Away(pb.Away.REASON_DAILY_BUDGET, exhausted, DailyBudget(
        f"The daily budget of this silo is used up until {time_text(hours, exhausted)}."))
