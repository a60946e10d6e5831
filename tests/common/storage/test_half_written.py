"""What was left half-written goes while others work, and nothing else does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from semisilo.common.storage.durable import write_durably
from semisilo.common.storage.half_written import LEFT_SECONDS, remove_leftovers
from semisilo.common.storage.store import PayloadStore

NOW = time.time()
OLD = NOW - LEFT_SECONDS - 60


def _file(path: Path, *, unix: float = OLD) -> Path:
    path.write_bytes(b"half")
    os.utime(path, (unix, unix))
    return path


@pytest.mark.parametrize("name", [".memory.json.0123456789ab.tmp", ".0123456789abcdef.tmp", "..0123.tmp.x1_y.tmp",
                                  "status.json.4242.tmp", ".live.json.4242.tmp", "tmpab_12.temporary"])
def test_a_temporary_file_of_ours_goes_once_it_is_old_and_nobody_has_it_open(tmp_path: Path, name: str) -> None:
    path = _file(tmp_path / name)
    with path.open("rb"):
        assert remove_leftovers([tmp_path], now_unix=NOW) == 0, "somebody may be writing it"
    _file(path, unix=OLD + 120)
    assert remove_leftovers([tmp_path], now_unix=NOW) == 0, "somebody may be about to rename it"
    assert remove_leftovers([tmp_path], now_unix=NOW + 120) == 1
    assert not path.exists()


def test_nothing_else_goes(tmp_path: Path) -> None:
    kept = [_file(tmp_path / name) for name in ("scan.tmp", "notes.temporary.txt", "a" * 64, ".hidden", "x.part",
                                                "x.journal", "memory.json", "ledger.sqlite-wal")]
    (tmp_path / ".folder.tmp").mkdir()
    os.utime(tmp_path / ".folder.tmp", (OLD, OLD))
    (tmp_path / ".link.tmp").symlink_to(kept[0])
    assert remove_leftovers([tmp_path, tmp_path / "missing"]) == 0
    assert all(path.exists() for path in kept)


def test_the_names_are_those_that_files_are_written_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill before the renaming leaves."""
    with monkeypatch.context() as patched:
        patched.setattr("semisilo.common.storage.durable._replace", lambda temporary, path: None)
        write_durably(tmp_path / "memory.json", b"1")
    store = PayloadStore(tmp_path / "store")
    store.temporary()
    folders = (tmp_path, tmp_path / "store" / "incoming")
    assert remove_leftovers(folders, now_unix=time.time() + LEFT_SECONDS + 60) == 2
