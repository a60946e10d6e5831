"""Fails the n-th file operation of a machine, for every n: a study of two rounds must end with the same bits, whatever
the operating system refuses and whenever it does so.

SQLite's authors test their library so. Operations are those of the product on files below `/~NAME` and the statements
of its ledger, each with the errors that can befall it (`semisilo`'s rule for them: docs/decisions/0038).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product

from tests.simulator.machine import BEFALLS, FileError
from tests.simulator.schedule import CHUNK_BYTES, COORDINATOR, Schedule, Stretch

__all__ = ["ERRORS", "HUB", "LASTING_SECONDS", "SILOS_HERE", "Found", "fail_every_operation", "machine_called",
           "schedule_with", "try_error"]

HUB = "hub"
"""What the coordinator's machine is called on the command line; a silo's is called as the silo."""
ERRORS = {errno.errorcode[number]: number for number in BEFALLS}
LASTING_SECONDS = 45.0
"""Of an error that does not go by at once: longer than the longest pause between two trials."""
SILOS_HERE = ("B", "a")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What came of one error."""

    error: FileError
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    operations: int
    """Those of the machine that the error can befall."""


def schedule_with(error: FileError | None) -> Schedule:
    """A study of two rounds with two silos, in which nothing else goes wrong; files come whole or in parts, in turn."""
    number = 0 if error is None else error.number
    return Schedule(seed=number, silos=SILOS_HERE, rounds=2, quorum=len(SILOS_HERE), slow_seconds=0.3,
                    chunk_bytes=CHUNK_BYTES[number % 2], stretches=(Stretch(seed=f"run {number}"),),
                    file_error=error)


def machine_called(name: str) -> str:
    """The machine of a word on the command line."""
    return COORDINATOR if name == HUB else name


def try_error(error: FileError) -> Found:
    """Runs the study with it."""
    from tests.simulator.federation import run_schedule

    outcome = run_schedule(schedule_with(error))
    counted = outcome.events[error.machine]
    return Found(error=error, violations=outcome.violations, trace=outcome.trace,
                 operations=sum(counted.get(f"file: {kind}", 0) for kind in BEFALLS[error.errno]))


def fail_every_operation(*, machines: Sequence[str], errors: Sequence[int], first: int = 1, stride: int = 1,
                         minutes: float = 0.0) -> Iterator[Found]:
    """Every error at every operation of every machine, each once alone and once for a while.

    Args:
        first: number of the first operation that fails.
        stride: only every so-manieth operation.
        minutes: ends after so long; 0 for no bound.
    """
    end = time.monotonic() + 60 * minutes
    for machine, number_of_error, seconds in product(machines, errors, (0.0, LASTING_SECONDS)):
        for number in count(first, stride):
            if minutes and time.monotonic() > end:
                return
            found = try_error(FileError(machine=machine, number=number, errno=number_of_error, for_seconds=seconds))
            if found.operations < number:
                break  # the study was over before
            yield found
