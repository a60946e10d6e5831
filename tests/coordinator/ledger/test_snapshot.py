"""A copy of a ledger that is in use, and the lock under which it is taken. `test_backup.py` has the rest."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from semisilo.common.errors import SemisiloError, StorageDamaged
from semisilo.coordinator.ledger import database
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.snapshot import check_copy, copy_ledger, no_commits


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


def test_a_copy_is_taken_beside_a_transaction_that_is_under_way_and_has_nothing_of_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.event("before")
    with ledger.transaction():
        ledger.event("meanwhile")
        copy_ledger(ledger.path, tmp_path / "copy.sqlite")
    check_copy(tmp_path / "copy.sqlite", ledger.path)
    assert Ledger(tmp_path / "copy.sqlite").check_events() == 1
    ledger.close()


def test_what_cannot_be_copied_is_an_error_with_a_remedy_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(SemisiloError, match=r"ledger\.sqlite: unable to open"):
        copy_ledger(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    assert not (tmp_path / "ledger.sqlite").exists()
    (tmp_path / "ledger.sqlite").write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(StorageDamaged, match=r"ledger\.sqlite: cannot be read as a ledger"):
        copy_ledger(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")


def test_a_copy_that_is_unsound_is_told_by_the_name_of_its_source(tmp_path: Path) -> None:
    source, copy = tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite"
    with contextlib.closing(Ledger(source)) as ledger:
        for _ in range(200):
            ledger.event("one of many")
    copy_ledger(source, copy)
    with copy.open("r+b") as file:
        (pages,), = sqlite3.connect(copy).execute("PRAGMA page_count").fetchall()
        file.seek(4096 * (pages - 3))
        file.write(b"\xff" * 4096)
    with pytest.raises(StorageDamaged, match=f"{source}: "):
        check_copy(copy, source)
