"""The payload store: complete files are named by their digest, partial ones survive a crash up to a whole chunk."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest

from semisilo.common.errors import BadPayload, DiskFull, StorageDamaged, SystemTrouble
from semisilo.common.storage.store import MAX_CHUNK_BYTES, PartialFile, PayloadStore, hash_file
from tests.processes import PATIENCE_SECONDS
from tests.synced_paths import synced_paths

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def append(partial: PartialFile, end: int, *, chunk: int = 1000) -> None:
    """Appends CONTENT up to `end`."""
    while (offset := partial.committed_bytes) < end:
        data = CONTENT[offset:min(offset + chunk, end)]
        partial.append(data, offset=offset, crc32=zlib.crc32(data))


def part_file(store: PayloadStore) -> Path:
    [path] = (store.folder / "incoming").glob("*.part")
    return path


def incoming(store: PayloadStore) -> list[str]:
    return sorted(path.name for path in (store.folder / "incoming").iterdir())


def test_a_finished_transfer_becomes_a_payload_and_leaves_nothing_else(store: PayloadStore) -> None:
    with store.partial("update-1", size_bytes=len(CONTENT)) as partial:
        append(partial, len(CONTENT))
        assert not store.has(DIGEST)
        path = partial.finish(DIGEST)
    assert path == store.path(DIGEST)
    assert path.read_bytes() == CONTENT
    assert store.has(DIGEST)
    assert store.digests() == {DIGEST}
    assert incoming(store) == []


def test_finish_syncs_the_file_and_its_folder_before_it_returns(store: PayloadStore) -> None:
    synced: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real_sync(handle)

    def replace(source: Path, target: Path) -> None:
        synced.append("rename")
        real_replace(source, target)

    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, len(CONTENT))
    name = str(part_file(store))
    with mock.patch("os.fsync", fsync), mock.patch("os.replace", replace):
        partial.finish(DIGEST)
    assert synced == [name, "rename", str(store.folder)]


def test_a_transfer_resumes_from_what_is_on_disk_with_the_right_digest(store: PayloadStore) -> None:
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        append(partial, 3000)
    again = PayloadStore(store.folder).partial("u", size_bytes=len(CONTENT))
    assert again.committed_bytes == 3000
    append(again, len(CONTENT))
    assert again.finish(DIGEST).read_bytes() == CONTENT


@pytest.mark.parametrize(("harm", "left"), [
    (lambda data: data[:2999], 2000),                                   # the last chunk is torn
    (lambda data: data + b"x" * 500, 3000),                             # a chunk whose journal entry is missing
    (lambda data: data[:2500] + b"\xff" + data[2501:], 2000),           # garbage after a power failure
    (lambda data: b"\0" * len(data), 0),
    (lambda data: b"", 0),
])
def test_after_a_crash_the_file_is_cut_to_the_last_whole_chunk(store: PayloadStore, harm: Callable[[bytes], bytes],
                                                               left: int) -> None:
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        append(partial, 3000)
    path = part_file(store)
    path.write_bytes(harm(path.read_bytes()))
    again = PayloadStore(store.folder).partial("u", size_bytes=len(CONTENT))
    assert again.committed_bytes == left == path.stat().st_size
    append(again, len(CONTENT))
    again.finish(DIGEST)


@pytest.mark.parametrize("journal", [b"", b"\xff" * 120, b"\0" * 36])
def test_a_lost_or_damaged_journal_costs_the_progress_but_nothing_else(store: PayloadStore, journal: bytes) -> None:
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        append(partial, 3000)
    part_file(store).with_suffix(".journal").write_bytes(journal)
    again = PayloadStore(store.folder).partial("u", size_bytes=len(CONTENT))
    assert again.committed_bytes == 0
    append(again, len(CONTENT))
    again.finish(DIGEST)


def test_a_wrong_digest_deletes_the_partial_file(store: PayloadStore) -> None:
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, len(CONTENT))
    with pytest.raises(BadPayload, match="has the SHA-256"):
        partial.finish("0" * 64)
    assert incoming(store) == []
    assert store.digests() == set()
    assert store.partial("u", size_bytes=len(CONTENT)).committed_bytes == 0


def test_a_file_that_is_too_short_is_not_finished(store: PayloadStore) -> None:
    partial = store.partial("u", size_bytes=len(CONTENT) + 1)
    append(partial, len(CONTENT))
    with pytest.raises(BadPayload, match="10240 bytes instead of 10241"):
        partial.finish(DIGEST)
    assert incoming(store) == []


@pytest.mark.parametrize(("offset", "data", "message"), [
    (999, b"x", "offset 999 arrived where 1000"),
    (1001, b"x", "offset 1001 arrived where 1000"),
    (0, b"x", "offset 0 arrived where 1000"),
    (1000, b"", "has 0 bytes"),
    (1000, bytes(MAX_CHUNK_BYTES + 1), "has 4194305 bytes"),
    (1000, bytes(9241), "after the declared 10240 bytes"),
])
def test_a_chunk_that_does_not_belong_is_refused_and_changes_nothing(store: PayloadStore, offset: int, data: bytes,
                                                                    message: str) -> None:
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, 1000)
    with pytest.raises(BadPayload, match=message):
        partial.append(data, offset=offset, crc32=zlib.crc32(data))
    append(partial, len(CONTENT))
    partial.finish(DIGEST)


def test_a_second_opening_takes_the_transfer_over_from_the_first(store: PayloadStore) -> None:
    first = store.partial("u", size_bytes=len(CONTENT))
    append(first, 2000)
    second = store.partial("u", size_bytes=len(CONTENT))
    with pytest.raises(BadPayload, match="newer connection"):
        append(first, 3000)
    first.close()
    append(second, len(CONTENT))
    second.finish(DIGEST)


def test_different_keys_never_share_a_file_and_cannot_choose_its_name(store: PayloadStore, tmp_path: Path) -> None:
    keys = ["../../escape", "/etc/passwd", "a/b", "a", hashlib.sha256(b"a").hexdigest(), "\0", "x" * 5000]
    for key in keys:
        store.partial(key, size_bytes=10)
    assert len(list((store.folder / "incoming").glob("*.part"))) == len(keys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["payloads"]


@pytest.mark.parametrize("digest", ["", "..", "A" * 64, "0" * 63, "../" + "0" * 61])
def test_a_digest_that_is_none_never_becomes_a_path(store: PayloadStore, digest: str) -> None:
    with pytest.raises(BadPayload):
        store.path(digest)


def test_the_limit_refuses_a_transfer_before_its_first_chunk(tmp_path: Path) -> None:
    """Two open transfers of 10240 bytes fit into 25000; a third does not, although nothing is on disk yet."""
    store = PayloadStore(tmp_path, limit_bytes=25_000)
    first = store.partial("a", size_bytes=len(CONTENT))
    store.partial("b", size_bytes=len(CONTENT))
    with pytest.raises(DiskFull, match="25000"):
        store.partial("c", size_bytes=len(CONTENT))
    assert len(incoming(store)) == 4
    append(first, len(CONTENT))
    first.finish(DIGEST)
    with pytest.raises(DiskFull):
        store.partial("c", size_bytes=len(CONTENT))
    store.drop_partial("b")
    store.partial("c", size_bytes=len(CONTENT))
    store.partial("c", size_bytes=len(CONTENT))  # its own bytes do not stand in its way


def test_a_transfer_larger_than_the_disk_is_refused_at_once(store: PayloadStore) -> None:
    with pytest.raises(DiskFull, match="does not fit on the disk"):
        store.partial("u", size_bytes=2**60)
    assert incoming(store) == []


@pytest.mark.parametrize("failing_write", [1, 2])
def test_a_disk_that_fills_up_loses_nothing_and_the_transfer_goes_on(store: PayloadStore, failing_write: int) -> None:
    """The disk is full at the chunk itself, half written, or at its journal entry."""
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, 3000)
    real, calls = os.pwrite, 0

    def full(handle: int, data: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == failing_write:
            real(handle, bytes(data)[:5], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data, offset)

    with mock.patch("os.pwrite", full), pytest.raises(DiskFull) as caught:
        append(partial, 4000)
    assert caught.value.retry
    assert partial.committed_bytes == 3000 == part_file(store).stat().st_size
    partial = PayloadStore(store.folder).partial("u", size_bytes=len(CONTENT))
    assert partial.committed_bytes == 3000
    append(partial, len(CONTENT))
    partial.finish(DIGEST)


def test_another_disk_error_is_not_called_a_full_disk(store: PayloadStore) -> None:
    partial = store.partial("u", size_bytes=len(CONTENT))
    with mock.patch("os.pwrite", side_effect=OSError(errno.EIO, "broken")), pytest.raises(SystemTrouble) as caught:
        append(partial, 100)
    assert not isinstance(caught.value, DiskFull)
    assert str(partial.path) in caught.value.text


def test_what_a_failed_chunk_leaves_behind_the_end_is_not_in_the_finished_file(store: PayloadStore) -> None:
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, 100)

    def half(handle: int, data: bytes, offset: int) -> int:
        os.ftruncate(handle, len(CONTENT) + 50)
        raise OSError(errno.EIO, "broken")

    with mock.patch("os.pwrite", half), mock.patch.object(partial, "_cut", side_effect=OSError(errno.EIO, "broken")), \
            pytest.raises(OSError, match="broken"):
        append(partial, 200)
    append(partial, len(CONTENT))
    assert hash_file(partial.finish(DIGEST)) == DIGEST


def test_add_file_names_it_by_content(store: PayloadStore) -> None:
    temporary = store.temporary()
    temporary.write_bytes(CONTENT)
    assert store.add_file(temporary) == DIGEST == hash_file(store.path(DIGEST))
    assert incoming(store) == []


def test_collect_keeps_what_is_named_and_what_is_on_its_way(store: PayloadStore) -> None:
    digests = []
    for content in (b"one", b"two!", b"three"):
        temporary = store.temporary()
        temporary.write_bytes(content)
        digests.append(store.add_file(temporary))
    append(store.partial("u", size_bytes=len(CONTENT)), 1000)
    assert store.collect({digests[1], "f" * 64}) == len(b"one") + len(b"three")
    assert store.digests() == {digests[1]}
    assert store.partial("u", size_bytes=len(CONTENT)).committed_bytes == 1000


def test_clean_removes_what_a_crash_has_left_except_named_transfers(store: PayloadStore) -> None:
    append(store.partial("kept", size_bytes=len(CONTENT)), 1000)
    append(store.partial("gone", size_bytes=len(CONTENT)), 1000)
    store.temporary().write_bytes(b"half")
    after = PayloadStore(store.folder)
    after.clean(keep_partials=["kept"])
    assert len(incoming(after)) == 2
    assert after.partial("kept", size_bytes=len(CONTENT)).committed_bytes == 1000
    assert after.partial("gone", size_bytes=len(CONTENT)).committed_bytes == 0


def test_clean_removes_the_journal_of_a_file_that_had_its_name_before_the_kill(
        store: PayloadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store.partial("kept", size_bytes=len(CONTENT)), 1000)
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, len(CONTENT))
    name = store._name

    class Killed(BaseException):
        pass

    def killed(file: Path | str, digest: str) -> None:
        name(file, digest)
        raise Killed

    monkeypatch.setattr(store, "_name", killed)
    with pytest.raises(Killed):
        partial.finish(DIGEST)
    after = PayloadStore(store.folder)
    after.clean(keep_partials=["kept"], before_unix=0.0)
    assert len(incoming(after)) == 3
    after.clean(keep_partials=["kept"])
    assert len(incoming(after)) == 2
    assert after.partial("kept", size_bytes=len(CONTENT)).committed_bytes == 1000
    assert after.has(DIGEST)


def test_verify_finds_a_damaged_and_a_missing_file(store: PayloadStore) -> None:
    temporary = store.temporary()
    temporary.write_bytes(CONTENT)
    store.add_file(temporary)
    assert store.verify(DIGEST) == store.path(DIGEST)
    store.path(DIGEST).write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(StorageDamaged, match="is damaged"):
        store.verify(DIGEST)
    store.path(DIGEST).unlink()
    with pytest.raises(StorageDamaged, match="is missing"):
        store.verify(DIGEST)


def test_the_folder_is_not_listed_for_every_file_and_the_limit_still_holds(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[None] = []
    count = PayloadStore.total_bytes

    def counted(self: PayloadStore) -> int:
        listed.append(None)
        return count(self)
    monkeypatch.setattr(PayloadStore, "total_bytes", counted)
    store = PayloadStore(tmp_path, limit_bytes=100_000)
    for number in range(90):
        with store.partial(f"{number}", size_bytes=1000):
            pass
    assert len(listed) == 1
    with pytest.raises(DiskFull):
        store.partial("large", size_bytes=100_001)
    for number in range(10):
        store.partial(f"more {number}", size_bytes=10_000)
    with pytest.raises(DiskFull):
        store.partial("one more", size_bytes=1)
    store.drop_partial("more 3")
    store.partial("one more", size_bytes=10_000)


# In one piece ---------------------------------------------------------------------------------------------------------


def test_what_comes_in_one_piece_is_a_payload_at_once_and_leaves_nothing_beside(store: PayloadStore) -> None:
    synced: list[str] = []
    with mock.patch("semisilo.common.storage.store.sync_file", side_effect=lambda handle: synced.append("file")), \
            mock.patch("semisilo.common.storage.store.sync_folder", side_effect=lambda folder: synced.append("folder")):
        path = store.add_bytes(memoryview(CONTENT), DIGEST)
    assert (path, path.read_bytes()) == (store.path(DIGEST), CONTENT)
    assert synced == ["file", "folder"]
    assert incoming(store) == []


def test_one_piece_with_another_digest_is_refused_and_leaves_nothing(store: PayloadStore) -> None:
    with pytest.raises(BadPayload, match="SHA-256"):
        store.add_bytes(CONTENT[:-1], DIGEST)
    assert (store.digests(), incoming(store)) == (set(), [])


def test_one_piece_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "payloads", limit_bytes=len(CONTENT) - 1)
    with pytest.raises(DiskFull):
        store.add_bytes(CONTENT, DIGEST)
    assert (store.digests(), incoming(store)) == (set(), [])
    larger = PayloadStore(tmp_path / "others", limit_bytes=len(CONTENT))
    assert larger.add_bytes(CONTENT, DIGEST).is_file()


def test_a_disk_that_fills_up_under_one_piece_keeps_nothing_of_it(store: PayloadStore) -> None:
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "full"))
    with mock.patch("semisilo.common.storage.store.sync_file", full), pytest.raises(DiskFull):
        store.add_bytes(CONTENT, DIGEST)
    assert (store.digests(), incoming(store)) == (set(), [])


def test_where_a_transfer_goes_on_is_known_without_reading_only_while_nothing_of_it_has_come(
        store: PayloadStore) -> None:
    assert store.resume_offset("key") == 0
    with store.partial("key", size_bytes=len(CONTENT)) as partial:
        assert store.resume_offset("key") is None
        append(partial, 2000)
    assert store.resume_offset("key") is None
    store.drop_partial("key")
    assert store.resume_offset("key") == 0


def test_room_is_sure_only_once_the_folder_was_listed(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "payloads", limit_bytes=10 * len(CONTENT))
    assert not store.has_room(len(CONTENT))
    store.add_bytes(CONTENT, DIGEST)
    assert store.has_room(len(CONTENT))
    assert not store.has_room(10 * len(CONTENT))
    assert not PayloadStore(tmp_path / "payloads").has_room(2**62)


# What lasts -----------------------------------------------------------------------------------------------------------


def test_names_that_a_killed_process_has_given_are_on_the_disk_once_the_store_is_cleaned(store: PayloadStore) -> None:
    """It may have been killed after the rename and before it could wait for the folder."""
    with synced_paths() as synced:
        PayloadStore(store.folder).clean()
        PayloadStore(store.folder, durable=False).clean()
    assert synced == [str(store.folder)]


@pytest.mark.parametrize("in_one_piece", [True, False])
def test_a_payload_whose_name_the_disk_did_not_keep_is_there_and_does_not_last(store: PayloadStore,
                                                                              in_one_piece: bool) -> None:
    def add() -> None:
        if in_one_piece:
            store.add_bytes(CONTENT, DIGEST)
            return
        with store.partial("u", size_bytes=len(CONTENT)) as partial:
            append(partial, len(CONTENT))
            partial.finish(DIGEST)

    broken = mock.Mock(side_effect=OSError(errno.EIO, "broken"))
    with mock.patch("semisilo.common.storage.store.sync_folder", broken), pytest.raises(SystemTrouble):
        add()
    assert (store.has(DIGEST), store.lasts(DIGEST)) == (True, False)
    with mock.patch("semisilo.common.storage.store.sync_folder", broken), pytest.raises(SystemTrouble):
        store.make_last(DIGEST)
    assert not store.lasts(DIGEST)
    with synced_paths() as synced:
        store.make_last(DIGEST)
    assert (synced, store.lasts(DIGEST)) == ([str(store.folder)], True)


@pytest.mark.parametrize("kept_names", [(), (".part",)])
def test_what_the_disk_did_not_keep_comes_anew_for_it_would_say_the_next_time_that_it_has(
        store: PayloadStore, monkeypatch: pytest.MonkeyPatch, kept_names: tuple[str, ...]) -> None:
    """After fsync has failed Linux holds the pages for written; the second fsync says that all is well. Also where the
    same disk does not let go of the file."""
    dirty, unlink = set[int](), Path.unlink

    def pwrite(handle: int, data: bytes | memoryview, offset: int, real: Callable[..., int] = os.pwrite) -> int:
        dirty.update(range(offset, offset + len(data)) if os.readlink(f"/proc/self/fd/{handle}").endswith(".part")
                     else ())
        return real(handle, data, offset)

    def refuses(path: Path, missing_ok: bool = False) -> None:
        if path.suffix in kept_names:
            raise OSError(errno.EIO, "broken")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("os.pwrite", pwrite)
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, len(CONTENT))
    dirty.clear()  # as the system sees it
    with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), mock.patch.object(Path, "unlink", refuses), \
            partial, pytest.raises(SystemTrouble):
        partial.finish(DIGEST)
    assert [Path(name).suffix for name in incoming(store)] == list(kept_names)
    assert store.resume_offset("u") == (None if kept_names else 0)
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        assert partial.committed_bytes == 0
        append(partial, len(CONTENT))
        assert dirty == set(range(len(CONTENT)))
        assert partial.finish(DIGEST).read_bytes() == CONTENT


def test_what_was_added_lasts(store: PayloadStore) -> None:
    store.add_bytes(CONTENT, DIGEST)
    assert store.lasts(DIGEST)


# Partial files that are opened again ----------------------------------------------------------------------------------


def reads() -> AbstractContextManager[mock.Mock]:
    """Counts what is read of files."""
    return mock.patch("os.pread", mock.Mock(wraps=os.pread))


def test_a_partial_file_that_is_opened_again_is_not_read_again(store: PayloadStore) -> None:
    """A silo may ask as often as it likes how far its update has come."""
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        append(partial, 3000)
    with reads() as pread:
        for _ in range(3):
            with store.partial("u", size_bytes=len(CONTENT)) as partial:
                assert partial.committed_bytes == 3000
        with store.partial("u", size_bytes=len(CONTENT)) as partial:
            append(partial, len(CONTENT))
            assert partial.finish(DIGEST).read_bytes() == CONTENT
        assert pread.call_count == 0
        append(store.partial("v", size_bytes=len(CONTENT)), 3000)
        with PayloadStore(store.folder).partial("v", size_bytes=len(CONTENT)):  # another process knows nothing
            assert pread.call_count > 3
    assert incoming(store) == [part_file(store).name.replace(".part", ".journal"), part_file(store).name]


@pytest.mark.parametrize(("harm", "left"), [
    (lambda data: data[:2999], 2000), (lambda data: data + b"x", 3000),
    (lambda data: data[:2500] + b"\xff" + data[2501:], 2000), (lambda data: b"", 0)])
def test_a_partial_file_that_is_not_as_it_was_closed_is_read(store: PayloadStore, harm: Callable[[bytes], bytes],
                                                             left: int) -> None:
    with store.partial("u", size_bytes=len(CONTENT)) as partial:
        append(partial, 3000)
    path = part_file(store)
    os.utime(path, ns=(0, 0))  # whoever writes, changes it
    path.write_bytes(harm(path.read_bytes()))
    again = store.partial("u", size_bytes=len(CONTENT))
    assert again.committed_bytes == left == path.stat().st_size
    append(again, len(CONTENT))
    again.finish(DIGEST)


@pytest.mark.parametrize("call", ["pwrite", "replace"])
def test_a_partial_file_that_the_disk_has_refused_is_read_though_it_was_open(store: PayloadStore, call: str) -> None:
    """What was written and not kept, only reading tells."""
    partial = store.partial("u", size_bytes=len(CONTENT))
    append(partial, 3000 if call == "pwrite" else len(CONTENT))
    steps: dict[str, Callable[[], object]] = {"pwrite": lambda: append(partial, 4000),
                                              "replace": lambda: partial.finish(DIGEST)}
    with mock.patch(f"os.{call}", side_effect=OSError(errno.EIO, "broken")), pytest.raises(SystemTrouble):
        steps[call]()
    partial.close()
    with reads() as pread, store.partial("u", size_bytes=len(CONTENT)) as again:
        assert pread.call_count > 3
        append(again, len(CONTENT))
        again.finish(DIGEST)


def test_while_one_partial_file_is_read_nobody_else_waits(store: PayloadStore) -> None:
    """Nor the event loop, on which files are given up."""
    append(store.partial("large", size_bytes=len(CONTENT)), 3000)
    again, reading, may = PayloadStore(store.folder), threading.Event(), threading.Event()
    read = os.pread

    def slow(handle: int, size: int, offset: int) -> bytes:
        reading.set()
        assert may.wait(PATIENCE_SECONDS)
        return read(handle, size, offset)

    opened: list[PartialFile] = []
    with again.partial("small", size_bytes=100) as small, mock.patch("os.pread", slow):
        threads = [threading.Thread(target=lambda: opened.append(again.partial("large", size_bytes=len(CONTENT))))
                   for _ in range(3)]
        for thread in threads:
            thread.start()
        assert reading.wait(PATIENCE_SECONDS)
        try:
            others = threading.Thread(target=lambda: (small.__exit__(None, None, None),  # type: ignore[func-returns-value]
                                                      again.add_bytes(b"x", hashlib.sha256(b"x").hexdigest()),
                                                      again.drop_partial("small")))
            others.start()
            others.join(PATIENCE_SECONDS)
            assert not others.is_alive()
            assert again.digests() == {hashlib.sha256(b"x").hexdigest()}
        finally:
            may.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert [partial.committed_bytes for partial in opened] == [3000] * 3
    append(opened[-1], len(CONTENT))
    opened[-1].finish(DIGEST)
    assert again._turns == {}


def test_who_gives_a_file_up_does_not_wait_while_it_is_finished(store: PayloadStore) -> None:
    """A silo that hangs up at the last byte: the event loop must not wait for the disk."""
    partial, syncing, may = store.partial("u", size_bytes=len(CONTENT)), threading.Event(), threading.Event()
    append(partial, len(CONTENT))
    sync = os.fsync

    def slow(handle: int) -> None:
        syncing.set()
        assert may.wait(PATIENCE_SECONDS)
        sync(handle)

    with mock.patch("os.fsync", slow):
        finishing = threading.Thread(target=lambda: partial.finish(DIGEST))
        finishing.start()
        assert syncing.wait(PATIENCE_SECONDS)
        leaving = threading.Thread(target=lambda: partial.__exit__(None, None, None))
        leaving.start()
        leaving.join(PATIENCE_SECONDS)
        left = not leaving.is_alive()
        assert store._open, "it is still being finished, and a new opening must wait for that"
        may.set()
        finishing.join(PATIENCE_SECONDS)
    assert left
    assert (store.has(DIGEST), store._open, incoming(store)) == (True, {}, [])


def test_who_gives_a_file_up_while_a_chunk_is_written_leaves_it_closed_and_with_that_chunk(store: PayloadStore) -> None:
    partial, writing, may = store.partial("u", size_bytes=len(CONTENT)), threading.Event(), threading.Event()
    write = os.pwrite

    def slow(handle: int, data: bytes, offset: int) -> int:
        writing.set()
        assert may.wait(PATIENCE_SECONDS)
        return write(handle, data, offset)

    with mock.patch("os.pwrite", slow):
        appending = threading.Thread(target=lambda: append(partial, 1000))
        appending.start()
        assert writing.wait(PATIENCE_SECONDS)
        partial.__exit__(None, None, None)
        may.set()
        appending.join(PATIENCE_SECONDS)
    with pytest.raises(BadPayload, match="ended here"):
        append(partial, 2000)
    assert store._open == {}
    assert store.partial("u", size_bytes=len(CONTENT)).committed_bytes == 1000


def test_a_payload_that_somebody_else_has_just_removed_is_no_trouble(tmp_path: Path) -> None:
    """An update that came too late is removed by whoever notices first: its own upload, or the end of its round."""
    store = PayloadStore(tmp_path)
    assert store.recycle(store.path("0" * 64)) == 0
