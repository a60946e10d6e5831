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

COORDINATOR = {
    "while_a_silo_downloads": "semisilo.coordinator.rpc.metering:RoundMeter.message:5:after:'DownloadPayload'",
    "half_way_through_an_upload": "semisilo.common.storage.store:PartialFile.append:6:after",
    "complete_upload_before_the_ledger_knows": "semisilo.coordinator.ledger.ledger:Ledger.accept_update:3:before",
    "after_the_last_update_before_the_fold": "semisilo.coordinator.ledger.ledger:Ledger.close_phase:2:after",
    "during_the_fold": "semisilo.coordinator.compute.operations:Operations.aggregate:2:before",
    "during_the_checkpoint_write": "semisilo.common.storage.state_files:StateFiles.save:2:before",
    "between_fold_and_commit": "semisilo.coordinator.ledger.ledger:Ledger.commit_round:3:before",
    "after_the_commit": "semisilo.coordinator.ledger.ledger:Ledger.commit_round:3:after",
}
SILO = {
    "while_it_downloads": "semisilo.common.storage.store:PartialFile.append:3:after",
    "while_it_trains": "semisilo.common.learning.sgd:learn:2:after",
    "before_its_answer_is_durable": "semisilo.silo.site.memory:SiloMemory.record_pending:2:before",
    "after_its_answer_is_durable": "semisilo.silo.site.memory:SiloMemory.record_pending:2:after",
    "half_way_through_its_upload": "semisilo.silo.link.transfers:Transfers._write:4:after",
}


@pytest.mark.slow
def test_two_undisturbed_runs_have_the_same_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path) as processes:
        processes.start()
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
@pytest.mark.parametrize("stage", COORDINATOR)
def test_the_coordinator_is_killed(stage: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path) as processes:
        processes.start(hub_crash=COORDINATOR[stage])
        processes.died("coordinator")
        processes.serve()
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
@pytest.mark.parametrize("stage", SILO)
def test_a_silo_is_killed(stage: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path) as processes:
        processes.start(silo_crash=SILO[stage])
        processes.died(processes.silos[0])
        processes.join(processes.silos[0])
        assert processes.finish() == undisturbed.digest


@pytest.mark.slow
def test_both_sides_are_killed(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path) as processes:
        processes.start(hub_crash=COORDINATOR["half_way_through_an_upload"])
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
