"""Files that are whole or not there, and when nobody waits for the disk."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from semisilo.common.storage import durable
from semisilo.common.storage.durable import (
    naming,
    sync_file,
    sync_folder,
    sync_found,
    without_waiting,
    write_durably,
    writing_text,
)
from tests.synced_paths import synced_paths


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


def test_of_two_threads_that_do_not_wait_at_once_the_last_one_has_the_disk_waited_for_again(
        tmp_path: Path, synced: list[int]) -> None:
    first, second = without_waiting(), without_waiting()
    for enter in (first, second):
        enter.__enter__()
    first.__exit__(None, None, None)
    write_durably(tmp_path / "file", b"content")
    assert synced == []
    second.__exit__(None, None, None)
    write_durably(tmp_path / "file", b"content")
    assert len(synced) == 2


def test_after_it_and_after_a_failure_in_it_the_disk_is_waited_for_again(tmp_path: Path, synced: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), without_waiting():
        raise ZeroDivisionError
    write_durably(tmp_path / "file", b"content")
    assert len(synced) == 2


@pytest.mark.parametrize("knows", [True, False])
def test_without_waiting_a_file_is_replaced_by_one_that_is_whole_whatever_the_system_knows(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    """An exchange of names gives what `os.replace` gives, also of the rights; and is only there where it can be."""
    if not knows:
        monkeypatch.setattr(durable, "_renameat2", lambda: None)
    replaced: list[Path] = []
    original = os.replace

    def counted(source: Path, target: Path) -> None:
        replaced.append(target)
        original(source, target)

    monkeypatch.setattr(os, "replace", counted)
    file = tmp_path / "file"
    with without_waiting():
        for content in (b"first", b"second", b"third"):
            write_durably(file, content, mode=0o600)
            assert file.read_bytes() == content
            assert file.stat().st_mode & 0o777 == 0o600
            assert [path.name for path in tmp_path.iterdir()] == ["file"]
    in_place_of_another = sys.platform == "linux" and knows and durable._renameat2() is not None
    assert len(replaced) == (1 if in_place_of_another else 3)
    write_durably(file, b"for good")
    assert replaced[-1] == file, "whoever waits for the disk has it send the content there"


def test_what_another_process_has_left_is_synchronised_with_its_name_before_it_is_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with synced_paths() as synced:
        sync_found(tmp_path / "file")
        sync_found(tmp_path / "nothing")
        with without_waiting():
            sync_found(tmp_path / "file")
    assert synced == [str(tmp_path / "file"), str(tmp_path)]


def test_what_was_found_and_not_kept_is_written_again_before_it_is_believed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After fsync has failed Linux holds the pages for written, and the next fsync says that all is well."""
    content, unwritten = os.urandom(3 * 2**20 + 5), True
    (tmp_path / "file").write_bytes(content)
    written: list[tuple[int, int]] = []

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        written.append((offset, half := -(-len(data) // 2)))
        return real(handle, data[:half], offset)

    def fsync(handle: int) -> None:
        nonlocal unwritten
        if unwritten:
            unwritten = False
            raise OSError(errno.EIO, "broken")

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="broken"):
        sync_found(tmp_path / "file")
    assert [offset for offset, _ in written] == [sum(length for _, length in written[:number])
                                                 for number in range(len(written))]
    assert sum(length for _, length in written) == len(content)
    assert (tmp_path / "file").read_bytes() == content
    written.clear()
    sync_found(tmp_path / "file")
    assert written == []


@pytest.mark.parametrize("call", ["fsync", "open", "replace"])
def test_what_the_system_refuses_names_the_file_and_not_the_temporary_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """What it says of a write, or of waiting for the disk, names none."""
    path = tmp_path / "memory.json"
    write_durably(path, b"before")

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *(["another"] if call != "fsync" else []))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match=r"memory\.json'$") as failed:
            write_durably(path, b"after")
    assert failed.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_an_open_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with pytest.raises(OSError, match=r"record'$"), naming(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(FileNotFoundError, match=r"other'$"), naming(path):
        (tmp_path / "other").read_bytes()
    with pytest.raises(OSError, match=r"^in words$"), naming(path):
        raise OSError("in words")


def test_text_that_is_not_written_to_its_end_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "trail.csv"
    path.write_text("of May")
    path.chmod(0o640)

    def cut_off_by(error: BaseException) -> None:
        with writing_text(path) as file:
            file.write("of Ju")
            raise error

    with pytest.raises(OSError, match=r"trail\.csv'$"):
        cut_off_by(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(KeyboardInterrupt):
        cut_off_by(KeyboardInterrupt())
    assert (path.read_text(), [each.name for each in tmp_path.iterdir()]) == ("of May", ["trail.csv"])
    with writing_text(path) as file:
        file.write("of June\r\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"of June\r\n", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["trail.csv"]


def test_text_goes_into_a_pipe_and_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with writing_text(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with writing_text(tmp_path / "pipe") as file:
        file.write("through it")
    assert os.read(read, 100) == b"through it"
    os.close(read)
