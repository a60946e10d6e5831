"""Whether images fit into memory, found out before it is taken: a system that runs out kills instead of refusing.

Tests: tests/silo/cli/test_bad_input.py.
"""

from __future__ import annotations

from pathlib import Path

from semisilo.common.errors import BadData
from semisilo.common.text.describe import describe_bytes

__all__ = ["check_room", "free_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def check_room(needed_bytes: int, *, what: str, remedy: str) -> None:
    """Raises: BadData when `what` needs more memory than is free; where that cannot be known, nothing."""
    free = free_bytes()
    if free is not None and needed_bytes > free:
        raise BadData(f"{what} need {describe_bytes(needed_bytes)} of memory; {describe_bytes(free)} are free.",
                      remedy=remedy)


def free_bytes(*, meminfo: Path = _MEMINFO, control_group: Path = _CONTROL_GROUP) -> int | None:
    """What this process may still take: the machine's available memory, or its container's if that is less. Swap is not
    counted: work that needs it hardly goes on.

    Returns: None where the system does not say (it is not Linux).
    """
    known = [amount for amount in (_machine(meminfo), _container(control_group)) if amount is not None]
    return min(known, default=None)


def _machine(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _container(folder: Path) -> int | None:
    """Limit less use, by control groups version 2. Cached file contents and what the kernel
    knows of files count as use but can be given up."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))  # "max": no limit
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + sum(int(stat.get(name, 0)) for name in ("file", "slab_reclaimable")))
    except (OSError, ValueError):
        return None
