"""Names from a ledger for the shell's completion: quick, read only, and silent about whatever is in the way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

__all__ = ["names_of_silos", "names_of_studies"]

_BUSY_SECONDS = 0.5
"""A person waits with a finger on the key."""


def names_of_studies(ledger: Path) -> list[str]:
    """All studies in order of the queue; none when the ledger cannot be read."""
    return _names(ledger, "SELECT name FROM study ORDER BY position")


def names_of_silos(ledger: Path) -> list[str]:
    """Silos that have enrolled and are neither revoked nor gone, by name; none when the ledger cannot be read."""
    return _names(ledger, "SELECT name FROM silo WHERE revoked_unix IS NULL AND left_unix IS NULL ORDER BY name")


def _names(ledger: Path, sql: str) -> list[str]:
    if not ledger.is_file():
        return []
    try:
        # Not as `Ledger`: pressing a key must neither make nor change a ledger.
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)) as db:
            return [str(row[0]) for row in db.execute(sql)]
    except (sqlite3.Error, OSError):
        return []
