"""Bytes of rounds and studies are added up in one way: sums, shares of dense transfers, lines by item."""

from __future__ import annotations

from semisilo.coordinator.ledger.costs import Cost, Direction, Kind
from semisilo.coordinator.monitoring.traffic import (
    OVERHEAD,
    SILOS,
    CostLine,
    Traffic,
    cost_lines,
    share_of,
)
from tests.coordinator.cost_rows import book_of_rows, totals_of_rows, traffic_of_rows


def cost(round: int, silo: str, direction: Direction, kind: Kind, item: str, size: int, *, count: int = 0) -> Cost:
    return Cost(study="s", round=round, phase="train", silo=silo, direction=direction, kind=kind, item=item, bytes=size,
                count=count)


ROWS = [cost(1, "a", "down", "payload", "model", 80, count=1), cost(1, "a", "down", "payload", "model", 20, count=1),
        cost(1, "b", "down", "payload", "model", 50, count=1), cost(1, "a", "up", "payload", "delta", 30, count=1),
        cost(2, "a", "down", "payload", "model", 50, count=1), cost(1, "a", "down", "message", "AwaitTask", 9, count=4),
        cost(1, "a", "down", "wire", "tcp", 300), cost(1, "", "up", "wire", "tcp", 7)]


def test_a_traffic_has_sums_both_ways_and_shares_of_dense_models() -> None:
    traffic = traffic_of_rows(ROWS, dense_bytes=100)
    assert (traffic.payload_down, traffic.payload_up, traffic.payload) == (200, 30, 230)
    assert (traffic.wire_down, traffic.wire_up, traffic.wire, traffic.overhead) == (300, 7, 307, 7)
    assert (traffic.downloads, traffic.uploads) == (3, 1), "silos by round, however many streams"
    assert (traffic.dense_down, traffic.dense_up, traffic.dense_total) == (300, 100, 400)
    assert (traffic.share_down, traffic.share_up, traffic.payload_share) == (200 / 300, 30 / 100, 230 / 400)
    assert (traffic.wire_share_down, traffic.wire_share_up, traffic.share) == (300 / 300, 7 / 100, 307 / 400)


def test_without_a_dense_model_there_is_no_share() -> None:
    traffic = traffic_of_rows(ROWS)
    shares = (traffic.share_down, traffic.share_up, traffic.payload_share, traffic.wire_share_down,
              traffic.wire_share_up, traffic.share)
    assert shares == (None,) * 6
    assert (share_of(1, 4), share_of(0, 4), share_of(1, 0)) == (0.25, 0.0, None)


def test_only_payload_bytes_are_a_simulation_and_nothing_at_all_is_not() -> None:
    assert traffic_of_rows([row for row in ROWS if row.kind == "payload"]).simulated
    assert not traffic_of_rows(ROWS).simulated
    assert not Traffic(payload_up=3, message_up=1).simulated
    assert not Traffic().simulated


def test_one_round_is_that_round_and_a_round_that_never_was_is_empty() -> None:
    book = book_of_rows(reversed(ROWS))
    assert book.traffic(dense_bytes=100) == traffic_of_rows(ROWS, dense_bytes=100), "in any order"
    assert book.traffic(dense_bytes=100, round=2) == Traffic(payload_down=50, downloads=1, dense_bytes=100)
    assert book.traffic(dense_bytes=100, round=9) == Traffic(dense_bytes=100)
    assert book.wire() == 307
    assert dict(book.by_silo) == {"a": {"down": 300, "up": 0}, "": {"down": 0, "up": 7}}
    assert list(book.items("payload")) == [("model", {"down": 200, "up": 0}), ("delta", {"down": 0, "up": 30})]


def test_lines_are_by_kind_and_item_and_overhead_is_always_the_last() -> None:
    assert cost_lines(totals_of_rows(ROWS)) == (
        CostLine("payload", "delta", 0, 30, 1), CostLine("payload", "model", 200, 0, 4),
        CostLine("message", "AwaitTask", 9, 0, 4), CostLine("wire", SILOS, 300, 0, 0),
        CostLine("wire", OVERHEAD, 0, 7, 0))
    assert cost_lines([]) == (CostLine("wire", OVERHEAD, 0, 0, 0),)
