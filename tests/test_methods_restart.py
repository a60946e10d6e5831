"""kill -9 of real processes under methods with much to lose: they end with the bits of a simulation.

FedMatch with labels at the silos: sigma and psi travel as what differs from what the receiver holds, and silos keep
helpers. Fed-SHVR with a sample of the silos in each round: a silo keeps a control variate that is in the coordinator's
sum. Self-training with imbalanced labels at the coordinator: each round has a second phase, after which the model's
bias is what the first one left less offsets, and silos keep momentum. Only where a control variate is lost for good do
the bits differ from those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semisilo.simulation import SimulationResult, run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_coordinator, write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.processes import FederationOfProcesses, federation
from tests.semisilo.studies import study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("simulated_in_one_process")]

VICTIM = "silo-000"


@dataclass(frozen=True, eq=False)
class Case:
    """A study, and where its processes die, one life after another: all in the second task of the victim, or in the
    round of it. A crash point counts from the start of its process."""

    tables: dict[str, Any]
    silos: tuple[str, ...]
    training: str
    """A crash point in the middle of the first training of a process."""


CASES = {
    "fedmatch": Case(
        study("fedmatch", "labels-at-silo", rounds=3, silos=2, settings={
            "confidence_threshold": 0.0, "labelled_batch": 6, "unlabelled_batch": 9, "lr": 0.01, "num_helpers": 1,
            "helper_interval": 2, "keep_helpers": True, "l1_update": "proximal", "delta_thres": 1e-4}),
        # A task has 8 steps of sigma and 8 of psi.
        ("silo-000", "silo-001"), "semisilo.common.learning.sgd:learn:4:after"),
    "fed_shvr": Case(
        study("fed_shvr", "labels-at-silo", rounds=4, silos=3, settings={"alpha0_ramp": "none", "lr": 0.05},
              participation={"silos_per_round": 2}),
        ("silo-000", "silo-001", "silo-002"), "semisilo.silo.trainers.fed_shvr:_step:2:after"),  # 4 steps in a task
    "self_training": Case(
        study("self_training", rounds=3, silos=2, split={
            "name": "prevalence_shift", "num_labelled": 30, "label_imbalance": 4.0, "num_validation": 0}),
        ("silo-000", "silo-001"), "semisilo.silo.trainers.parts.fix_and_mix:_step:2:after"),
}
BEFORE_ITS_SECOND_TASK = "semisilo.silo.site.memory:SiloMemory.resolve:2:before"
WHILE_ITS_ANSWER_IS_PENDING = "semisilo.silo.site.memory:SiloMemory.record_pending:1:after"
COORDINATOR = (
    "semisilo.coordinator.ledger.ledger:Ledger.accept_update:3:after",  # in the middle of a round
    "semisilo.coordinator.compute.operations:Operations.aggregate:1:before",  # during its fold
    "semisilo.coordinator.ledger.ledger:Ledger.commit_round:1:before",  # between fold and commit
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimulationResult]:
    """What an undisturbed run of a case gives."""
    found: dict[str, SimulationResult] = {}

    def find(name: str) -> SimulationResult:
        if name not in found:
            found[name] = run(CASES[name].tables, out=tmp_path_factory.mktemp(name) / "simulated", device="cpu")
        return found[name]
    return find


def start(processes: FederationOfProcesses, case: Case, *, hub: str = "", silo: str = "") -> None:
    """Gives everyone their part and starts everything, with crash points in the coordinator and in the victim."""
    dealt = deal_study(load_simulated_study(case.tables))
    parts = processes.folder / "parts"
    write_parts(dealt, parts)
    write_coordinator(dealt, processes.hub / "studies" / "first")
    processes.serve(crash=hub)
    for name in case.silos:
        processes.enroll(name)
    for name in case.silos:
        processes.sources[name] = parts / "silos" / f"{name}.npz"
        join(processes, name, crash=silo if name == VICTIM else "")


def join(processes: FederationOfProcesses, name: str, *, crash: str = "") -> None:
    test = processes.folder / "parts" / "coordinator" / "data" / "test.npz"
    processes.join(name, crash=crash, words=("--exit-when-finished", "--test", str(test)))


def metric(processes: FederationOfProcesses, name: str) -> dict[int, float]:
    """A number of every round but round 0."""
    return {int(str(number)): json.loads(str(text))[name] for number, text in processes.query(
        "SELECT number, metrics_json FROM round WHERE number > 0 ORDER BY number")}


@pytest.mark.parametrize("name", CASES)
def test_in_the_undisturbed_run_there_is_something_to_lose(
        name: str, simulated: Callable[[str], SimulationResult]) -> None:
    """The control of this file: the victim works in at least three rounds, and keeps something between them."""
    result = simulated(name)
    rounds = {each.round for each in result.silos if each.silo == VICTIM and each.state == "updated"}
    assert len(rounds) >= 3
    assert all(sum(each.answers.values()) == 2 for each in result.rounds[1:])
    assert list((result.folder / "silos" / VICTIM).rglob("*.safetensors"))


@pytest.mark.parametrize("name", CASES)
def test_a_silo_is_killed_before_its_task_while_it_trains_and_while_its_answer_is_pending(
        name: str, tmp_path: Path, simulated: Callable[[str], SimulationResult]) -> None:
    case = CASES[name]
    with federation(tmp_path, silos=case.silos) as processes:
        start(processes, case, silo=BEFORE_ITS_SECOND_TASK)
        for crash in (case.training, WHILE_ITS_ANSWER_IS_PENDING, ""):
            processes.died(VICTIM, seconds=300)
            join(processes, VICTIM, crash=crash)
        assert processes.finish(seconds=240) == simulated(name).digest


@pytest.mark.parametrize("name", CASES)
def test_the_coordinator_is_killed_in_a_round_during_its_fold_and_before_its_commit(
        name: str, tmp_path: Path, simulated: Callable[[str], SimulationResult]) -> None:
    case, (first, *others) = CASES[name], COORDINATOR
    with federation(tmp_path, silos=case.silos) as processes:
        start(processes, case, hub=first)
        for crash in (*others, ""):
            processes.died("coordinator", seconds=300)
            processes.serve(crash=crash)
        assert processes.finish(seconds=240) == simulated(name).digest


def test_the_coordinator_s_compute_process_is_killed_while_it_takes_offsets_out(
        tmp_path: Path, simulated: Callable[[str], SimulationResult]) -> None:
    """Between the two phases of a round, with the first one's model kept, and before the second one's state is."""
    case = CASES["self_training"]
    undisturbed = simulated("self_training")
    method = {**case.tables["method"], "sbn_offsets": False}
    without = run({**case.tables, "method": method}, out=tmp_path / "without", device="cpu")
    assert without.digest != undisturbed.digest, "there are offsets"
    with federation(tmp_path, silos=case.silos) as processes:
        start(processes, case, hub="semisilo.coordinator.strategies.self_training:class_offsets:1:after")
        processes.died("coordinator", seconds=300)
        processes.serve(crash="semisilo.coordinator.strategies.self_training:class_offsets:2:before")
        processes.died("coordinator", seconds=300)
        processes.serve()
        assert processes.finish(seconds=240) == undisturbed.digest


def test_a_silo_that_loses_its_cache_is_sent_sigma_and_psi_whole_and_the_model_is_the_same(
        tmp_path: Path, simulated: Callable[[str], SimulationResult]) -> None:
    case = CASES["fedmatch"]
    with federation(tmp_path, silos=case.silos) as processes:
        start(processes, case, silo=BEFORE_ITS_SECOND_TASK)
        processes.died(VICTIM, seconds=300)
        cache = tmp_path / VICTIM / "cache"
        assert list((cache / "tensors").iterdir()), "there is something to lose"
        shutil.rmtree(cache)
        join(processes, VICTIM)
        assert processes.finish(seconds=240) == simulated("fedmatch").digest
        for group in ("sigma", "psi"):
            later = [(silo, number) for silo, number in came_whole(processes, group) if number > 1]
            assert later in ([(VICTIM, 2)], [(VICTIM, 3)]), f"{group}: the round in which it was noticed"


def came_whole(processes: FederationOfProcesses, group: str) -> list[tuple[str, int]]:
    """(silo, round) of the tasks that sent all of a group."""
    rows = processes.query("SELECT silo, round, spec_json FROM task ORDER BY round, silo")
    return [(str(silo), int(str(number))) for silo, number, text in rows
            for payload in json.loads(str(text))["payloads"]
            if payload["groups"] == [group] and payload["digest"] and not payload["reference"]]


def test_a_lost_control_variate_begins_the_sum_anew_and_does_so_with_the_same_bits_each_time(
        tmp_path: Path, simulated: Callable[[str], SimulationResult]) -> None:
    case = CASES["fed_shvr"]
    undisturbed = simulated("fed_shvr")
    assert {each.metrics["correction_epoch"] for each in undisturbed.rounds} == {1.0}
    _, lost, *_ = [each.round for each in undisturbed.silos if each.silo == VICTIM]
    digests = []
    for number in ("once", "twice"):
        with federation(tmp_path / number, silos=case.silos) as processes:
            start(processes, case, silo=BEFORE_ITS_SECOND_TASK)
            processes.died(VICTIM, seconds=300)
            shutil.rmtree(tmp_path / number / VICTIM / "memory")
            join(processes, VICTIM)
            digests.append(processes.finish(seconds=240))
            assert metric(processes, "correction_epoch") == {
                each.round: 1.0 if each.round < lost else 2.0 for each in undisturbed.rounds[1:]}
            mass = metric(processes, "correction_mass")
            assert mass[lost] == 0.0 < mass[lost + 1], "the sum is empty, and filled again in the next round"
    assert digests[0] == digests[1] != undisturbed.digest
