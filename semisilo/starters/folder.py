"""Writes the files of a starter into a new folder.

Tests: tests/semisilo/starters/test_project.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from semisilo.common.errors import UsageError

__all__ = ["write_files"]


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes texts below a folder that is new or empty.

    Args:
        files: path within the folder -> text.
    Raises: UsageError when something is there already, or the folder cannot be made.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder}: is there already, and not empty.", remedy="Choose another name.")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}.",
                         remedy="Choose a place where you may write.") from None
