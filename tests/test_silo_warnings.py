"""A copied identity and a wiped memory, with real processes: both sides say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.processes import FederationOfProcesses, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _lines(processes: FederationOfProcesses) -> list[str]:
    return [each["line"] for each in json.loads(processes.coordinator("status", "--json"))["notices"]]


def test_a_home_that_was_copied_and_is_used_twice_is_said_on_both_sides(tmp_path: Path) -> None:
    with federation(tmp_path) as processes:
        processes.serve()
        processes.enroll("alpha")
        shutil.copytree(tmp_path / "alpha", tmp_path / "copy", symlinks=True)
        processes.sources["copy"] = processes.sources["alpha"]
        processes.join("alpha")
        processes.join("copy")
        processes.wait_for(lambda: "identity is in use twice" in processes.log("alpha") + processes.log("copy"))
        processes.wait_for(lambda: "alpha: its identity is in use twice" in processes.log("coordinator"))
        assert _lines(processes) == [
            "alpha: its identity is in use twice: a process at 127.0.0.1 and one at 127.0.0.1 call in turn"]


def test_a_silo_whose_memory_was_wiped_is_said_on_both_sides_and_one_that_was_killed_is_not(tmp_path: Path) -> None:
    with federation(tmp_path) as processes:
        processes.start()
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM round WHERE number = 1 AND state = 'completed'")))
        for silo in ("alpha", "beta"):
            processes.kill(silo)
        shutil.rmtree(tmp_path / "alpha" / "memory")
        for silo in ("alpha", "beta"):
            processes.join(silo)
        processes.finish()
        (line,) = _lines(processes)
        assert line.startswith("alpha, round ")
        assert "it has come back without its memory of any study" in line
        assert "the coordinator warns: silo 'alpha', study first: its update of round" in processes.log("alpha")
        assert "this silo's memory was wiped" in processes.log("alpha")
        assert "warns" not in processes.log("beta")
