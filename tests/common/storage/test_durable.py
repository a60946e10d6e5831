"""Files that are whole or not there, and when nobody waits for the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semisilo.common.storage.durable import sync_file, sync_folder, without_waiting, write_durably


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors that were synchronised."""
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    return calls


def test_a_file_and_its_folder_are_synchronised(tmp_path: Path, synced: list[int]) -> None:
    write_durably(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert len(synced) == 2


def test_without_waiting_nothing_is_synchronised_and_files_are_whole_all_the_same(
        tmp_path: Path, synced: list[int]) -> None:
    with without_waiting():
        write_durably(tmp_path / "file", b"content")
        sync_folder(tmp_path)
        with (tmp_path / "file").open("rb") as file:
            sync_file(file.fileno())
        with without_waiting():
            pass
        write_durably(tmp_path / "file", b"other")
    assert synced == []
    assert (tmp_path / "file").read_bytes() == b"other"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_after_it_and_after_a_failure_in_it_the_disk_is_waited_for_again(tmp_path: Path, synced: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), without_waiting():
        raise ZeroDivisionError
    write_durably(tmp_path / "file", b"content")
    assert len(synced) == 2
