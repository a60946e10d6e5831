"""Spare files: new payloads are written over old ones, and never contain anything of them."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from semisilo.common.errors import BadPayload
from semisilo.common.payload.cache import TensorCache
from semisilo.common.storage.store import SMALLEST_SPARE_BYTES, SPARE_SUFFIX, PayloadStore, SpareFiles

MIB = 2**20
OLD = b"old!" * (MIB // 2)
NEW = bytes(range(256)) * 6000
assert SMALLEST_SPARE_BYTES == MIB < len(NEW) < len(OLD) == 2 * MIB


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads", spare_files=2)


def add(store: PayloadStore, content: bytes) -> str:
    temporary = store.temporary()
    temporary.write_bytes(content)
    return store.add_file(temporary)


def spares(store: PayloadStore) -> list[Path]:
    return sorted((store.folder / "incoming").glob(f"*{SPARE_SUFFIX}"))


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def append(store: PayloadStore, start: int, end: int, *, content: bytes = NEW) -> int:
    """One stretch of a transfer; returns where it had to begin."""
    with store.partial("u", size_bytes=len(content)) as partial:
        found = partial.committed_bytes
        while partial.committed_bytes < end:
            data = content[partial.committed_bytes:min(partial.committed_bytes + 100_000, end)]
            partial.append(data, offset=partial.committed_bytes, crc32=zlib.crc32(data))
        if end == len(content):
            partial.finish(digest_of(content))
        assert found == start
        return found


def test_a_payload_that_goes_is_written_over_by_the_next_and_nothing_of_it_stays(store: PayloadStore) -> None:
    inode = store.path(add(store, OLD)).stat().st_ino
    assert store.collect(set()) == 0
    assert store.digests() == set()
    assert len(spares(store)) == 1
    append(store, 0, len(NEW))
    path = store.path(digest_of(NEW))
    assert (path.stat().st_ino, path.read_bytes()) == (inode, NEW)
    assert spares(store) == []


def test_a_transfer_over_a_spare_resumes_from_its_own_bytes_only(store: PayloadStore) -> None:
    """Opened without a byte (as by BeginUpdate), half way, and after a crash: what the spare holds never counts."""
    add(store, OLD)
    store.collect(set())
    append(store, 0, 0)
    append(store, 0, 800_000)
    again = PayloadStore(store.folder, spare_files=2)
    append(again, 800_000, len(NEW))
    assert again.path(digest_of(NEW)).read_bytes() == NEW


def test_a_journal_without_its_file_does_not_vouch_for_a_spare(store: PayloadStore) -> None:
    """The worst case: the spare holds just the bytes that the journal of a lost file describes."""
    append(store, 0, 1_000_000)
    [part] = (store.folder / "incoming").glob("*.part")
    part.unlink()
    add(store, NEW)
    store.collect(set())
    append(store, 0, len(NEW))


def test_a_spare_that_is_too_short_or_too_long_ends_with_the_right_size(store: PayloadStore) -> None:
    for old in (NEW[:-400_000], NEW + b"x" * 400_000):
        add(store, old)
        store.collect(set())
        append(store, 0, len(NEW))
        assert store.path(digest_of(NEW)).stat().st_size == len(NEW)
        store.path(digest_of(NEW)).unlink()


def test_a_spare_of_another_size_is_left_alone(store: PayloadStore) -> None:
    add(store, OLD)
    store.collect(set())
    for size in (len(OLD) // 2 - 1, 2 * len(OLD) + 1):
        with store.partial(f"{size}", size_bytes=size):
            assert len(spares(store)) == 1


@pytest.mark.parametrize("how", ["open", "mapped", "another process"])
def test_what_somebody_still_reads_is_not_written_over(store: PayloadStore, how: str) -> None:
    path = store.path(add(store, OLD))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = subprocess.Popen([sys.executable, "-c", "import sys; file = open(sys.argv[1], 'rb'); print(flush=True);"
                               "input()", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    reader.stdout.readline()
    handle = os.open(path, os.O_RDONLY)
    if how != "mapped":
        mapped.close()
    if how != "another process":
        reader.communicate(b"\n")
    if how != "open":
        os.close(handle)
    store.collect(set())
    append(store, 0, len(NEW))
    [spare] = spares(store)
    assert spare.read_bytes() == OLD
    if how == "mapped":
        assert bytes(mapped) == OLD
        mapped.close()
    elif how == "open":
        assert os.read(handle, len(OLD)) == OLD
        os.close(handle)
    else:
        reader.communicate(b"\n")
    store.path(digest_of(NEW)).unlink()
    append(store, 0, len(NEW))  # the control: now it is taken
    assert spares(store) == []


def test_at_most_so_many_are_kept_and_small_ones_are_not(store: PayloadStore) -> None:
    for number in range(4):
        add(store, OLD + bytes([number]))
    add(store, b"small")
    assert store.collect(set()) == 2 * len(OLD) + 2 + len(b"small")
    assert len(spares(store)) == 2
    PayloadStore(store.folder, spare_files=1).clean()
    assert len(spares(store)) == 1
    PayloadStore(store.folder).clean()
    assert spares(store) == []


def test_a_model_that_comes_in_every_round_is_written_over_one_that_went(tmp_path: Path) -> None:
    """As a silo's: every payload is a tensor group as well, under a second name that stays for one more round."""
    store = PayloadStore(tmp_path, spare_files=1, durable=False)
    cache = TensorCache(store)
    models = [NEW + bytes([number]) for number in range(8)]
    digests = [digest_of(model) for model in models]
    for number, digest in enumerate(digests):
        assert len(spares(store)) == (number >= 3)
        append(store, 0, len(models[number]), content=models[number])
        assert not spares(store), "it was taken"
        assert store.collect({digest}) == 0, "nothing is free yet: the tensor group has its bytes"
        if number >= 2:
            cache.drop(digests[number - 2])
        cache.put(digest, store.path(digest))
        assert [cache.path(each).read_bytes() for each in digests[max(0, number - 1):number + 1]] == models[
            max(0, number - 1):number + 1]


def test_a_store_keeps_none_unless_it_is_told_to(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path)
    add(store, OLD)
    assert store.collect(set()) == len(OLD)
    assert spares(store) == []


def test_spares_count_and_go_when_there_is_no_room(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, limit_bytes=5 * MIB, spare_files=2)
    for number in range(2):
        add(store, OLD + bytes([number]))
    store.collect(set())
    assert store.total_bytes() == 2 * len(OLD) + 2
    with store.partial("large", size_bytes=5 * MIB):  # does not fit a spare, and not beside both
        assert spares(store) == []


def test_spares_go_when_asked(store: PayloadStore) -> None:
    add(store, OLD)
    store.collect(set())
    assert store.drop_spares() == len(OLD)
    assert spares(store) == []


def test_a_wrong_digest_over_a_spare_leaves_nothing(store: PayloadStore) -> None:
    add(store, OLD)
    store.collect(set())
    with store.partial("u", size_bytes=len(NEW)) as partial:
        for offset in range(0, len(NEW), MIB):
            data = NEW[offset:offset + MIB]
            partial.append(data, offset=offset, crc32=zlib.crc32(data))
        with pytest.raises(BadPayload, match="SHA-256"):
            partial.finish("0" * 64)
    assert list((store.folder / "incoming").iterdir()) == []


def test_a_writer_may_ask_for_a_spare_to_write_over(store: PayloadStore) -> None:
    add(store, OLD)
    store.collect(set())
    assert store.temporary(expected_bytes=len(OLD)).stat().st_size == len(OLD)
    assert store.temporary(expected_bytes=len(OLD)).stat().st_size == 0
    assert SpareFiles(store.folder / "incoming", 2).take(store.folder / "x", len(OLD)) is False
