"""Compiled files, made once: on a clean checkout every process of `pytest -n` would make all of them.

pytest rewrites the assertions of every test file, which takes as long as all imports together, and keeps the result; so
does Python for the program's own files. All processes begin at the same time and go through the files in the same
order, so that none finds what another keeps. Here each of them first compiles its share.

Tests: tests/test_compiled_tests.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["compile_share", "is_compiled"]

_PROGRAM = ("common", "coordinator", "silo", "semisilo")
"""Below the root; the links in semisilo/ lead to the first three and are not followed."""


def compile_share(config: pytest.Config) -> None:
    """In a process of `pytest -n`: compiles its share of the program, and of the test files in the folders it will go
    through."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{suffix}", "") for suffix in ("", "_COUNT"))
    if not worker.startswith("gw") or not count:
        return
    number, all_of_them = int(worker[2:]), int(count)
    for file in _share([config.rootpath / package for package in _PROGRAM], "*.py", number, all_of_them):
        with contextlib.suppress(OSError, ValueError):  # where it cannot be kept: then importing does it again
            if not os.path.exists(importlib.util.cache_from_source(str(file))):
                py_compile.compile(str(file), quiet=2)
    for file in _share(list(map(Path, config.args)), "test_*.py", number, all_of_them):
        if not is_compiled(file):
            _compile(config, file)


def is_compiled(file: Path) -> bool:
    """Whether there is what pytest has made of a test file, be it of an earlier version of it."""
    return any(file.parent.glob(f"__pycache__/{file.stem}.*-pytest-*.pyc"))


def _share(folders: Sequence[Path], pattern: str, number: int, count: int) -> list[Path]:
    files = sorted(file for folder in folders if folder.is_dir() for file in folder.rglob(pattern))
    return files[number::count]


class _CompiledAndNotRun(Exception):
    pass


class _Unrun:
    """A module as far as an importer needs it until it would run its code."""

    def __init__(self, file: Path, loader: Any) -> None:
        self.__name__ = file.stem
        self.__spec__ = importlib.util.spec_from_file_location(file.stem, file, loader=loader)

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise _CompiledAndNotRun


def _compile(config: pytest.Config, file: Path) -> None:
    hook: Any = config.pluginmanager.rewrite_hook
    try:
        hook.exec_module(_Unrun(file, hook))
    except Exception:  # where pytest does it in another way, or cannot: it will say so when it collects the file
        return
