"""The cost book adds what was written since its last look, once, and is then what all rows together are."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.costs import Cost, Direction, Kind, add_costs, add_to_cost, costs_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.traffic import study_totals
from semisilo.coordinator.monitoring.cost_book import CostBook
from semisilo.coordinator.monitoring.traffic import StudyCosts
from tests.coordinator.cost_rows import book_of_rows, traffic_of_rows


def row(study: str, number: int, size: int) -> Cost:
    return Cost(study=study, round=number, phase="train", silo="a", direction="up", kind="payload", item="model",
                bytes=size)


def rows_of_a_round(number: int, silos: tuple[str, ...]) -> list[Cost]:
    """Two streams of one download, an update of two items, messages, wire; and bytes of nobody."""
    def cost(silo: str, direction: Direction, kind: Kind, item: str, size: int, *, estimated: bool = False) -> Cost:
        return Cost(study="s", round=number, phase="train", silo=silo, direction=direction, kind=kind, item=item,
                    bytes=size, count=1, estimated=estimated)

    found = [cost("", "up", "wire", "tcp", 7, estimated=number == 2)]
    for silo in silos:
        found += [cost(silo, "down", "payload", "model", 60), cost(silo, "down", "payload", "model", 40),
                  cost(silo, "up", "payload", "model", 0 if silo == "b" else 90),
                  cost(silo, "up", "payload", "manifest", 0 if silo == "b" else 9),
                  cost(silo, "up", "message", "AwaitTask", 5), cost(silo, "down", "wire", "tcp", 130)]
    return found


def test_the_sums_that_the_ledger_keeps_are_those_of_all_rows(tmp_path: Path) -> None:
    ledger, book = Ledger(tmp_path / "ledger.sqlite", waits=False), CostBook()
    add_costs(ledger, rows_of_a_round(1, ("a", "b")) + rows_of_a_round(2, ("a", "b", "c")))
    book.refresh(ledger)
    add_costs(ledger, rows_of_a_round(3, ("b",)) + rows_of_a_round(2, ("c",)))
    book.refresh(ledger)
    rows, found = costs_of(ledger, "s"), book.study("s")
    for number in (1, 2, 3, None):
        assert found.traffic(dense_bytes=100, round=number) == traffic_of_rows(
            (cost for cost in rows if number in (None, cost.round)), dense_bytes=100)
    assert (found.traffic(dense_bytes=1).downloads, found.traffic(dense_bytes=1).uploads) == (6, 3)
    assert found.by_silo == book_of_rows(rows).by_silo
    assert list(found.items("payload")) == list(book_of_rows(rows).items("payload"))
    totals = StudyCosts()
    totals.replace(study_totals(ledger, "s"))
    assert totals.traffic(dense_bytes=100) == traffic_of_rows(rows, dense_bytes=100)
    ledger.close()


@pytest.mark.parametrize("repeated", [False, True])
def test_transfers_of_a_round_that_is_done_again_are_counted_again(tmp_path: Path, repeated: bool) -> None:
    """Their bytes were, so that the share of dense transfers doubled."""
    ledger, book = Ledger(tmp_path / "ledger.sqlite", waits=False), CostBook()

    def played(number: int) -> None:
        for cost in rows_of_a_round(number, ("a", "b")):
            if repeated:  # a silo may take what it downloads as often as it likes
                add_to_cost(ledger, cost)
            else:
                add_costs(ledger, [cost])

    def shares(number: int | None) -> tuple[float | None, float | None]:
        book.refresh(ledger)
        found = book.study("s").traffic(dense_bytes=100, round=number)
        assert found == traffic_of_rows((cost for cost in costs_of(ledger, "s") if number in (None, cost.round)),
                                   dense_bytes=100)
        return found.share_down, found.share_up

    ledger.queue_study("s", {})
    for number in range(4):
        ledger.open_round("s", number, start_digest="", sample=(), phases=())
        ledger.fail_round(ledger.round("s", number), reason="of the test")
        played(number)
    ledger.set_study_state("s", StudyState.STOPPED)
    before = shares(None)
    assert before == (1.0, 0.99)
    for _ in range(2):
        roll_back(ledger, "s", 1, operator="", reason="")
        played(2)  # and round 3 is not done again
        played(2)  # resumed, of the same try
        assert shares(1) == before
        down, up = shares(2)
        assert (down, up) != before, "the second time nothing was new to a silo"
        ledger.open_round("s", 2, start_digest="", sample=(), phases=())
        ledger.set_study_state("s", StudyState.STOPPED)
    # Of three tries two were sent twice.
    assert shares(2) == (5 / 3, 5 * 99 / 300)
    assert shares(3) == before
    found = book.study("s").traffic(dense_bytes=100, round=2)
    assert (found.downloads, found.uploads) == (6, 3)
    ledger.close()


def test_each_look_adds_what_is_new_and_studies_stay_apart(tmp_path: Path) -> None:
    ledger, book = Ledger(tmp_path / "ledger.sqlite", waits=False), CostBook()
    book.refresh(ledger)
    assert book.study("s").traffic(dense_bytes=10) == traffic_of_rows([], dense_bytes=10)
    add_costs(ledger, [row("s", number, 10 * number) for number in range(1, 6)] + [row("t", 1, 7)])
    for _ in range(2):
        book.refresh(ledger)
        assert book.study("s").traffic(dense_bytes=10) == traffic_of_rows(costs_of(ledger, "s"), dense_bytes=10)
        assert book.study("s").traffic(dense_bytes=10).payload_up == 150
    assert book.study("s").traffic(dense_bytes=10, round=4).payload_up == 40
    add_costs(ledger, [row("s", 5, 1)])
    assert book.study("s").traffic(dense_bytes=10).payload_up == 150, "until the next look"
    book.refresh(ledger)
    assert book.study("s").traffic(dense_bytes=10).payload_up == 151
    assert book.study("t").traffic(dense_bytes=10).payload_up == 7
    ledger.close()
