"""The cost book adds what was written since its last look, once, and is then what all rows together are."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.costs import Cost, add_costs, costs_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring import cost_book
from semisilo.coordinator.monitoring.cost_book import CostBook
from semisilo.coordinator.monitoring.traffic import traffic_of


def row(study: str, number: int, size: int) -> Cost:
    return Cost(study=study, round=number, phase="train", silo="a", direction="up", kind="payload", item="model",
                bytes=size)


def test_each_look_adds_what_is_new_and_studies_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_book, "_STRETCH", 2)  # so that one look takes several
    ledger, book = Ledger(tmp_path / "ledger.sqlite", waits=False), CostBook()
    book.refresh(ledger)
    assert book.study("s").traffic(dense_bytes=10) == traffic_of([], dense_bytes=10)
    add_costs(ledger, [row("s", number, 10 * number) for number in range(1, 6)] + [row("t", 1, 7)])
    for _ in range(2):
        book.refresh(ledger)
        assert book.study("s").traffic(dense_bytes=10) == traffic_of(costs_of(ledger, "s"), dense_bytes=10)
        assert book.study("s").traffic(dense_bytes=10).payload_up == 150
    add_costs(ledger, [row("s", 5, 1)])
    assert book.study("s").traffic(dense_bytes=10).payload_up == 150, "until the next look"
    book.refresh(ledger)
    assert book.study("s").traffic(dense_bytes=10).payload_up == 151
    assert book.study("t").traffic(dense_bytes=10).payload_up == 7
    ledger.close()
