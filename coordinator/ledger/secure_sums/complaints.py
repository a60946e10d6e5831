"""Complaints of silos about what others of a secure sum have sent; kept until the next round is planned.

Tests: tests/coordinator/ledger/secure_sums/test_complaints.py.
"""

from __future__ import annotations

from collections.abc import Collection

from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["add_complaints", "complaints", "forget_complaints"]


def add_complaints(ledger: Ledger, study: str, round: int, found: Collection[tuple[str, str]]) -> None:
    """Notes what silos complain of, each once in a round.

    Args:
        found: (silo, the one that it complains of).
    """
    with ledger.part() as db:
        for silo, against in found:
            if db.execute("INSERT OR IGNORE INTO complaint VALUES (?, ?, ?, ?)",
                          (study, round, silo, against)).rowcount:
                ledger.event("secure_sum_complaint", study=study, round=round, silo=silo, against=against)


def complaints(ledger: Ledger, study: str) -> tuple[tuple[str, str], ...]:
    """Those of a study since they were forgotten last: (silo, the one that it complains of)."""
    return tuple((row["silo"], row["against"]) for row in ledger.query(
        "SELECT silo, against FROM complaint WHERE study = ? ORDER BY round, silo, against", study))


def forget_complaints(ledger: Ledger, study: str) -> None:
    """Once somebody has heeded them; the audit trail keeps them."""
    with ledger.part() as db:
        db.execute("DELETE FROM complaint WHERE study = ?", (study,))
