"""A clock of its own for each process of a federation, through libfaketime (Debian: apt-get install libfaketime)."""

from __future__ import annotations

from pathlib import Path

from tests.processes import FederationOfProcesses

__all__ = ["LIBFAKETIME", "give_clocks", "set_clock"]

LIBFAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
"""None where it is not installed."""


def give_clocks(processes: FederationOfProcesses) -> None:
    """Before they are started: the coordinator and every silo show the machine's time until `set_clock`."""
    for name in ("coordinator", *processes.silos):
        set_clock(processes, name, "+0")
        processes.surroundings[name] = {
            "LD_PRELOAD": str(LIBFAKETIME), "FAKETIME_TIMESTAMP_FILE": str(_file(processes, name)),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


def set_clock(processes: FederationOfProcesses, name: str, offset: str) -> None:
    """Sets the clock of a process: what it is ahead of the machine's, such as "+40d"."""
    path = _file(processes, name)
    new = path.with_suffix(".new")
    new.write_text(f"{offset}\n")
    new.replace(path)


def _file(processes: FederationOfProcesses, name: str) -> Path:
    return processes.folder / f"{name}.clock"
