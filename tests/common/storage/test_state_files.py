"""State files: called by their digest, whole or not there, checked on every load."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from semisilo.common.errors import DiskFull, StorageDamaged
from semisilo.common.storage.state_files import STATE_ENDING, StateFiles
from semisilo.common.storage.store import hash_file


@dataclass(frozen=True)
class State:
    round: int
    w: dict[str, torch.Tensor]
    buffer: dict[str, torch.Tensor] | None


STATE = State(round=3, w={"b": torch.arange(5.0), "a": torch.tensor([-0.0])}, buffer=None)


def test_a_state_is_called_by_the_digest_of_its_file_and_comes_back_bit_for_bit(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "states")
    digest = files.save(STATE)
    assert hash_file(files.path(digest)) == digest
    loaded = files.load(digest, State)
    assert (loaded.round, list(loaded.w), loaded.buffer) == (3, ["b", "a"], None)
    assert torch.equal(loaded.w["b"], STATE.w["b"])
    assert torch.signbit(loaded.w["a"]).item()


def test_equal_states_are_one_file_and_different_ones_are_not(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    first = files.save(STATE)
    assert {files.save(State(3, {name: tensor.clone() for name, tensor in STATE.w.items()}, None))
            for _ in range(20)} == {first}
    assert files.save(State(4, STATE.w, None)) != first
    assert len(list(tmp_path.glob(f"*{STATE_ENDING}"))) == 2


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    digest = files.save(STATE)
    content = bytearray(files.path(digest).read_bytes())
    content[-1] ^= 1
    files.path(digest).write_bytes(content)
    with pytest.raises(StorageDamaged, match="damaged") as caught:
        files.load(digest, State)
    assert digest in caught.value.text
    files.path(digest).unlink()
    with pytest.raises(StorageDamaged, match="missing"):
        files.load(digest, State)


def test_a_write_that_fails_leaves_nothing_and_what_a_crash_left_is_cleaned(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StateFiles(tmp_path)
    digest = files.save(STATE)
    with monkeypatch.context() as patch:
        patch.setattr("semisilo.common.storage.checkpoint.os.fsync",
                      lambda file: (_ for _ in ()).throw(OSError("disk gone")))
        with pytest.raises(OSError, match="disk gone"):
            files.save(State(5, {}, None))
        patch.setattr("semisilo.common.storage.checkpoint.os.fsync",
                      lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(DiskFull) as full:
            files.save(State(5, {}, None))
        assert full.value.text == f"{tmp_path}: No space left on device."
    assert [path.name for path in tmp_path.iterdir()] == [f"{digest}{STATE_ENDING}"]
    (tmp_path / ".0011.tmp").write_bytes(b"half")
    files.clean()
    assert [path.name for path in tmp_path.iterdir()] == [f"{digest}{STATE_ENDING}"]
