"""Clocks that are set while real processes run: those of one machine, for TLS and certificates as for deadlines.

Needs libfaketime (Debian: apt-get install libfaketime), which shows a process another time than the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation
from tests.shifted_clocks import LIBFAKETIME, give_clocks, set_clock

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(LIBFAKETIME is None, reason="libfaketime (a package of Debian) is not installed")]

SILOS = ("alpha", "beta")
LONG = STUDY.replace("rounds = 3", "rounds = 40")


@contextmanager
def with_clocks(folder: Path, *, study: str = LONG, timeout: str = "5m") -> Iterator[FederationOfProcesses]:
    """A running federation, each process with a clock of its own, in its second round."""
    with federation(folder, silos=SILOS, study=study, timeout=timeout) as processes:
        give_clocks(processes)
        processes.start()
        processes.wait_for(lambda: committed(processes) >= 1)
        yield processes


def committed(processes: FederationOfProcesses) -> int:
    (number,), = processes.query("SELECT coalesce(max(number), 0) FROM round WHERE state = 'completed'")
    assert isinstance(number, int)
    return number


def all_run(processes: FederationOfProcesses) -> None:
    for name, process in processes.running.items():
        assert process.poll() is None, f"{name} has ended:\n{processes.log(name)}"


def go_on(processes: FederationOfProcesses) -> None:
    """Three more rounds, and every update in all of them was taken."""
    before = committed(processes)
    processes.wait_for(lambda: committed(processes) >= before + 3)
    all_run(processes)
    late = processes.query("SELECT silo, round, state FROM task WHERE state NOT IN ('updated', 'open')")
    assert late == [], processes.log("coordinator")


def test_a_coordinator_whose_clock_is_40_days_ahead_ends_no_silo(tmp_path: Path) -> None:
    with with_clocks(tmp_path) as processes:
        set_clock(processes, "coordinator", "+40d")
        time.sleep(4.0)  # silos' certificates last 30 days: they hear that theirs has ended
        processes.kill("beta")
        processes.join("beta")  # and one of them must make a new connection meanwhile
        time.sleep(5.0)
        all_run(processes)
        set_clock(processes, "coordinator", "+0")
        go_on(processes)
        assert "by this machine's clock" in processes.log("alpha")


def test_a_silo_whose_clock_is_40_days_ahead_does_not_end_by_itself(tmp_path: Path) -> None:
    with with_clocks(tmp_path) as processes:
        set_clock(processes, "alpha", "+40d")
        time.sleep(2.0)
        processes.kill("alpha")
        processes.join("alpha")
        time.sleep(5.0)
        all_run(processes)
        set_clock(processes, "alpha", "+0")
        go_on(processes)


def test_a_clock_that_is_set_back_and_right_again_closes_no_round_early(tmp_path: Path) -> None:
    with with_clocks(tmp_path, study=LONG + "quorum = 1\n", timeout="2m") as processes:
        # Certificates begin ten minutes before they are issued: with a clock further back no silo would be let in.
        for offset in ("-8m", "+0", "-9m", "+3h", "-9m", "+0"):
            before = committed(processes)
            processes.wait_for(lambda before=before: committed(processes) > before and bool(  # type: ignore[misc]
                processes.query("SELECT 1 FROM task WHERE state = 'open'")))
            set_clock(processes, "coordinator", offset)
        go_on(processes)
        assert "moves with it" in processes.log("coordinator")
