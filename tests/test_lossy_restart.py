"""kill -9 of real processes in a study with lossy updates: what was left out of them comes back bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

UPLINK = "top-k 5% int8"
KILLS = {
    "while its second answer becomes durable": (
        "semisilo.silo.site.memory:SiloMemory.record_pending:2:before",
        "semisilo.common.storage.state_files:StateFiles.save:2:after",  # what is left out is on disk
        "semisilo.silo.site.memory:SiloMemory.record_pending:1:after"),
    "while that is committed": (
        "semisilo.silo.site.memory:SiloMemory.resolve:3:before",
        "semisilo.silo.site.memory:SiloMemory.resolve:1:after"),
}
"""One life of the silo's process after another. Every round of a silo resolves and records once, and saves twice: the
trainer's memory, then the residuals. What is counted begins anew with the process."""


def study(uplink: str = UPLINK, *, error_feedback: bool = True) -> str:
    return f'{STUDY}[wire]\nuplink = "{uplink}"\nerror_feedback = {str(error_feedback).lower()}\n'


def run(processes: FederationOfProcesses, *, silo: str = "") -> None:
    """Starts everything with a crash point in the first silo."""
    processes.serve()
    for name in processes.silos:
        processes.enroll(name)
    for name in processes.silos:
        processes.join(name, crash=silo if name == processes.silos[0] else "")


def kept(processes: FederationOfProcesses) -> list[dict[str, object]]:
    """What the silos have committed and pending at the end, without what depends on the clock."""
    found = []
    for name in processes.silos:
        memory = json.loads((processes.folder / name / "memory" / "memory.json").read_text())["studies"]["first"]
        memory["pending"].pop("seconds")
        found.append(memory)
    return found


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, object]]]:
    with federation(tmp_path_factory.mktemp("lossy"), study=study()) as processes:
        run(processes)
        return processes.finish(seconds=240), kept(processes)


@pytest.mark.parametrize("stage", KILLS)
def test_a_silo_is_killed_in_a_study_with_lossy_updates(
        stage: str, tmp_path: Path, undisturbed: tuple[str, list[dict[str, object]]]) -> None:
    first, *others = KILLS[stage]
    with federation(tmp_path, study=study()) as processes:
        run(processes, silo=first)
        for crash in (*others, ""):
            processes.died(processes.silos[0], seconds=300)
            processes.join(processes.silos[0], crash=crash)
        assert (processes.finish(seconds=240), kept(processes)) == undisturbed


def test_residuals_are_kept_and_do_change_the_model(
        tmp_path: Path, undisturbed: tuple[str, list[dict[str, object]]]) -> None:
    """The control of this file: without error feedback the same study gives other bits and keeps no residual."""
    digest, memories = undisturbed
    assert all(memory["pending"]["residuals"] for memory in memories)  # type: ignore[index]
    with federation(tmp_path, study=study(error_feedback=False)) as processes:
        run(processes)
        assert processes.finish(seconds=240) != digest
        assert not any(memory["pending"]["residuals"] for memory in kept(processes))  # type: ignore[index]
