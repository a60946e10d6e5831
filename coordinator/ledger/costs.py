"""What rounds cost, as rows of the ledger: payload bytes per group, message bytes per RPC, wire bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coordinator.ledger import Ledger

__all__ = ["Cost", "Direction", "Kind", "add_costs", "costs_of", "total_bytes"]

Direction = Literal["down", "up"]
Kind = Literal["payload", "message", "wire"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Bytes of one kind in one phase of one round, for one silo and direction."""

    study: str
    round: int
    phase: str
    silo: str
    """Empty for bytes that belong to no silo (`overhead`): handshakes of strangers, enrollment."""
    direction: Direction
    """"down": from the coordinator to the silo; "up": the other way."""
    kind: Kind
    item: str
    """Tensor group (payload), RPC (message) or "tcp" (wire)."""
    bytes: int
    count: int = 0
    """Transfers or messages behind the bytes."""
    estimated: bool = False
    """True where the kernel's counters cannot be read and the bytes follow from the messages."""


def add_costs(ledger: Ledger, costs: Iterable[Cost]) -> None:
    """Appends rows in one transaction; rows without bytes and count are left out."""
    with ledger.transaction(lasting=False) as db:
        db.executemany("INSERT INTO cost VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       [(c.study, c.round, c.phase, c.silo, c.direction, c.kind, c.item, c.bytes, c.count,
                         int(c.estimated)) for c in costs if c.bytes or c.count])


def costs_of(ledger: Ledger, study: str) -> list[Cost]:
    """The costs of a study, rows of equal keys added up, by round."""
    rows = ledger.query(
        "SELECT study, round, phase, silo, direction, kind, item, sum(bytes) AS bytes, sum(count) AS count,"
        " max(estimated) AS estimated FROM cost WHERE study = ? GROUP BY study, round, phase, silo, direction, kind,"
        " item ORDER BY round, phase, silo, direction, kind, item", study)
    return [Cost(study=row["study"], round=row["round"], phase=row["phase"], silo=row["silo"],
                 direction=row["direction"], kind=row["kind"], item=row["item"], bytes=row["bytes"],
                 count=row["count"], estimated=bool(row["estimated"])) for row in rows]


def total_bytes(costs: Iterable[Cost], *, kind: Kind, direction: Direction | None = None) -> int:
    """Sum of the bytes of one kind, of one or both directions."""
    return sum(cost.bytes for cost in costs
               if cost.kind == kind and (direction is None or cost.direction == direction))
