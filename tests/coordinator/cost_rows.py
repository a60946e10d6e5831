"""What cost rows come to when they are added up one by one: what the ledger's own sums are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from semisilo.coordinator.ledger.costs import Cost, Direction
from semisilo.coordinator.ledger.traffic import RoundTotal, SiloWay
from semisilo.coordinator.monitoring.traffic import StudyCosts, Traffic, silo_ways, traffic_of

__all__ = ["book_of_rows", "totals_of_rows", "traffic_of_rows"]


def totals_of_rows(costs: Iterable[Cost]) -> list[RoundTotal]:
    """A sum for each row. A transfer is a (try of a round, silo) with payload bytes in that direction."""
    totals, seen = list[RoundTotal](), set[tuple[int, int, Direction, str]]()
    for cost in costs:
        transfer = (cost.round, cost.gone, cost.direction, cost.silo)
        first = cost.kind == "payload" and cost.bytes > 0 and transfer not in seen
        if first:
            seen.add(transfer)
        totals.append(RoundTotal(
            round=cost.round, direction=cost.direction, kind=cost.kind, item=cost.item, bytes=cost.bytes,
            overhead=0 if cost.silo else cost.bytes, silos=int(first), estimated=cost.estimated, count=cost.count))
    return totals


def book_of_rows(costs: Iterable[Cost]) -> StudyCosts:
    """The sums of some rows of a study."""
    rows, book, wire = list(costs), StudyCosts(), Counter[SiloWay]()
    book.replace(totals_of_rows(rows))
    for cost in rows:
        if cost.kind == "wire":
            wire[cost.silo, cost.direction] += cost.bytes
    book.by_silo = silo_ways(wire)
    return book


def traffic_of_rows(costs: Iterable[Cost], *, dense_bytes: int = 0) -> Traffic:
    """What some rows of a study come to."""
    return traffic_of(totals_of_rows(costs), dense_bytes=dense_bytes)
