"""Tensor groups on disk by the digest of their tensors: what is found, what is kept, what is let go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import TensorGroup
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.storage.store import PayloadStore

A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def cache(tmp_path: Path) -> TensorCache:
    return TensorCache(PayloadStore(tmp_path / "store"))


def file(folder: Path) -> Path:
    """A new file, not one that the cache has a link to."""
    path = folder / f"payload{len(list(folder.iterdir()))}"
    path.write_bytes(b"payload")
    return path


def put_in_order(cache: TensorCache, folder: Path, *digests: str) -> None:
    """The last is the newest, whatever the clock of the disk can tell apart."""
    for number, digest in enumerate(digests):
        cache.put(digest, file(folder))
        os.utime(cache.path(digest), ns=(10**18 + number, 10**18 + number))


def test_what_was_put_in_is_found_after_its_payload_is_gone(cache: TensorCache, tmp_path: Path) -> None:
    assert cache.find(A) is None
    payload = file(tmp_path)
    cache.put(A, payload)
    found = cache.find(A)
    assert found is not None
    assert os.path.samefile(found, payload), "a link, not a copy"
    payload.unlink()
    assert found.read_bytes() == b"payload"
    assert TensorCache(PayloadStore(cache.folder.parent)).digests() == [A], "another process sees it too"


def test_what_is_put_in_again_replaces_what_was_damaged_and_is_the_newest(cache: TensorCache, tmp_path: Path) -> None:
    put_in_order(cache, tmp_path, A, B)
    path = cache.path(A)
    path.unlink()
    path.write_bytes(b"damaged")
    cache.put(A, file(tmp_path))
    assert path.read_bytes() == b"payload"
    assert cache.digests() == [A, B]


def test_the_newest_comes_first_and_other_files_are_not_ours(cache: TensorCache, tmp_path: Path) -> None:
    put_in_order(cache, tmp_path, B, C, A)
    (cache.folder / "notes").write_text("x")
    (cache.folder / ("g" * 64)).write_text("x")
    assert cache.digests() == [A, C, B]
    cache.collect((), spare=0)
    assert {path.name for path in cache.folder.iterdir()} == {"notes", "g" * 64}


def test_only_what_is_named_and_the_newest_others_stay(cache: TensorCache, tmp_path: Path) -> None:
    put_in_order(cache, tmp_path, A, B, C, D)
    cache.collect({A, "", "0" * 64}, spare=1)
    assert cache.digests() == [D, A]
    cache.collect({A, D}, spare=0)
    assert cache.digests() == [D, A]


def test_what_is_dropped_is_gone_and_may_be_dropped_again(cache: TensorCache, tmp_path: Path) -> None:
    cache.put(A, file(tmp_path))
    cache.drop(A)
    cache.drop(A)
    assert cache.find(A) is None


@pytest.mark.parametrize("digest", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 65, "/" * 64])
def test_a_name_that_is_no_digest_never_becomes_a_path(cache: TensorCache, tmp_path: Path, digest: str) -> None:
    payload = file(tmp_path)
    for action in (cache.path, cache.find, cache.drop):
        with pytest.raises(BadPayload, match="not a SHA-256"):
            action(digest)
    with pytest.raises(BadPayload, match="not a SHA-256"):
        cache.put(digest, payload)
    assert cache.digests() == []


def group_file(store: PayloadStore, name: str, value: float) -> Path:
    return store.path(encode_groups(store, {name: TensorGroup({"w": torch.full((3,), value)})}).digest)


@pytest.mark.parametrize(("of_each_name", "stays"), [(1, True), (None, False)], ids=["by name", "by age alone"])
def test_a_group_that_comes_often_does_not_push_out_one_that_comes_seldom(
        tmp_path: Path, of_each_name: int | None, stays: bool) -> None:
    """As with a silo that is asked for statistics of a new model in every round, and seldom to train."""
    store = PayloadStore(tmp_path / "store")
    cache = TensorCache(store)
    sent, made = (f"{number:064x}" for number in (1, 2))
    cache.put(sent, group_file(store, "psi", 1.0))
    cache.put(made, group_file(store, "psi", 2.0))
    last = ""
    for number in range(10, 20):
        digest = f"{number:064x}"
        cache.collect({digest, last}, spare=4, of_each_name=of_each_name)
        cache.put(digest, group_file(store, "model", float(number)))
        last = digest
    assert (made in cache.digests()) is stays
    assert sent not in cache.digests()
    assert len(cache.digests()) <= (3 if of_each_name else 6)


def test_of_each_name_the_newest_stay_and_numbered_groups_share_theirs(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "store")
    cache = TensorCache(store)
    names = ["helper_psi/0", "sigma", "helper_psi/1", "sigma", "helper_psi/12", "psi", "sigma"]
    for number, name in enumerate(names):
        cache.put(f"{number:064x}", group_file(store, name, float(number)))
    damaged = "f" * 64
    cache.put(damaged, file(tmp_path))

    def left() -> list[int]:
        return [int(digest, 16) for digest in cache.digests() if digest != damaged]

    cache.collect((), spare=12, of_each_name=2)
    assert left() == [6, 5, 4, 3, 2]
    cache.collect({f"{3:064x}"}, spare=12, of_each_name=1)
    assert left() == [5, 4, 3], "the older sigma is needed, and counts"
    cache.collect((), spare=2, of_each_name=1)
    assert cache.digests() == [damaged, f"{5:064x}"], "by age, what is damaged among them"


def test_of_two_files_that_are_put_in_at_once_the_second_is_newer(cache: TensorCache, tmp_path: Path) -> None:
    for number in range(50):
        cache.put(f"{number:064x}", file(tmp_path))
        assert cache.digests()[0] == f"{number:064x}"
