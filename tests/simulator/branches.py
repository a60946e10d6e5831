"""Runs the schedules of a family in copies of the process, so that what several of them share is run once.

Where a stretch begins that not all schedules share, the process is copied for each branch but the last, one after
another, and goes on with the last itself. Everything that is simulated lies in its memory. A schedule that is run alone
comes to the same moments and draws the same there; what it does does not depend on who else is run.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import sys
import traceback
from collections.abc import Callable, Sequence

from tests.simulator.federation import Outcome, run_schedule
from tests.simulator.schedule import Schedule, draw_schedule, family_of, path_of

__all__ = ["Tally", "run_family"]


class Tally:
    """Numbers that all copies of this process see and change, one copy at a time."""

    _FORMAT = "qqq"

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, struct.calcsize(self._FORMAT))

    def read(self) -> tuple[int, int, int]:
        """(schedules, their faults, schedules that broke an invariant)."""
        runs, faults, failed = struct.unpack_from(self._FORMAT, self._memory)
        return runs, faults, failed

    def add(self, outcome: Outcome) -> None:
        """A schedule was run."""
        runs, faults, failed = self.read()
        struct.pack_into(self._FORMAT, self._memory, 0, runs + 1, faults + outcome.schedule.num_faults,
                         failed + bool(outcome.violations))


def run_family(seeds: Sequence[int], *, tell: Callable[[Outcome], None], goes_on: Callable[[], bool]) -> None:
    """Runs the schedules of these seeds, in order, and waits for them. A study that is over, or in which something is
    broken, before two schedules part is told as the first of them alone.

    Args:
        seeds: ascending, of one family.
        tell: called with what came of each, in a copy of this process.
        goes_on: whether to begin with another schedule.
    Raises: SystemExit when a copy has ended otherwise than it should.
    """
    assert len({family_of(seed) for seed in seeds}) == 1, "one family"
    if _copied():
        _run_branch(list(seeds), tell, goes_on)


def _run_branch(seeds: list[int], tell: Callable[[Outcome], None], goes_on: Callable[[], bool]) -> None:
    """In a copy of the process, which ends here."""
    status = 1
    here = seeds

    def branch(number: int) -> Schedule:
        nonlocal here
        groups = [list(group) for _, group in itertools.groupby(here, lambda seed: path_of(seed)[:number + 1])]
        for group in groups:
            if not goes_on():
                _end(0)
            if group is groups[-1] or _copied():
                here = group
                break
        return draw_schedule(here[0])

    try:
        tell(run_schedule(draw_schedule(seeds[0]), branch))
        status = 0
    except BaseException as error:
        print(f"seed {here[0]}: the simulator itself has failed", file=sys.stderr)
        if not isinstance(error, SystemExit):  # that one a copy has told
            traceback.print_exc()
    finally:
        _end(status)


def _copied() -> bool:
    """Copies this process. True in the copy; False in this one, when the copy has ended.

    Raises: SystemExit when it has ended otherwise than it should.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        return True
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a run has ended its process: status {status}")
    return False


def _end(status: int) -> None:
    """Of this copy, at once: nothing of it is tidied up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
