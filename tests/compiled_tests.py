"""The compiled files of tests, made once: on a clean checkout every process of `pytest -n` would make all of them.

pytest rewrites the assertions of every test file, which takes as long as all imports together, and keeps the result.
All processes begin at the same time and go through the files in the same order, so that none finds what another keeps.
Here each of them first compiles its share.

Tests: tests/test_compiled_tests.py.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["compile_share", "is_compiled"]


def compile_share(config: pytest.Config) -> None:
    """In a process of `pytest -n`: compiles the test files that are its share of the folders it will go through."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{suffix}", "") for suffix in ("", "_COUNT"))
    if not worker.startswith("gw") or not count:
        return
    for file in _share(list(map(Path, config.args)), int(worker[2:]), int(count)):
        if not is_compiled(file):
            _compile(config, file)


def is_compiled(file: Path) -> bool:
    """Whether there is what pytest has made of a test file, be it of an earlier version of it."""
    return any(file.parent.glob(f"__pycache__/{file.stem}.*-pytest-*.pyc"))


def _share(folders: Sequence[Path], number: int, count: int) -> list[Path]:
    files = sorted(file for folder in folders if folder.is_dir() for file in folder.rglob("test_*.py"))
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
