"""Every method in every scenario that it defines, on real processes: the bits are those of the simulation.

A federation for each scenario, of one coordinator and two silos, runs the studies of all methods one after another, as
`coordinator serve` runs its queue; the silos join once, with one file of images. Meanwhile the simulation of each is
run here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.methods import METHODS
from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_coordinator, write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.method_studies import AT_BOTH, AT_COORDINATOR, AT_SILO, STUDIES, MethodStudy
from tests.processes import FederationOfProcesses, federation
from tests.semisilo.studies import CASES, study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("simulated_in_one_process")]

SILOS = ("silo-000", "silo-001")
SCENARIOS = (AT_COORDINATOR, AT_SILO, AT_BOTH)
OVER = ("completed", "failed", "stopped")
STANDARDISED = "statistics of silos"
"""The note of a study whose images are standardised one by one."""


@dataclass(frozen=True, eq=False)
class Deployed:
    """A running federation and the studies in its queue."""

    processes: FederationOfProcesses

    def outcome(self, name: str) -> tuple[str, str]:
        """(state, reason) of a study, once it is over or the coordinator has ended."""
        coordinator = self.processes.running["coordinator"]

        def found() -> list[tuple[Any, ...]]:
            return self.processes.query(f"SELECT state, reason FROM study WHERE name = '{name}'")

        self.processes.wait_for(lambda: bool(found() and found()[0][0] in OVER) or coordinator.poll() is not None,
                                seconds=500)
        ((state, reason),) = found()
        return str(state), str(reason)


def tables_of(each: MethodStudy) -> dict[str, Any]:
    """The study file: images and split are the same in all studies of a scenario."""
    tables = study(each.method, each.scenario, silos=len(SILOS))
    known = {field.name for field in dataclasses.fields(METHODS[each.method].settings)}
    small = {key: value for key, value in {"local_epochs": 1, "coordinator_epochs": 1}.items()
             if key in known and key in tables["method"]}
    tables["method"] = {"name": each.method, "scenario": each.scenario, **small, **each.settings}
    if each.note == STANDARDISED:
        tables["data"]["image"]["standardise"] = "image"
    return tables


def name_of(each: MethodStudy) -> str:
    """Name of its folder. The coordinator takes them in the order of their names, the tests in that of the table."""
    return re.sub("[^a-z0-9-]", "-", f"{STUDIES.index(each):02d}-{each}")


def studies_of(scenario: str) -> list[MethodStudy]:
    return [each for each in STUDIES if each.scenario == scenario]


@contextlib.contextmanager
def deploy(folder: Path, scenario: str) -> Iterator[Deployed]:
    """The federation of a scenario, with all its studies in the queue and both silos at work."""
    first, *others = [(name_of(each), deal_study(load_simulated_study(tables_of(each))))
                      for each in studies_of(scenario)]
    parts = folder / "parts"
    write_parts(first[1], parts)
    with federation(folder, silos=SILOS) as processes:
        studies = processes.hub / "studies"
        shutil.rmtree(studies / "first")
        for name, dealt in (first, *others):
            assert dealt.digest() == first[1].digest(), "all studies have the same images"
            write_coordinator(dealt, studies / name)
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
        for silo in SILOS:
            processes.sources[silo] = parts / "silos" / f"{silo}.npz"
            processes.join(silo, words=("--exit-when-finished", "--test",
                                        str(parts / "coordinator" / "data" / "test.npz")))
        yield Deployed(processes)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Deployed]]:
    """The federation of a scenario, started when it is first asked for."""
    started: dict[str, Deployed] = {}
    with contextlib.ExitStack() as stack:
        def find(scenario: str) -> Deployed:
            if scenario not in started:
                folder = tmp_path_factory.mktemp(scenario)
                started[scenario] = stack.enter_context(deploy(folder, scenario))
            return started[scenario]
        yield find


@pytest.mark.parametrize("each", [each for scenario in SCENARIOS for each in studies_of(scenario)], ids=str)
def test_a_federation_of_real_processes_ends_with_the_bits_of_the_simulation(
        deployed: Callable[[str], Deployed], each: MethodStudy, tmp_path: Path) -> None:
    name, processes = name_of(each), deployed(each.scenario).processes
    simulated = run(tables_of(each), out=tmp_path / "simulated", device="cpu")
    assert deployed(each.scenario).outcome(name) == ("completed", ""), processes.log("coordinator")
    rounds = [(number, state, digest, json.loads(str(metrics))) for number, state, digest, metrics in
              processes.query("SELECT number, state, state_digest, metrics_json FROM round"
                                       f" WHERE study = '{name}' ORDER BY number")]
    assert [(number, state, metrics) for number, state, _, metrics in rounds] == [
        (row.round, row.state, dict(row.metrics)) for row in simulated.rounds]
    assert [state for _, state, *_ in rounds] == ["completed"] * 3, "round 0 and two more"
    assert rounds[-1][2] == simulated.digest
    states = processes.query(f"SELECT DISTINCT state FROM task WHERE study = '{name}'")
    assert ("updated",) in states, f"somebody must have sent something: {states}"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_sides_end_by_themselves_when_all_studies_are_over(
        deployed: Callable[[str], Deployed], scenario: str) -> None:
    processes = deployed(scenario).processes
    for name in ("coordinator", *SILOS):
        status = processes.running[name].wait(300)
        assert status == 0, f"{name} ended with {status}:\n{processes.log(name)}"


def test_the_studies_are_of_all_methods_in_all_their_scenarios() -> None:
    missing = set(CASES) - {(each.method, each.scenario) for each in STUDIES}
    assert not missing, f"write a study for each of these into tests/method_studies.py: {missing}"
