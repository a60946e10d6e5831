"""A simulation and a federation of the same parts end with the same bits and count the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.common.methods import METHODS
from semisilo.common.methods.spec import PSEUDO_LABEL_METRICS
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.silo.site.disclosures import Line, read_lines
from semisilo.silo.site.home import SiloHome
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.processes import federation
from tests.semisilo.silos_on_files import run_parts
from tests.semisilo.studies import CASES, study


def parts_of(tables: dict[str, Any], folder: Path) -> Path:
    write_parts(deal_study(load_simulated_study(tables)), folder)
    return folder


def payloads_of(ledger: Ledger) -> list[tuple[Any, ...]]:
    """All payload bytes, by round, phase, silo, direction and group."""
    return [tuple(row) for row in ledger.query(
        "SELECT round, phase, silo, direction, item, sum(bytes) FROM cost WHERE kind = 'payload'"
        " GROUP BY round, phase, silo, direction, item ORDER BY round, phase, silo, direction, item")]


def disclosed_by(home: Path) -> list[tuple[Any, ...]]:
    """What a silo has written down of its answers, but for what differs here: time, names of studies (and thereby size
    and digest of an abstention), and metrics that need the labels which only a simulation keeps."""
    lines = [line for line in read_lines(SiloHome(home).disclosures) if isinstance(line, Line)]
    return [(line.kind, line.round, line.phase, line.method, line.groups, line.num_examples, line.text,
             {name: value for name, value in line.metrics.items() if name not in PSEUDO_LABEL_METRICS[-2:]},
             *((line.bytes, line.digest) if line.kind == "update" else ()))
            for line in lines if line.kind in ("update", "abstention")]


def assert_equal_to_files(tables: dict[str, Any], tmp_path: Path) -> SimulationResult:
    simulated = run(tables, out=tmp_path / "simulated", device="cpu")
    ledger = run_parts(parts_of(tables, tmp_path / "parts"), tmp_path / "files")
    here = Ledger(tmp_path / "simulated" / "ledger.sqlite")
    try:
        assert simulated.digest == ledger.committed_digest("first")
        assert payloads_of(here) == payloads_of(ledger)
        for silo in {each.silo for each in simulated.silos}:
            disclosed = disclosed_by(tmp_path / "simulated" / "silos" / silo)
            assert disclosed == disclosed_by(tmp_path / "files" / silo)
            assert len(disclosed) == sum(each.silo == silo and each.state in ("updated", "abstained")
                                         for each in simulated.silos)
        assert [row.metrics for row in here.rounds("study")] == [row.metrics for row in ledger.rounds("first")]
        return simulated
    finally:
        here.close()
        ledger.close()


QUICK = {("semifl", "labels-at-coordinator"), ("fedmatch", "labels-at-silo"), ("fed_shvr", "labels-at-silo")}
"""What each method hands over is the same in every case (test_contract.py); these keep the most at both ends."""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES])
def test_every_method_gives_the_bits_and_bytes_of_silos_that_share_nothing_but_files(
        tmp_path: Path, method: str, scenario: str) -> None:
    result = assert_equal_to_files(study(method, scenario), tmp_path)
    assert all(each.state == "completed" for each in result.rounds)
    assert {each.silo for each in result.silos if each.state == "updated"}, "somebody must have sent something"


def test_the_cases_are_all_methods_in_all_their_scenarios() -> None:
    assert len(CASES) == sum(len(spec.scenarios) for spec in METHODS.values())


@pytest.mark.slow
def test_images_that_come_in_steps_do_so_on_both_ways(tmp_path: Path) -> None:
    tables = study("semifl", split={"name": "streaming_noniid", "steps": 2, "rounds_per_step": 1, "fraction": 0.3})
    result = assert_equal_to_files(tables, tmp_path)
    examples = {number: [each.num_examples for each in result.silos if each.round == number] for number in (1, 2)}
    assert examples[1]
    assert examples[2]


@pytest.mark.slow
def test_a_sampled_round_leaves_the_memory_of_the_others_alone_on_both_ways(tmp_path: Path) -> None:
    tables = study("semifl", rounds=4, participation={"silos_per_round": 2}, wire={"uplink": "top-k 5%"})
    result = assert_equal_to_files(tables, tmp_path)
    assert all(sum(each.answers.values()) == 2 for each in result.rounds[1:])


@pytest.mark.slow
def test_a_federation_of_real_processes_ends_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    tables = study("semifl", silos=2)
    simulated = run(tables, out=tmp_path / "simulated", device="cpu")
    parts = parts_of(tables, tmp_path / "parts")
    with federation(tmp_path / "real", silos=("silo-000", "silo-001")) as processes:
        hub = processes.hub / "studies" / "first"
        for path in (parts / "coordinator").rglob("*"):
            if path.is_file():
                (hub / path.relative_to(parts / "coordinator")).parent.mkdir(exist_ok=True)
                (hub / path.relative_to(parts / "coordinator")).write_bytes(path.read_bytes())
        for silo in processes.silos:
            (processes.folder / f"{silo}.npz").write_bytes((parts / "silos" / f"{silo}.npz").read_bytes())
        processes.serve()
        for silo in processes.silos:
            processes.enroll(silo)
            processes.join(silo)
        assert processes.finish() == simulated.digest
        for silo in processes.silos:
            disclosed = disclosed_by(tmp_path / "simulated" / "silos" / silo)
            assert disclosed
            assert disclosed == disclosed_by(processes.folder / silo)
