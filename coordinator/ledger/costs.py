"""What rounds cost, as rows of the ledger: payload bytes per group, message bytes per RPC, wire bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["Cost", "CostSums", "Direction", "Kind", "RoundBytes", "SiloRoundBytes", "add_costs", "add_to_cost",
           "bytes_by_round", "costs_of", "estimate_lost", "has_downloads", "rounds_with_payload", "silo_round_bytes",
           "total_bytes"]

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
    gone: int = 0
    """How often the study has gone back behind the round since: another number, another try of it."""

    @property
    def key(self) -> tuple[str, int, str, str, str, str, str]:
        """What the bytes are of: those of equal keys are one sum."""
        return self.study, self.round, self.phase, self.silo, self.direction, self.kind, self.item


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundBytes:
    """Bytes of one kind and direction in one round, over all silos."""

    round: int
    direction: Direction
    kind: Kind
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloRoundBytes:
    """What one round took of one silo, over all phases. Bytes; "down" is to the silo."""

    payload_down: int
    payload_up: int
    wire_down: int
    wire_up: int


def add_costs(ledger: Ledger, costs: Iterable[Cost]) -> None:
    """Appends rows in one transaction; rows without bytes and count are left out."""
    with ledger.transaction(lasting=False) as db:
        db.executemany("INSERT INTO cost VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       [(c.study, c.round, c.phase, c.silo, c.direction, c.kind, c.item, c.bytes, c.count,
                         int(c.estimated)) for c in costs if c.bytes or c.count])


def add_to_cost(ledger: Ledger, cost: Cost) -> None:
    """Adds to the row with the key of `cost`, for what a silo may repeat as often as it likes.

    The sum gets the number of a new row, as if it had just been added: who reads only what is new since finds it
    (`semisilo.coordinator.ledger.traffic`).
    """
    with ledger.transaction(lasting=False) as db:
        earlier = db.execute(
            "SELECT rowid AS number, bytes, count, estimated FROM cost WHERE study = ? AND round = ? AND kind = ?"
            " AND silo = ? AND phase = ? AND direction = ? AND item = ? AND rowid > coalesce((SELECT max(cost_row) FROM"
            " rollback WHERE rollback.study = cost.study AND to_round < cost.round), 0)",  # not of a try that is gone
            (cost.study, cost.round, cost.kind, cost.silo, cost.phase, cost.direction, cost.item)).fetchall()
        # The triggers of a new row add what is new to the totals, and see that this silo is counted already; then the
        # rows become one, which no trigger sees.
        add_costs(ledger, [cost])
        if earlier and (cost.bytes or cost.count):
            db.execute("UPDATE cost SET bytes = bytes + ?, count = count + ?, estimated = max(estimated, ?)"
                       " WHERE rowid = (SELECT max(rowid) FROM cost)",
                       (sum(row["bytes"] for row in earlier), sum(row["count"] for row in earlier),
                        max(row["estimated"] for row in earlier)))
            db.executemany("DELETE FROM cost WHERE rowid = ?", [(row["number"],) for row in earlier])


def estimate_lost(ledger: Ledger, study: str, round: int) -> list[Cost]:
    """What messages and the wire carried of payloads at the least, where a kill took the count of it along.

    Payloads are counted with their task, what the kernel and RPCs count some seconds later. So after a kill, or in a
    backup, a silo's round may have more payload than wire, which cannot be. No row is written here.
    Returns: costs marked as estimated, one for each silo, direction and kind that fall short, of the missing bytes.
    """
    rows = ledger.query(
        "SELECT silo, direction, kind, sum(bytes) AS bytes, max(rowid) AS number FROM cost WHERE study = ?1"
        " AND round = ?2 AND silo <> '' AND rowid > coalesce((SELECT max(cost_row) FROM rollback WHERE rollback.study ="
        " ?1 AND to_round < ?2), 0) GROUP BY silo, direction, kind", study, round)  # not of a try that is gone
    sums = {(row["silo"], row["direction"], row["kind"]): row["bytes"] for row in rows}
    lost = []
    for row in rows:
        if row["kind"] != "payload":
            continue
        (phase,), = ledger.query("SELECT phase FROM cost WHERE rowid = ?", row["number"])
        for kind, item in _CARRIED[row["direction"]]:
            missing = row["bytes"] - sums.get((row["silo"], row["direction"], kind), 0)
            if missing > 0:
                lost.append(Cost(study=study, round=round, phase=phase, silo=row["silo"], direction=row["direction"],
                                 kind=kind, item=item, bytes=missing, estimated=True))
    return lost


_CARRIED: Mapping[Direction, tuple[tuple[Kind, str], ...]] = {
    "down": (("message", "DownloadPayload"), ("wire", "tcp")), "up": (("message", "SubmitUpdate"), ("wire", "tcp"))}
"""What carries a payload: kinds of cost and their items."""


class CostSums:
    """Rows for what is counted again and again, as long as a process lives: one for each key and not one for each time,
    which would be some ten thousand a day of a silo that only waits.

    As with `add_to_cost` a sum gets the number of a new row. Where the last one is, is known here, so that nothing is
    searched for: rows of earlier processes stay as they are.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: dict[tuple[str, int, str, str, str, str, str], int] = {}
        """Key -> number of the row; of the round that was last added to."""
        self._rounds: set[tuple[str, int]] = set()
        """(study, round) that these rows are of."""

    def add(self, costs: Sequence[Cost]) -> None:
        """Adds to the sums in one transaction; costs without bytes and count are left out."""
        added: dict[tuple[str, int, str, str, str, str, str], tuple[int, int, int]] = {}
        for cost in costs:
            if cost.bytes or cost.count:
                key = cost.key
                size, count, estimated = added.get(key, (0, 0, 0))
                added[key] = size + cost.bytes, count + cost.count, max(estimated, int(cost.estimated))
        if not added:
            return
        # A statement for all rows and not one for each: of a thousand silos there are ten thousand rows in a round.
        with self._ledger.transaction(lasting=False) as db:
            earlier = self._earlier(added)
            (last,), = self._ledger.query("SELECT coalesce(max(rowid), 0) FROM cost")
            made = {key: number for number, key in enumerate(added, last + 1)}
            db.executemany("INSERT INTO cost (rowid, study, round, phase, silo, direction, kind, item, bytes, count,"
                           " estimated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                           [(made[key], *key, *values) for key, values in added.items()])
            # After the triggers have added what is new to the totals.
            db.executemany("UPDATE cost SET bytes = bytes + ?, count = count + ?, estimated = max(estimated, ?)"
                           " WHERE rowid = ?", [(*values, made[key]) for key, (_, *values) in earlier.items()])
            db.executemany("DELETE FROM cost WHERE rowid = ?", [(number,) for number, *_ in earlier.values()])
        rounds = {key[:2] for key in made}
        if rounds != self._rounds:  # of a thousand silos there are some ten thousand rows to look through
            self._rounds = rounds
            self._rows = {key: number for key, number in self._rows.items() if key[:2] in rounds}
        self._rows.update(made)


    def _earlier(self, keys: Iterable[tuple[str, int, str, str, str, str, str]]) -> dict[
            tuple[str, int, str, str, str, str, str], tuple[int, int, int, int]]:
        """Key -> (number, bytes, count, estimated) of the row that it has. Whose number it is, is looked at: a number
        may have gone to another row."""
        numbers = {number: key for key in keys if (number := self._rows.get(key))}
        if not numbers:
            return {}
        rows = self._ledger.query(
            "SELECT study, round, phase, silo, direction, kind, item, rowid, bytes, count, estimated FROM cost"
            " WHERE rowid IN (SELECT value FROM json_each(?)) AND rowid > coalesce((SELECT max(cost_row) FROM rollback"
            " WHERE rollback.study = cost.study AND to_round < cost.round), 0)",  # not of a try that is gone
            json.dumps(list(numbers)))
        return {key: values for *of, number, size, count, estimated in rows
                if (key := numbers[number]) == tuple(of) and (values := (number, size, count, estimated))}


def costs_of(ledger: Ledger, study: str) -> list[Cost]:
    """The costs of a study, rows of equal keys added up, by round. Of a large study there are millions, which
    `semisilo.coordinator.ledger.traffic` has sums of."""
    # A study that never went back has a million rows to which this need not be asked.
    gone = "(SELECT count(*) FROM rollback WHERE rollback.study = cost.study AND to_round < cost.round AND" \
        " cost_row >= cost.rowid)" if ledger.query("SELECT 1 FROM rollback WHERE study = ? LIMIT 1", study) else "0"
    rows = ledger.query(
        "SELECT study, round, phase, silo, direction, kind, item, sum(bytes) AS bytes, sum(count) AS count,"
        f" max(estimated) AS estimated, {gone} AS gone FROM cost WHERE study = ? GROUP BY study, round, phase, silo,"
        " direction, kind, item, gone ORDER BY round, phase, silo, direction, kind, item, gone DESC", study)
    return [Cost(study=row["study"], round=row["round"], phase=row["phase"], silo=row["silo"],
                 direction=row["direction"], kind=row["kind"], item=row["item"], bytes=row["bytes"],
                 count=row["count"], estimated=bool(row["estimated"]), gone=row["gone"]) for row in rows]


def bytes_by_round(ledger: Ledger, study: str, *, after: int, up_to: int) -> list[RoundBytes]:
    """The bytes of rounds after + 1 to `up_to` of a study, by round, direction and kind; in no order."""
    rows = ledger.query("SELECT round, direction, kind, sum(bytes) AS bytes FROM cost WHERE study = ?"
                        " AND round > ? AND round <= ? GROUP BY round, direction, kind", study, after, up_to)
    return [RoundBytes(round=row["round"], direction=row["direction"], kind=row["kind"], bytes=row["bytes"])
            for row in rows]


def has_downloads(ledger: Ledger, *, study: str, round: int, phase: str, silo: str) -> bool:
    """Whether any payload to a silo was counted in a phase that is under way.

    Of phases of one name in a round, as those of batch-norm statistics before training and behind it, the earlier one
    has its rows before those of what came between.
    """
    return bool(ledger.query(
        "SELECT 1 FROM cost WHERE study = ?1 AND round = ?2 AND kind = 'payload' AND silo = ?4 AND phase = ?3"
        " AND direction = 'down' AND rowid > coalesce((SELECT max(rowid) FROM cost WHERE study = ?1 AND round = ?2"
        " AND kind = 'payload' AND silo = ?4 AND phase <> ?3), 0) LIMIT 1", study, round, phase, silo))


def rounds_with_payload(ledger: Ledger, study: str, silo: str, *, looked_at: int, most: int) -> list[int]:
    """The last rounds in which payloads went to a silo or came from it, oldest first; round 0 is none of them.

    Args:
        looked_at: only so many of the last rounds in which the silo was asked are looked at: that it was asked is found
            by the index of silos, while a study has a million costs. SQLite would go through the rounds, for their
            order, and of a silo that was never asked through all tasks of all silos.
        most: how many rounds are returned at most.
    """
    rows = ledger.query(
        "SELECT round FROM (SELECT DISTINCT round FROM task INDEXED BY task_by_outcome WHERE study = ?1 AND silo = ?2"
        " AND round > 0 ORDER BY round DESC LIMIT ?3) AS asked WHERE EXISTS (SELECT 1 FROM cost WHERE study = ?1 AND"
        " cost.round = asked.round AND kind = 'payload' AND silo = ?2) ORDER BY round DESC LIMIT ?4",
        study, silo, looked_at, most)
    return [int(row["round"]) for row in reversed(rows)]


def silo_round_bytes(ledger: Ledger, study: str, silo: str, round: int) -> SiloRoundBytes:
    """What a round took of a silo."""
    sums: dict[tuple[Kind, Direction], int] = {
        (row["kind"], row["direction"]): int(row["total"]) for row in ledger.query(
            # With the kinds spelt out the index leads to the silo's rows, and not through those of all in the round.
            "SELECT kind, direction, sum(bytes) AS total FROM cost WHERE study = ? AND silo = ? AND round = ?"
            " AND kind IN ('payload', 'wire') GROUP BY kind, direction", study, silo, round)}
    return SiloRoundBytes(
        payload_down=sums.get(("payload", "down"), 0), payload_up=sums.get(("payload", "up"), 0),
        wire_down=sums.get(("wire", "down"), 0), wire_up=sums.get(("wire", "up"), 0))


def total_bytes(costs: Iterable[Cost], *, kind: Kind, direction: Direction | None = None) -> int:
    """Sum of the bytes of one kind, of one or both directions."""
    return sum(cost.bytes for cost in costs
               if cost.kind == kind and (direction is None or cost.direction == direction))
