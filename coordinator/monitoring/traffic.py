"""Sums of the ledger's costs that are kept up to date by reading only what was added since the last look.

A long study has millions of cost rows; the page asks every second. Rows are only ever added to that table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.costs import Direction, Kind
from coordinator.ledger import Ledger
from coordinator.summary import Traffic

__all__ = ["CostBook", "RoundCosts", "StudyCosts"]

_STRETCH = 100_000
"""Rows that are read at a time."""


@dataclass(slots=True)
class RoundCosts:
    """Bytes of one round."""

    bytes: defaultdict[tuple[Kind, Direction], int] = field(default_factory=lambda: defaultdict(int))
    overhead: defaultdict[Direction, int] = field(default_factory=lambda: defaultdict(int))
    transfers: defaultdict[Direction, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Direction -> silos with payload bytes: what `coordinator.summary.traffic_of` calls a transfer."""
    estimated: bool = False

    @property
    def wire(self) -> int:
        """Both ways."""
        return self.bytes["wire", "down"] + self.bytes["wire", "up"]


@dataclass(slots=True)
class StudyCosts:
    """Bytes of one study."""

    rounds: defaultdict[int, RoundCosts] = field(default_factory=lambda: defaultdict(RoundCosts))
    by_silo: defaultdict[str, dict[Direction, int]] = field(
        default_factory=lambda: defaultdict(lambda: {"down": 0, "up": 0}))
    """Wire bytes; the name is empty for those that belong to no silo."""
    by_item: defaultdict[tuple[Kind, str], dict[Direction, int]] = field(
        default_factory=lambda: defaultdict(lambda: {"down": 0, "up": 0}))
    """(kind, group or RPC) -> bytes."""

    def traffic(self, *, dense_bytes: int, round: int | None = None) -> Traffic:
        """Of the whole study, or of one round."""
        chosen = list(self.rounds.values()) if round is None else [self.rounds.get(round, RoundCosts())]

        def total(kind: Kind, direction: Direction) -> int:
            return sum(costs.bytes.get((kind, direction), 0) for costs in chosen)

        return Traffic(
            payload_down=total("payload", "down"), payload_up=total("payload", "up"),
            message_down=total("message", "down"), message_up=total("message", "up"),
            wire_down=total("wire", "down"), wire_up=total("wire", "up"),
            overhead_down=sum(costs.overhead.get("down", 0) for costs in chosen),
            overhead_up=sum(costs.overhead.get("up", 0) for costs in chosen),
            downloads=sum(len(costs.transfers.get("down", ())) for costs in chosen),
            uploads=sum(len(costs.transfers.get("up", ())) for costs in chosen),
            dense_bytes=dense_bytes, estimated=any(costs.estimated for costs in chosen))

    def wire(self) -> int:
        """Wire bytes of the study, both ways."""
        return sum(costs.wire for costs in self.rounds.values())

    def items(self, kind: Kind) -> Iterator[tuple[str, dict[Direction, int]]]:
        """(group or RPC, bytes each way) of one kind, most bytes first."""
        found = [(item, ways) for (each, item), ways in self.by_item.items() if each == kind]
        return iter(sorted(found, key=lambda pair: (-pair[1]["down"] - pair[1]["up"], pair[0])))


class CostBook:
    """The sums of all studies."""

    def __init__(self) -> None:
        self._last_row = 0
        self._studies: defaultdict[str, StudyCosts] = defaultdict(StudyCosts)

    def refresh(self, ledger: Ledger) -> None:
        """Adds what was written since the last call."""
        last = ledger.query("SELECT coalesce(max(rowid), 0) AS last FROM cost")[0]["last"]
        while self._last_row < last:
            until = min(last, self._last_row + _STRETCH)
            self._add(ledger, until)
            self._last_row = until

    def _add(self, ledger: Ledger, until: int) -> None:
        for row in ledger.query(
                "SELECT study, round, silo, direction, kind, item, sum(bytes) AS bytes, max(estimated) AS estimated"
                " FROM cost WHERE rowid > ? AND rowid <= ? GROUP BY study, round, silo, direction, kind, item",
                self._last_row, until):
            study = self._studies[row["study"]]
            costs, kind, direction, size = study.rounds[row["round"]], row["kind"], row["direction"], row["bytes"]
            costs.bytes[kind, direction] += size
            if kind == "wire":
                study.by_silo[row["silo"]][direction] += size
                costs.overhead[direction] += 0 if row["silo"] else size
                costs.estimated |= bool(row["estimated"])
            else:
                study.by_item[kind, row["item"]][direction] += size
            if kind == "payload" and size:
                costs.transfers[direction].add(row["silo"])

    def study(self, name: str) -> StudyCosts:
        """The sums of one study, to be read only."""
        return self._studies.get(name) or StudyCosts()
