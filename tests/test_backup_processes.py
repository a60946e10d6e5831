"""A federation at work is backed up, lost, restored elsewhere, and goes on: real processes over mutual TLS."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

SMALL = STUDY.replace("wide_network:wide", "small_cnn").replace("rounds = 3", "rounds = 5")
DIES_IN_ROUND = "semisilo.silo.site.memory:SiloMemory.record_pending:{}:before"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with federation(tmp_path_factory.mktemp("undisturbed"), study=SMALL) as processes:
        _start(processes)
        return processes.finish()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[FederationOfProcesses]:
    with federation(tmp_path, study=SMALL) as made:
        yield made


def _start(processes: FederationOfProcesses, crashes: Mapping[str, str] | None = None) -> None:
    """
    Args:
        crashes: silo -> where it dies.
    """
    processes.serve()
    for silo in processes.silos:
        processes.enroll(silo)
    for silo in processes.silos:
        processes.join(silo, crash=(crashes or {}).get(silo, ""))


def _backup(processes: FederationOfProcesses) -> Path:
    facts = json.loads(processes.coordinator("backup", str(processes.folder / "safe"), "--json"))
    assert facts["left_out"] == ["studies/first/labelled.npz", "studies/first/test.npz"]
    return Path(facts["archive"])


def _lose_and_restore(processes: FederationOfProcesses, archive: Path) -> None:
    """The machine of the hub is gone; a new folder is made from the archive and the images."""
    processes.kill("coordinator")
    lost, images = processes.hub, processes.folder / "images"
    shutil.copytree(lost / "studies" / "first", images, ignore=lambda _, names: [
        name for name in names if not name.endswith(".npz")])
    shutil.rmtree(lost)
    processes.hub = processes.folder / "another-machine"
    processes._command("semisilo.coordinator.cli.main", "restore", str(archive), "--folder", str(processes.hub))
    for file in images.iterdir():
        shutil.copy(file, processes.hub / "studies" / "first")


def _wait_for_an_update_of_round(processes: FederationOfProcesses, number: int) -> None:
    processes.wait_for(lambda: processes.query(
        f"SELECT 1 FROM task WHERE round = {number} AND state = 'updated'") != [])


def test_a_study_goes_on_elsewhere_with_the_bits_of_an_undisturbed_run(
        processes: FederationOfProcesses, undisturbed: str) -> None:
    """One silo has delivered for round 3, the other one not, and `serve` runs while the backup is taken."""
    _start(processes, {"beta": DIES_IN_ROUND.format(3)})
    _wait_for_an_update_of_round(processes, 3)
    processes.died("beta")
    archive = _backup(processes)
    _lose_and_restore(processes, archive)
    assert processes.query("SELECT silo, state FROM task WHERE round = 3 ORDER BY silo") == [
        ("alpha", "updated"), ("beta", "open")]
    assert len(list((processes.hub / "spool").glob("?" * 64))) == 1
    processes.serve()
    processes.join("beta")
    assert processes.finish() == undisturbed


def test_backups_without_pause_disturb_nothing_and_every_one_can_be_restored(
        processes: FederationOfProcesses, undisturbed: str) -> None:
    _start(processes)
    archives = []
    while processes.running["coordinator"].poll() is None:
        archives.append(_backup(processes))
    assert processes.finish() == undisturbed
    stages = set()
    for number, archive in enumerate(archives):
        folder = processes.folder / f"restored-{number}"
        facts = json.loads(processes._command("semisilo.coordinator.cli.main", "restore", str(archive), "--folder",
                                              str(folder), "--json"))
        stages |= {(study["state"], study["round"]) for study in facts["studies"]}
    assert len(stages) >= 3, stages


def test_silos_that_are_ahead_of_an_older_backup_go_on_without_their_memory(
        processes: FederationOfProcesses, undisturbed: str) -> None:
    """SemiFL's silos keep momentum: that of rounds which never happened must not enter the ones that now do."""
    _start(processes, {"alpha": DIES_IN_ROUND.format(2), "beta": DIES_IN_ROUND.format(5)})
    processes.died("alpha")
    archive = _backup(processes)
    processes.join("alpha")
    _wait_for_an_update_of_round(processes, 5)
    processes.died("beta")
    _lose_and_restore(processes, archive)
    (before,), = processes.query("SELECT max(number) FROM round")
    assert int(str(before)) <= 3, "the backup is not older than what silos remember"
    processes.serve()
    processes.join("beta")
    digest = processes.finish()
    assert processes.query("SELECT count(*) FROM round WHERE state = 'completed'") == [(6,)]
    assert all("it is dropped and training starts without it" in processes.log(silo) for silo in processes.silos)
    assert digest != undisturbed, "the control: had the memory not been needed, this test would show nothing"


def test_behind_masks_a_round_that_silos_have_answered_since_the_backup_fails_at_once_and_says_so(
        tmp_path: Path) -> None:
    """A silo masks an update of a round once: two sums of it could be compared. The study goes on with the next."""
    masked = SMALL.replace("start_with = 2", "start_with = 3").replace("rounds = 5", "rounds = 4") + (
        "\n[privacy]\nsecure_aggregation = true\n")
    with federation(tmp_path, study=masked, silos=("alpha", "beta", "gamma")) as processes:
        _start(processes, {"alpha": "semisilo.silo.secure_aggregation.session:begin:2:before",
                           "gamma": DIES_IN_ROUND.format(3)})
        processes.died("alpha")  # so that nobody has masked anything in round 2
        archive = _backup(processes)
        processes.join("alpha")
        processes.died("gamma")
        _lose_and_restore(processes, archive)
        assert processes.query("SELECT max(number) FROM round") == [(2,)]
        processes.serve()
        processes.join("gamma")
        processes.finish()
        rounds = dict(processes.query("SELECT number, state FROM round WHERE number > 0"))
        said = " ".join(str(row[0]) for row in processes.query(
            "SELECT reason FROM round WHERE number = 2 UNION SELECT reason FROM task WHERE round = 2"))
        assert rounds[2] == "failed"
        # Of a round that was open in the backup its silos say so themselves.
        assert "masked an update of this round before" in said or "SECURE_SUM_REFUSED: " in said
        assert rounds[4] == "completed"
