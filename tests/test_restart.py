"""kill -9 of real processes at every stage: after a restart the study ends with the bits of an undisturbed run.

A start of both sides takes many seconds of the processor, so all of this is slow. Quick guards are test_overwriting.py
and coordinator/rounds/test_engine.py, where each stage is killed with objects in one process, silo/agent/test_agent.py,
where a silo goes on with its upload, and semisilo/simulation/test_simulate.py, where a real process is killed.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.processes import FederationOfProcesses, Undisturbed, federation

HALF_WAY_THROUGH_AN_UPLOAD = "semisilo.common.storage.store:PartialFile.append:6:after"
COORDINATOR = {
    "a download, an answer, the fold, after the commit": (
        "semisilo.coordinator.rpc.metering:RoundMeter.message:5:after:'DownloadPayload'",
        "semisilo.coordinator.ledger.ledger:Ledger.accept_update:1:before",  # all of it is here, nobody knows
        "semisilo.coordinator.compute.operations:Operations.aggregate:1:before",
        "semisilo.coordinator.ledger.ledger:Ledger.commit_round:1:after"),
    "an upload, after the last answer, the checkpoint, before the commit": (
        HALF_WAY_THROUGH_AN_UPLOAD,
        "semisilo.coordinator.ledger.ledger:Ledger.close_phase:1:after",
        "semisilo.common.storage.state_files:StateFiles.save:1:before",
        "semisilo.coordinator.ledger.ledger:Ledger.commit_round:1:before"),
}
"""Where the coordinator dies, one life after another; what is counted begins anew with each."""
SILO = (
    "semisilo.common.storage.store:PartialFile.append:3:after",  # while it downloads
    "semisilo.common.learning.sgd:learn:2:after",
    "semisilo.silo.site.memory:SiloMemory.record_pending:1:before",
    "semisilo.silo.site.memory:SiloMemory.record_pending:1:after",
    "semisilo.silo.link.transfers:Transfers._write:2:after",  # half way through its upload
)
"""The same of a silo."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stages", COORDINATOR)
def test_the_coordinator_is_killed_at_every_stage(stages: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    first, *others = COORDINATOR[stages]
    with federation(tmp_path) as processes:
        processes.start(hub_crash=first)
        for crash in (*others, ""):
            processes.died("coordinator")
            processes.serve(crash=crash)
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_silo_is_killed_at_every_stage(tmp_path: Path, undisturbed: Undisturbed) -> None:
    first, *others = SILO
    with federation(tmp_path) as processes:
        processes.start(silo_crash=first)
        for crash in (*others, ""):
            processes.died(processes.silos[0])
            processes.join(processes.silos[0], crash=crash)
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
def test_both_sides_are_killed(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path) as processes:
        processes.start(hub_crash=HALF_WAY_THROUGH_AN_UPLOAD)
        processes.died("coordinator")
        for name in processes.silos:
            processes.kill(name)
        processes.serve()
        for name in processes.silos:
            processes.join(name)
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
def test_a_different_seed_gives_other_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The control of this file: the digest does see the training."""
    with federation(tmp_path) as processes:
        study = processes.hub / "studies" / "first" / "study.toml"
        study.write_text(study.read_text().replace("seed = 3", "seed = 4"))
        processes.start()
        assert processes.finish() != undisturbed.digest


@pytest.mark.slow
def test_the_coordinator_is_killed_while_a_study_is_paused(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Paused in the middle of a round, of which one silo's answer is missing."""
    with federation(tmp_path) as processes:
        processes.start()
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM round WHERE number > 0 AND state = 'collecting'")))
        beta = processes.running["beta"].pid
        os.killpg(beta, signal.SIGSTOP)
        processes.coordinator("pause")
        processes.wait_for(lambda: _reason(processes) == "paused")
        processes.kill("coordinator")
        processes.serve()
        processes.wait_for(lambda: _reason(processes) == "paused")
        assert processes.query("SELECT state FROM study") == [("paused",)]
        os.killpg(beta, signal.SIGCONT)
        processes.coordinator("resume")
        assert processes.finish() == undisturbed.digest


def _reason(processes: FederationOfProcesses) -> str:
    """Why silos have no task, as `coordinator serve` says now."""
    live = json.loads(processes.coordinator("status", "--json"))["live"]
    return "" if live is None else str(live["reason"])
