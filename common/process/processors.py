"""How many processors this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_processors"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_processors(quota_file: Path = _QUOTA) -> int:
    """Processors that the system lets this process use, at least one: those it may run on, and no more than the quota
    of its container, rounded up.

    Args:
        quota_file: "QUOTA PERIOD" in microseconds, or "max PERIOD": where Linux says what a container may use.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        allowed = os.cpu_count() or 1
    try:
        quota, _, period = quota_file.read_text().partition(" ")
        if quota != "max":
            allowed = min(allowed, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return max(1, allowed)
