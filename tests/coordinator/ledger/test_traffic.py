"""Sums of cost rows. Most of them are tested where they are shown: `monitoring/test_prometheus.py`, `page/`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.traffic import payload_bytes, rounds_with_costs
from tests.coordinator.ledger_fixture import query_plan

ROW = Cost(study="s", round=1, phase="train", silo="alpha", direction="up", kind="payload", item="model", bytes=100)


def test_new_costs_are_found_without_reading_those_before(tmp_path: Path) -> None:
    """A study of 1,000 silos and 500 rounds has more than eight million."""
    (step, *_) = query_plan(ledger := Ledger(tmp_path / "ledger.sqlite"), lambda: rounds_with_costs(ledger, after=5))
    assert step == "SEARCH cost USING INTEGER PRIMARY KEY (rowid>?)"


def test_payload_bytes_are_both_ways_and_of_one_study(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert payload_bytes(ledger, "s") == 0
    add_costs(ledger, [ROW, replace(ROW, direction="down", bytes=7), replace(ROW, kind="wire")])
    add_costs(ledger, [replace(ROW, study="t")])
    assert payload_bytes(ledger, "s") == 107
