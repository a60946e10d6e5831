"""A copy of a ledger that is in use, and the lock under which it is taken. `test_backup.py` has the rest."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from semisilo.common.errors import SemisiloError, StorageDamaged
from semisilo.coordinator.ledger import database
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.snapshot import copy_ledger, no_commits


def test_nobody_commits_while_the_lock_is_held_and_everybody_afterwards(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.event("before")
    ledger.query("PRAGMA busy_timeout = 20")
    with no_commits(ledger.path):
        with pytest.raises(SemisiloError, match="locked"):
            ledger.event("meanwhile")
        copy_ledger(ledger.path, tmp_path / "copy.sqlite")
    ledger.event("after")
    assert ledger.check_events() == 2
    assert Ledger(tmp_path / "copy.sqlite").check_events() == 1
    assert (tmp_path / "copy.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_ledger_that_another_program_keeps_locked_is_an_error_with_a_remedy(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.02)
    Ledger(tmp_path / "ledger.sqlite").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SemisiloError, match="locked"), no_commits(tmp_path / "ledger.sqlite"):
            pass


def test_a_ledger_that_cannot_be_opened_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SemisiloError, match=r"ledger\.sqlite: unable to open") as caught, \
            no_commits(tmp_path / "ledger.sqlite"):
        pass
    assert str(tmp_path) in caught.value.remedy


def test_a_file_that_is_no_ledger_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(StorageDamaged, match="cannot be read as a ledger"), no_commits(tmp_path / "ledger.sqlite"):
        pass
