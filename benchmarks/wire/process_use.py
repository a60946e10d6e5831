"""Peak memory and processor time of a process and its children, as the kernel counts them. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ProcessUse", "children_of", "cpu_seconds", "peak_bytes", "resident_bytes"]

_TICK = os.sysconf("SC_CLK_TCK")


class ProcessUse:
    """Follows one process and those that it starts, by looking now and then: what was seen last stays."""

    def __init__(self, pid: int = 0) -> None:
        self._pid = pid
        self._peaks: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def look(self) -> None:
        """Notes peaks and times so far."""
        for pid in (self._pid, *children_of(self._pid)) if self._pid else ():
            if peak := peak_bytes(pid):
                self._peaks[pid] = peak
                self._seconds[pid] = cpu_seconds(pid)

    @property
    def own_resident_bytes(self) -> int:
        """What the process itself holds now."""
        return resident_bytes(self._pid)

    @property
    def peak_bytes(self) -> int:
        """The sum of the peaks of all processes seen: at least the peak of the sum."""
        return sum(self._peaks.values())

    @property
    def own_peak_bytes(self) -> int:
        """The peak of the process itself, without its children."""
        return self._peaks.get(self._pid, 0)

    @property
    def own_cpu_seconds(self) -> float:
        """Processor time of the process itself."""
        return self._seconds.get(self._pid, 0.0)

    @property
    def child_cpu_seconds(self) -> float:
        """Processor time of its children."""
        return sum(self._seconds.values()) - self.own_cpu_seconds


def children_of(pid: int) -> list[int]:
    """Process ids of the children, of all threads; empty when the process is gone."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return found


def resident_bytes(pid: int) -> int:
    """VmRSS: the resident memory now, mapped files included; 0 when the process is gone."""
    return _status_bytes(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """VmHWM: the largest resident memory so far, mapped files included; 0 when the process is gone."""
    return _status_bytes(pid, "VmHWM:")


def _status_bytes(pid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far; 0 when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK
