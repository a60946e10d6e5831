"""A silo of two processes under torchrun in a real federation: one silo on the wire, the results of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.processes import STUDY, FederationOfProcesses, federation

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
"""Of a weight after three rounds, over the largest of its tensor: float32 has 6e-8, and every step adds to it."""


def started(processes: FederationOfProcesses, count: int) -> None:
    processes.serve()
    for silo in processes.silos:
        processes.enroll(silo)
    processes.join("alpha", processes=count, words=("--once", "--wait", "5m"))
    processes.join("beta")


def exported(processes: FederationOfProcesses) -> dict[str, torch.Tensor]:
    out = processes.folder / "out"
    processes.coordinator("export", "first", "--round", "last", "--format", "safetensors", "--out", str(out))
    return load_file(out / "model.safetensors")


def of_rank(torchrun: int, rank: int) -> int | None:
    """The process that a torchrun has started as one of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            if parent == torchrun and f"RANK={rank}".encode() in variables:
                return int(entry.name)
    return None


def test_a_silo_of_two_processes_is_one_silo_whose_results_are_those_of_one_process_also_after_a_kill(
        tmp_path: Path) -> None:
    models, digests = [], []
    for name, count, killed in (("one", 1, False), ("two", 2, False), ("killed", 2, True)):
        folder = tmp_path / name
        folder.mkdir()
        with federation(folder, study=STUDY.replace("wide_network:wide", "small_cnn")) as processes:
            started(processes, count)
            if killed:  # the process above the one that trains: torchrun then starts all of this silo again
                processes.wait_for(lambda processes=processes: "round 2 of study" in processes.log("alpha"))
                pid = of_rank(processes.running["alpha"].pid, 1)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            digests.append(processes.finish())
            models.append(exported(processes))
            silos = processes.query("SELECT DISTINCT silo FROM task")
            assert sorted(str(silo) for silo, in silos) == ["alpha", "beta"]
            text = (folder / "alpha.log").read_text()
            assert ("trained by 2 processes" in text) == (count == 2)
            if killed:
                assert text.count("reading the images") == 2, "torchrun has not started it again"
    one, two, _ = models
    assert one.keys() == two.keys()
    worst = max(float((one[name] - two[name]).abs().max() / one[name].abs().max()) for name in one)
    assert worst < TOLERANCE
    assert digests[0] != digests[1], "the control: nothing was shared"
    assert digests[1] == digests[2], "the same number of processes gives the same bits, whatever was killed"
