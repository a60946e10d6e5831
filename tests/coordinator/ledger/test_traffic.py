"""Sums of cost rows. Most of them are tested where they are shown: `monitoring/test_prometheus.py`, `page/`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.traffic import payload_bytes

ROW = Cost(study="s", round=1, phase="train", silo="alpha", direction="up", kind="payload", item="model", bytes=100)


def test_payload_bytes_are_both_ways_and_of_one_study(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert payload_bytes(ledger, "s") == 0
    add_costs(ledger, [ROW, replace(ROW, direction="down", bytes=7), replace(ROW, kind="wire")])
    add_costs(ledger, [replace(ROW, study="t")])
    assert payload_bytes(ledger, "s") == 107
