"""How many steps silos count as having taken, where the updates of all are multiplied by the mean of these numbers.

Tests: tests/coordinator/strategies/parts/test_step_cap.py.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

from semisilo.common.learning.robust.norms import norm_limit
from semisilo.common.methods.contract import UpdateHeader
from semisilo.common.methods.parts.robust import RobustSettings

__all__ = ["counted_steps"]

_LOG = logging.getLogger("semisilo.coordinator")

_NEWS = 5.0
"""Times the median."""


def counted_steps(settings: RobustSettings, headers: Sequence[UpdateHeader], steps: Sequence[float], *,
                  round: int) -> list[float]:
    """min(tau_k, c), the very same numbers where none is larger: for the mean alone. What a silo's own update is
    divided by stays what it says, for that is right where it is true.

    c is `norm_bound` times the lower median of the round, where that is 0 there is none; under a rule that compares
    silos it is the median, so that a few of them do not stretch the step of all: of an even number the middle of both,
    or else a round would be as short as the smaller half of the silos makes it. Acts from three updates on.

    Args:
        headers: of the updates, for the log.
        steps: tau_k, above 0.
    """
    limit = norm_limit(steps, factor=settings.steps_bound) if settings.steps_bound else None
    if limit is None:
        return list(steps)
    if settings.rule != "none":
        limit = statistics.median(steps)
    for header, count in zip(headers, steps, strict=True):
        times = count / limit * settings.steps_bound
        if times > max(_NEWS, settings.steps_bound):
            _LOG.warning("round %d: silo %s says that it has taken %.3g steps, %.3g times as many as the median one: in"
                         " the mean they count as %.3g", round, header.silo, count, times, limit)
    return [min(count, limit) for count in steps]
