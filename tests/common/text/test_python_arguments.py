"""Arguments of calls from Python: what is taken, and what is wrong in one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from semisilo.common.errors import UsageError
from semisilo.common.text.python_arguments import (
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
