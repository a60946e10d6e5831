"""Sums of the ledger's cost rows as monitoring asks for them: by day, by silo, added since the last look."""

from __future__ import annotations

from semisilo.coordinator.ledger.costs import Cost, Direction, Kind
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["SiloWay", "costs_between", "last_cost_row", "payload_bytes", "total_bytes_by_silo", "traffic_rows",
           "wire_of_round", "wire_of_today"]

SiloWay = tuple[str, Direction]
"""(silo, or "" for bytes that belong to none; direction)."""


def last_cost_row(ledger: Ledger) -> int:
    """The number of the newest cost row; rows are only ever added. 0 without any."""
    return int(ledger.query("SELECT coalesce(max(rowid), 0) AS last FROM cost")[0]["last"])


def costs_between(ledger: Ledger, after: int, until: int) -> list[Cost]:
    """Cost rows with numbers above `after`, up to `until`, of all studies and phases, rows of equal keys added up."""
    rows = ledger.query(
        "SELECT study, round, silo, direction, kind, item, sum(bytes) AS bytes, max(estimated) AS estimated"
        " FROM cost WHERE rowid > ? AND rowid <= ? GROUP BY study, round, silo, direction, kind, item", after, until)
    return [Cost(study=row["study"], round=row["round"], phase="", silo=row["silo"], direction=row["direction"],
                 kind=row["kind"], item=row["item"], bytes=row["bytes"], estimated=bool(row["estimated"]))
            for row in rows]


def traffic_rows(ledger: Ledger, study: str) -> list[Cost]:
    """Payload and wire bytes of a study by round, silo and direction: the few rows that a total needs."""
    rows = ledger.query(
        "SELECT round, silo, direction, kind, sum(bytes) AS bytes, max(estimated) AS estimated FROM cost"
        " WHERE study = ? AND kind != 'message' GROUP BY round, silo, direction, kind", study)
    return [Cost(study=study, round=row["round"], phase="", silo=row["silo"], direction=row["direction"],
                 kind=row["kind"], item="", bytes=row["bytes"], estimated=bool(row["estimated"])) for row in rows]


def payload_bytes(ledger: Ledger, study: str) -> int:
    """Payload bytes of a study so far, both ways."""
    return int(ledger.query("SELECT coalesce(sum(bytes), 0) AS n FROM cost WHERE study = ? AND kind = 'payload'",
                            study)[0]["n"])


def wire_of_round(ledger: Ledger, study: str, number: int) -> dict[SiloWay, int]:
    """Wire bytes of a round."""
    return {(row["silo"], row["direction"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, sum(bytes) AS bytes FROM cost WHERE study = ? AND round = ? AND kind = 'wire'"
        " GROUP BY silo, direction", study, number)}


def wire_of_today(ledger: Ledger, now_unix: float) -> dict[SiloWay, int]:
    """Wire bytes since midnight, in the local time of this machine."""
    return {(row["silo"], row["direction"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, bytes FROM wire_by_day WHERE day = date(?, 'unixepoch', 'localtime')", now_unix)}


def total_bytes_by_silo(ledger: Ledger) -> dict[tuple[str, Direction, Kind], int]:
    """(silo or "", direction, kind) -> bytes of all studies, from the totals that the ledger keeps."""
    return {(row["silo"], row["direction"], row["kind"]): row["bytes"] for row in ledger.query(
        "SELECT silo, direction, kind, sum(bytes) AS bytes FROM cost_total GROUP BY silo, direction, kind")}
