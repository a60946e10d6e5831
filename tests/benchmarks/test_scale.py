"""The scale benchmark: its floor carries the bytes, its ratios are what they say, its page has a row for each size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.bare_grpc import measure
from benchmarks.scale.commands import grow
from benchmarks.scale.results import spread, write_results
from benchmarks.wire.local_federation import STUDY
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_outcomes, silo_totals
from semisilo.coordinator.monitoring.status import gather
from tests.coordinator.ledger_fixture import fill_study


def test_a_spread_is_median_lowest_and_highest_over_the_reference() -> None:
    """3, 1 and 8 over 2: 1.5, 0.5 and 4."""
    assert spread([3.0, 1.0, 8.0], 2.0) == "1.5 (0.5 to 4.0)"


def federation(silos: int, seconds: list[float], *, cpu: float, registered: int = 0) -> dict[str, Any]:
    waits = {"answers": 9, "failed": 0, "p50": 0.002, "p90": 0.003, "p99": 0.04, "longest": 0.05}
    return {"silos": silos, "seconds_per_round": seconds, "registered": registered, "lost": 0, "parameters": 1000,
            "cpu_seconds_per_round": {"coordinator": cpu, "coordinator compute": 0.1, "silos": 0.2,
                                      "silos compute": 0.3},
            "waits_while_idle": waits, "waits_in_rounds": {"answers": 0}, "coordinator_bytes_alone": 1_000_000,
            "coordinator_bytes_connected": 1_500_000, "coordinator_bytes_after": 2_000_000}


def test_the_page_compares_each_size_with_its_floor_and_with_the_smallest(tmp_path: Path) -> None:
    """10 silos with 0.1 s of the coordinator: 10 ms each; 100 silos with 1.5 s: 15 ms, 1.5 times as much, and 5 times
    the floor's 3 ms. 2 s a round over the floor's 0.5 s are 4."""
    floor = {"median_seconds": 0.5, "server_cpu_seconds": 0.3, "callers_cpu_seconds": 0.1, "seconds_per_round": [0.5]}
    machine = {"cpu": "A CPU", "cores": 2, "kernel": "6", "python": "3.11", "date": "2026-01-01", "load_before": 0.1,
               "version": "0.1"}
    write_results({
        "machine": machine, "quick": False, "simulations": {"many": {"wall_seconds": 12.345}},
        "commands": {"machine": machine, "silos": 1000, "rounds": 500, "rows": {"task": 500_000, "cost": 7_000_000},
                     "bytes": 2_000_000_000, "repeats": 7, "commands": {
                         "coordinator status": {"seconds": 0.25, "processor_seconds": 0.24,
                                                "interpreter_seconds": 0.02}}},
        "sizes": [{"semisilo": federation(10, [0.5], cpu=0.1), "floor": floor},
                  {"semisilo": federation(100, [1.0, 2.0, 3.0], cpu=1.5), "floor": floor}],
        "rosters": [federation(100, [2.0], cpu=1.0), federation(100, [2.2], cpu=1.0, registered=10_000)],
        "large": [{"semisilo": federation(8, [4.0], cpu=2.0), "floor": floor}]}, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "2 cores of A CPU" in text
    assert "| 100 | 2.00 | 4.0 (2.0 to 6.0) | 15.0 | 1.0 | 3.0 | 5.0 | 2.0 | 1.5 |" in text
    assert "| 10 | 2 | 40 | - | - | - | 50 | 100 |" in text
    assert "| 100 | 10,000 | 2.20 | 1.1 (1.1 to 1.1) |" in text
    assert "| 8 | 1,000 | 4.00 | 8.0 (8.0 to 8.0) | 2.00 | 0.10 | 0.20 | 0.30 |" in text
    assert "| many | wall_seconds | 12.3 |" in text
    assert "| coordinator status | 0.25 | 0.24 | an interpreter that does nothing 0.02 |" in text


def test_a_grown_ledger_is_as_if_all_had_taken_part_in_all_rounds(tmp_path: Path) -> None:
    """Of 3 silos and 3 rounds, 5 and 8: every silo is asked in rounds 4 to 8, with the costs of one in round 2."""
    filled = fill_study(tmp_path, name=STUDY, rounds=3, silos=("silo-0000", "silo-0001", "silo-0002"))
    before = [each.bytes for each in costs_of(filled.ledger, STUDY) if (each.round, each.silo) == (2, "silo-0000")]
    filled.ledger.close()
    rows = grow(filled.federation.ledger, silos=5, rounds=8)
    assert rows["task"] == 3 * 3 + 5 * 5
    ledger = Ledger(filled.federation.ledger)
    try:
        assert {silo: each.asked for silo, each in silo_totals(ledger, STUDY).items()} == {
            **{f"silo-000{number}": 8 for number in range(3)}, "silo-0003": 5, "silo-0004": 5}
        assert round_outcomes(ledger, STUDY)[8] == {"updated": 5}
        costs = costs_of(ledger, STUDY)
        for silo in ("silo-0000", "silo-0004"):
            assert [each.bytes for each in costs if (each.round, each.silo) == (8, silo)] == before
        status = gather(filled.federation, ledger, None)
        assert len(status.silos) == 5
    finally:
        ledger.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_floor_runs_rounds_of_all_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    found = measure(3, size_bytes=20_000_000, rounds=3)
    assert len(found["seconds_per_round"]) == 3
    assert found["server_cpu_seconds"] > 0
    assert found["callers_cpu_seconds"] > 0
