"""Waiting for the disk together: nobody is told before a flush that began after their commit; few are made."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from semisilo.common.errors import StorageDamaged
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.rounds.group_commit import GroupCommit


class Disk:
    """Takes as long as a test wants; remembers what had been committed when each flush began."""

    def __init__(self) -> None:
        self.committed = 0
        self.flushed: list[int] = []
        self.free = threading.Event()
        self.failing: Exception | None = None

    def flush(self) -> None:
        self.flushed.append(self.committed)
        assert self.free.wait(60)
        if self.failing is not None:
            raise self.failing


def test_who_commits_while_a_flush_runs_waits_for_the_next_one_and_all_of_them_share_it() -> None:
    async def scenario() -> None:
        disk = Disk()
        group = GroupCommit(disk.flush)

        async def commit() -> None:
            disk.committed += 1
            mine = disk.committed
            await group.on_disk()
            assert any(flushed >= mine for flushed in disk.flushed), "a flush that began after the commit has ended"

        first = asyncio.ensure_future(commit())
        while not disk.flushed:
            await asyncio.sleep(0.001)
        later = [asyncio.ensure_future(commit()) for _ in range(100)]
        await asyncio.sleep(0.01)
        assert not first.done()
        assert disk.flushed == [1]
        disk.free.set()
        await asyncio.gather(first, *later)
        assert disk.flushed == [1, 101]
        await commit()
        assert disk.flushed == [1, 101, 102]
    asyncio.run(scenario())


def test_who_hangs_up_does_not_take_the_flush_from_the_others() -> None:
    async def scenario() -> None:
        disk = Disk()
        group = GroupCommit(disk.flush)
        impatient, patient = (asyncio.ensure_future(group.on_disk()) for _ in range(2))
        await asyncio.sleep(0.01)
        impatient.cancel()
        disk.free.set()
        await patient
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await group.on_disk()
    asyncio.run(scenario())


def test_after_a_flush_that_failed_nothing_is_promised_any_more() -> None:
    async def scenario() -> None:
        disk = Disk()
        disk.free.set()
        disk.failing = StorageDamaged("no")
        group = GroupCommit(disk.flush)
        for each in await asyncio.gather(group.on_disk(), group.on_disk(), return_exceptions=True):
            assert isinstance(each, StorageDamaged)
        disk.failing = None
        with pytest.raises(StorageDamaged):
            await group.on_disk()
    asyncio.run(scenario())


def test_a_simulation_waits_for_nothing() -> None:
    asyncio.run(GroupCommit(None).on_disk())


def test_the_ledger_flushes_the_file_that_sqlite_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.query("PRAGMA synchronous = OFF")  # SQLite itself flushes nothing
    flushed: list[int] = []
    real = os.fsync

    def counted(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        real(descriptor)
    monkeypatch.setattr(os, "fsync", counted)
    log = tmp_path / "ledger.sqlite-wal"
    for _ in range(3):
        with ledger.transaction(lasting=False):
            ledger.event("noted")
        ledger.flush()
        assert flushed[-1] == log.stat().st_ino
    assert len(flushed) == 3

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageDamaged, match="Input/output error"):
        ledger.flush()
    ledger.close()
