"""Sums of the ledger's cost rows as monitoring asks for them: by day, by silo, by round; never all the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semisilo.coordinator.ledger.costs import Direction, Kind
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = [
    "RoundTotal",
    "SiloWay",
    "last_cost_row",
    "payload_bytes",
    "round_totals",
    "rounds_with_costs",
    "studies_with_costs",
    "study_totals",
    "total_bytes_by_silo",
    "wire_by_silo",
    "wire_of_gone_tries",
    "wire_of_round",
    "wire_of_today",
]

SiloWay = tuple[str, Direction]
"""(silo, or "" for bytes that belong to none; direction)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTotal:
    """Bytes of one kind, item and direction in one round, over all silos and phases."""

    round: int
    direction: Direction
    kind: Kind
    item: str
    """As in `semisilo.coordinator.ledger.costs.Cost`; empty where items are added up."""
    bytes: int
    overhead: int
    """Those among the bytes that belong to no silo."""
    silos: int
    """Payload: silos of which this item was the first in this direction and round. The sum over the items is the number
    of silos, however many items and streams each had."""
    estimated: bool
    count: int = 0
    """Transfers or messages behind the bytes; 0 where they are added up over rounds."""


def last_cost_row(ledger: Ledger) -> int:
    """The number of the newest cost row; what is added to a sum gives it a new one. 0 without any."""
    return int(ledger.query("SELECT coalesce(max(rowid), 0) AS last FROM cost")[0]["last"])


def rounds_with_costs(ledger: Ledger, *, after: int) -> set[tuple[str, int]]:
    """(study, round) of the cost rows with numbers above `after`."""
    # By the number of the row: left to itself, SQLite reads an index of all of them, in which equal ones lie together.
    return {(row["study"], row["round"]) for row in ledger.query(
        "SELECT DISTINCT study, round FROM cost NOT INDEXED WHERE rowid > ?", after)}


def studies_with_costs(ledger: Ledger) -> list[str]:
    """Studies that have cost anything; '' stands for what was outside of studies."""
    return [row["study"] for row in ledger.query("SELECT DISTINCT study FROM round_total")]


def round_totals(ledger: Ledger, study: str, *, rounds: Iterable[int] | None = None) -> list[RoundTotal]:
    """The sums of a study by round, or of some rounds of it; in no order."""
    sql = "SELECT * FROM round_total WHERE study = ?"
    rows = ledger.query(sql, study) if rounds is None else [
        row for number in rounds for row in ledger.query(f"{sql} AND round = ?", study, number)]
    return [RoundTotal(round=row["round"], direction=row["direction"], kind=row["kind"], item=row["item"],
                       bytes=row["bytes"], overhead=row["overhead"], silos=row["silos"],
                       estimated=bool(row["estimated"]), count=row["count"]) for row in rows]


def study_totals(ledger: Ledger, study: str) -> list[RoundTotal]:
    """The sums of a study over all rounds and items, as if it had had one round: the few rows that a total needs."""
    return [RoundTotal(round=0, direction=row["direction"], kind=row["kind"], item="", bytes=row["bytes"],
                       overhead=row["overhead"], silos=row["silos"], estimated=bool(row["estimated"]))
            for row in ledger.query(
                "SELECT direction, kind, sum(bytes) AS bytes, sum(overhead) AS overhead, sum(silos) AS silos,"
                " max(estimated) AS estimated FROM round_total WHERE study = ? GROUP BY direction, kind", study)]


def wire_by_silo(ledger: Ledger, study: str) -> dict[SiloWay, int]:
    """Wire bytes of a study so far."""
    return {(row["silo"], row["direction"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, bytes FROM cost_total WHERE study = ? AND kind = 'wire'", study)}


def payload_bytes(ledger: Ledger, study: str) -> int:
    """Payload bytes of a study so far, both ways."""
    return int(ledger.query("SELECT coalesce(sum(bytes), 0) AS n FROM cost_total WHERE study = ? AND"
                            " kind = 'payload'", study)[0]["n"])


def wire_of_round(ledger: Ledger, study: str, number: int) -> dict[SiloWay, int]:
    """Wire bytes of a round."""
    return {(row["silo"], row["direction"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, sum(bytes) AS bytes FROM cost WHERE study = ? AND round = ? AND kind = 'wire'"
        " GROUP BY silo, direction", study, number)}


def wire_of_gone_tries(ledger: Ledger, study: str, number: int) -> int:
    """Wire bytes of a round, both ways, from before the study went back behind it; 0 where it never did."""
    return int(ledger.query(
        "SELECT coalesce(sum(bytes), 0) AS n FROM cost WHERE study = ?1 AND round = ?2 AND kind = 'wire' AND rowid <="
        " (SELECT max(cost_row) FROM rollback WHERE rollback.study = ?1 AND to_round < ?2)", study, number)[0]["n"])


def wire_of_today(ledger: Ledger, now_unix: float) -> dict[SiloWay, int]:
    """Wire bytes since midnight, in the local time of this machine."""
    return {(row["silo"], row["direction"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, bytes FROM wire_by_day WHERE day = date(?, 'unixepoch', 'localtime')", now_unix)}


def total_bytes_by_silo(ledger: Ledger) -> dict[tuple[str, Direction, Kind], int]:
    """(silo or "", direction, kind) -> bytes of all studies, from the totals that the ledger keeps."""
    return {(row["silo"], row["direction"], row["kind"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, kind, sum(bytes) AS bytes FROM cost_total GROUP BY silo, direction, kind")}
