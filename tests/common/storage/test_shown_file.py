"""What is looked at while something is in the way is written also where the disk takes no new file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.storage.shown_file import ShownFile


def refusing(monkeypatch: pytest.MonkeyPatch, what: str, number: int, *, flags: int = 0) -> None:
    """From now on a function of the system fails; `open` only for flags that have one of these, if some are given."""
    original = getattr(os, what)

    def function(*args: Any, **options: Any) -> Any:
        if not flags or args[1] & flags:
            raise OSError(number, os.strerror(number))
        return original(*args, **options)

    monkeypatch.setattr(os, what, function)


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    file = ShownFile(path)
    for text in ("one", "two", "x" * 5000, "three"):
        file.write(text)
        assert path.read_text().rstrip(" ") == text
        assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
    assert not stat.S_IMODE(path.stat().st_mode) & 0o111


@pytest.mark.parametrize("stays_open", [False, True])
@pytest.mark.parametrize("what", ["open", "write", "replace"])
def test_where_the_disk_takes_no_new_file_the_one_that_is_there_is_overwritten(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, stays_open: bool) -> None:
    path = tmp_path / "live.json"
    file = ShownFile(path, stays_open=stays_open)
    file.write("all is well")
    number = path.stat().st_ino
    with monkeypatch.context() as patch:
        refusing(patch, what, errno.ENOSPC, flags=os.O_CREAT if what == "open" else 0)
        file.write("the disk is full, which takes more letters")
        assert path.read_text().rstrip(" ") == "the disk is full, which takes more letters"
        file.write("short")
        assert path.read_text().rstrip(" ") == "short"
        file.write("x" * 9000, shorter=("y" * 8000, "what fits", "less"))
        assert path.read_text().rstrip(" ") == "what fits"
        with pytest.raises(OSError, match="No space left"):
            file.write("x" * 9000)
        assert path.read_text().rstrip(" ") == "what fits"
        assert path.stat().st_ino == number
        assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
    file.write("well again")
    assert path.read_text().rstrip(" ") == "well again"


def test_where_no_file_can_be_opened_the_open_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "live.json"
    file, other = ShownFile(path, stays_open=True), ShownFile(tmp_path / "other.json", stays_open=True)
    file.write("all is well")
    other.write("all is well")
    (tmp_path / "other.json").unlink()
    with monkeypatch.context() as patch:
        refusing(patch, "open", errno.EMFILE)
        file.write("too many")
        assert path.stat().st_size == 4096
        for refused in (other, ShownFile(path)):
            with pytest.raises(OSError, match="Too many open files"):
                refused.write("nobody would read it")
    assert path.read_text().rstrip(" ") == "too many"
    file.close()
    file.close()
