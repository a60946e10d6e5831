"""Arguments of calls from Python: what is taken, and what is wrong in one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from semisilo.common.errors import UsageError
from semisilo.common.text.python_arguments import (
    checked_folder,
    checked_function,
    checked_path,
    checked_texts,
    checked_whole,
    checked_yes_or_no,
)
from tests.each_of import each_of


def function(value: Any, where: str) -> object:
    return checked_function(value, where, takes="a share and a text")


def texts(value: Any, where: str) -> object:
    return checked_texts(value, where, example="onnx")


@each_of(("check", "value", "taken"), [
    (checked_path, "runs/a", Path("runs/a")), (checked_path, Path("a"), Path("a")),
    (checked_path, PurePosixPath("a"), Path("a")), (checked_path, ".", Path(".")),
    (checked_path, "~/runs", Path.home() / "runs"), (checked_path, Path("~"), Path.home()),
    (checked_path, "~nobody-has-this-name/a", Path("~nobody-has-this-name/a")), (checked_path, "a/~", Path("a/~")),
    (checked_yes_or_no, True, True), (checked_yes_or_no, False, False), (checked_yes_or_no, 1, True),
    (checked_yes_or_no, 0, False), (checked_yes_or_no, np.True_, True), (checked_yes_or_no, np.False_, False),
    (checked_whole, 250, 250), (checked_whole, np.int64(3), 3), (checked_whole, np.array(3), 3),
    (texts, "onnx", ("onnx",)), (texts, ["a", "b"], ("a", "b")), (texts, (), ()), (texts, {"a"}, ("a",)),
    (function, print, print), (function, None, None)])
def test_what_fits_is_taken(check: Callable[[Any, str], object], value: Any, taken: object) -> None:
    found = check(value, "out")
    assert (found, type(found)) == (taken, type(taken))


@each_of(("check", "value"), [
    (checked_path, 3), (checked_path, None), (checked_path, b"a"), (checked_path, ""), (checked_path, ["a"]),
    (checked_path, "a\0b"), (checked_folder, 3), (checked_folder, ""),
    (checked_yes_or_no, "no"), (checked_yes_or_no, None), (checked_yes_or_no, 2), (checked_yes_or_no, 0.0),
    (checked_yes_or_no, np.array([True])),
    (checked_whole, 0), (checked_whole, -3), (checked_whole, 2.5), (checked_whole, "3"), (checked_whole, True),
    (checked_whole, None), (checked_whole, np.array([3, 4])), (checked_whole, np.float64(3)),
    (texts, 3), (texts, None), (texts, [3]), (texts, np.array(["a"])),
    (function, True), (function, "print"), (checked_path, {"long": "x" * 500})])
def test_what_does_not_is_refused_by_the_name_of_the_argument(check: Callable[[Any, str], object], value: Any) -> None:
    with pytest.raises(UsageError, match=r"^out = .*: must be ") as caught:
        check(value, "out")
    assert "\n" not in caught.value.line()
    assert len(caught.value.text) < 160
    assert caught.value.remedy


def test_a_folder_to_write_into_may_be_new_and_is_no_file_and_not_below_one(tmp_path: Path, monkeypatch:
                                                                            pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for taken in ("there", "there/a/b", "new", tmp_path / "new" / "a"):
        assert checked_folder(taken, "out") == Path(taken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "there"]
    for refused, says in (("file", "file is not a folder"), ("file/a/b", "file is not a folder"),
                          ("link", "link is not a folder"), ("x" * 300, "File name too long")):
        with pytest.raises(UsageError, match=rf"^out = .*: .*{says}") as caught:
            checked_folder(refused, "out")
        assert caught.value.remedy == "Choose another folder."
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path / "there")
    with pytest.raises(UsageError, match=r"may not write into .*there"):
        checked_folder("there/a", "out")
