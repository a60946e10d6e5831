"""How many processors this process may use.

Tests: tests/common/process/test_processors.py.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_processors"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_processors(*, quota: Path = _QUOTA) -> int:
    """The processors that this process may run on, or what its container is given of them if that is less; at least 1.

    Args:
        quota: of control groups version 2: microseconds of processor time in a period and its length, or "max".
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        given, period = (int(each) for each in quota.read_text().split())
    except (OSError, ValueError):  # no control groups, or no limit
        return there
    return max(1, min(there, given // period)) if period > 0 else there
