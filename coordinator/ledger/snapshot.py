"""A copy of a ledger that others have open: SQLite's own backup, and the lock that keeps them from committing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from semisilo.common.errors import SemisiloError, StorageDamaged
from semisilo.coordinator.ledger.database import code_of, connect_existing, explained_by_sqlite

__all__ = ["check_copy", "copy_ledger", "no_commits"]


@contextlib.contextmanager
def no_commits(ledger: Path) -> Iterator[None]:
    """Holds the ledger's write lock: `serve` waits at its next commit, as it does for any command.

    Raises: SemisiloError when another program keeps it locked for 30 s, or this user may not write it; StorageDamaged
        when it is no ledger.
    """
    try:
        db = connect_existing(ledger)
    except sqlite3.Error as error:
        raise explained_by_sqlite(ledger, error) or error from None
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        raise SemisiloError(f"{ledger}: {error}.",
                            remedy="End the program that keeps it locked, or try again.") from None
    except sqlite3.DatabaseError as error:
        raise StorageDamaged(f"{ledger}: cannot be read as a ledger: {error}.",
                             remedy="Check the disk, then restore the file from a backup.") from None
    finally:
        db.close()


def copy_ledger(source: Path, target: Path) -> None:
    """SQLite's own copy of a file that others have open and go on writing: as it was after one of their commits. Only
    its owner may read it. Whether it is sound, `check_copy` finds out, which takes longer than the copy.

    Raises: StorageDamaged when the source is no ledger; DiskFull; SystemTrouble.
    """
    try:
        with contextlib.closing(connect_existing(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)
    except sqlite3.Error as error:
        raise explained_by_sqlite(source, error) or error from None
    target.chmod(0o600)


def check_copy(copy: Path, source: Path) -> None:
    """Has SQLite look through a copy.

    Raises: StorageDamaged, naming the source, when it is unsound.
    """
    try:
        with contextlib.closing(sqlite3.connect(copy)) as db:
            (found,), *_ = db.execute("PRAGMA quick_check").fetchall()
    except sqlite3.Error as error:
        if code_of(error) != sqlite3.SQLITE_CORRUPT:
            raise explained_by_sqlite(source, error) or error from None
        found = str(error)
    if found != "ok":
        raise StorageDamaged(f"{source}: SQLite finds it damaged: {found}.",
                             remedy="Check the disk, then restore the file from a backup.")
