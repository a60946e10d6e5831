"""What an operator should hear of a silo: counts that cannot be, that jump or that are far above those of others,
updates that were left out or stand out, an identity that was copied, a memory that was lost.

A notice is an event of the audit trail and a row of its own table, from which readers take the last of each kind.

Tests: tests/coordinator/ledger/oversight/test_notices.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["NoticeKind", "SiloNotice", "add_notice", "count_notices", "has_notice", "notices_of"]


class NoticeKind(StrEnum):
    """What a notice is about."""

    COUNT_JUMP = "count_jump"
    """The images that a silo announces have become twice as many, or half as many, from one call to the next."""
    COUNT_LARGE = "count_large"
    """It announces far more images than the others of its round: where counts are weights, its update may weigh so."""
    COUNT_ABOVE = "count_above"
    """An update says that it is from more images than its silo has announced; it counts as from these."""
    LEFT_OUT = "left_out"
    """With its update the model was not finite, or it could not be folded: it was left out."""
    STANDS_OUT = "stands_out"
    """The norm of its update, the cosine to the mean, or its batch-norm statistics are far from those of the others."""
    USED_TWICE = "used_twice"
    """Two processes call with its certificate in turn: one of them has a copy."""
    AT_ODDS = "at_odds"
    """Two silos or more could not use what it had sent for secure sums: it was set aside."""
    MEMORY_LOST = "memory_lost"
    """It has come back without the memory of a study in which its updates were folded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloNotice:
    """The last notice of one kind about one silo."""

    silo: str
    kind: NoticeKind
    study: str
    """Empty outside of studies."""
    round: int
    """0 outside of rounds."""
    unix: float
    text: str
    times: int
    """How many of this kind there were."""

    @property
    def line(self) -> str:
        """For a person: "hospital-b, round 12: the norm of its update is 31.2, ... (3 times)"."""
        where = f", round {self.round}" if self.round else ""
        return f"{self.silo}{where}: {self.text}{f' ({self.times} times)' if self.times > 1 else ''}"


def add_notice(ledger: Ledger, kind: NoticeKind, *, silo: str, text: str, study: str = "", round: int = 0) -> None:
    """Adds a notice and its event. As lasting as the transaction that it is part of."""
    with ledger.part() as db:
        db.execute("INSERT INTO notice (unix, study, round, silo, kind, text) VALUES (?, ?, ?, ?, ?, ?)",
                   (time.time(), study, round, silo, kind, text))
        ledger.event(f"silo_{kind}", study=study, round=round, silo=silo, text=text)


def notices_of(ledger: Ledger, study: str, *, since_unix: float | None = None) -> tuple[SiloNotice, ...]:
    """The last notice of each kind about each silo in a study, by silo.

    Args:
        since_unix: those outside of studies that are as new count as well; None for none of them.
    """
    rows = ledger.query(
        "SELECT *, max(number), count(*) AS times FROM notice WHERE study = ? OR (study = '' AND unix >= ?)"
        " GROUP BY silo, kind, study ORDER BY silo, kind", study, 9e18 if since_unix is None else since_unix)
    return tuple(SiloNotice(silo=row["silo"], kind=NoticeKind(row["kind"]), study=row["study"], round=row["round"],
                            unix=row["unix"], text=row["text"], times=row["times"]) for row in rows)


def has_notice(ledger: Ledger, kind: NoticeKind, *, silo: str, study: str) -> bool:
    """Whether there is a notice of this kind about a silo in a study."""
    return bool(ledger.query("SELECT 1 FROM notice WHERE study = ? AND silo = ? AND kind = ? LIMIT 1", study, silo,
                             kind))


def count_notices(ledger: Ledger, study: str) -> dict[NoticeKind, int]:
    """Kind -> notices of a study that there have ever been, also in rounds that are gone since; of '' those outside of
    studies."""
    return {kind: ledger.query("SELECT count(*) AS n FROM event WHERE study = ? AND kind = ?", study,
                               f"silo_{kind}")[0]["n"] for kind in NoticeKind}
