"""Frozen dataclasses with tensors as files that are called by their digest: states of strategies, memory of trainers.

A light process may import this: torch is loaded by the first `save` or `load`, which only compute processes call.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, TypeVar

from semisilo.common.errors import StorageDamaged
from semisilo.common.storage.durable import sync_folder
from semisilo.common.storage.store import hash_file

__all__ = ["STATE_ENDING", "StateFiles"]

T = TypeVar("T")

STATE_ENDING = ".safetensors"
"""A file is called by its SHA-256 and this."""


class StateFiles:
    """The files of one folder. Equal states are one file; a file is there wholly or not at all, and never changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where the file of a digest lies, or would lie."""
        return self.folder / f"{digest}{STATE_ENDING}"

    def clean(self) -> None:
        """Removes what a crash has left half-written. To be called before anyone writes."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def save(self, state: Any) -> str:
        """Writes a state durably; returns the SHA-256 of its file, hex."""
        from semisilo.common.storage.checkpoint import save

        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{secrets.token_hex(8)}.tmp"
        try:
            digest = save(temporary, state, named=False)
            os.replace(temporary, self.path(digest))
            sync_folder(self.folder)
        finally:
            temporary.unlink(missing_ok=True)
        return digest

    def load(self, digest: str, cls: type[T]) -> T:
        """Reads a state after checking every byte.

        Raises: StorageDamaged when the file is missing or does not have its digest.
        """
        from semisilo.common.storage.checkpoint import load

        path = self.path(digest)
        try:
            found = hash_file(path)
        except FileNotFoundError:
            raise StorageDamaged(f"The state file {path} is missing.", remedy="Restore it from a backup.") from None
        if found != digest:
            raise StorageDamaged(f"The state file {path} is damaged: its SHA-256 is {found}.",
                                 remedy="Check the disk, then restore the file from a backup.")
        return load(path, cls)
