"""Tensor groups on disk, by the digest of their tensors: what the next payload may be coded against.

A file is a payload of one group that stands alone; where possible it is a hard link to the payload that came or went.
Nothing here needs to last: what is lost is sent whole. So nothing is synced, and a reader checks what comes out.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from common.errors import BadPayload
from common.store import PayloadStore

__all__ = ["TensorCache"]

_HEX_DIGITS = frozenset("0123456789abcdef")


class TensorCache:
    """The files in the folder "tensors" of a payload store. Several processes may use it."""

    def __init__(self, store: PayloadStore) -> None:
        """Opens the cache of a store, and makes its folder."""
        self.folder = store.folder / "tensors"
        self._store = store
        self.folder.mkdir(exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the tensors of a digest lie, or would lie. Raises: BadPayload for what is no SHA-256 in hex."""
        if len(digest) != 64 or not _HEX_DIGITS.issuperset(digest):
            raise BadPayload(f"{digest[:80]!r} is not a SHA-256 in hex.")
        return self.folder / digest

    def find(self, digest: str) -> Path | None:
        """The payload file of a digest, or None."""
        path = self.path(digest)
        return path if path.is_file() else None

    def digests(self) -> list[str]:
        """What is there, the newest first."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if len(entry.name) == 64 and _HEX_DIGITS.issuperset(entry.name):
                    with suppress(FileNotFoundError):
                        found.append((entry.stat().st_mtime_ns, entry.name))
        return [name for _, name in sorted(found, reverse=True)]

    def put(self, digest: str, payload: Path) -> None:
        """Takes in a payload file of one group that stands alone, as a link; it is the newest then.

        It takes the place of what was there, which may be damaged.
        """
        path = self.path(digest)
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):
            os.link(payload, path)
        os.utime(path)

    def drop(self, digest: str) -> None:
        """Forgets what is of no use any more, or has turned out to be damaged."""
        with suppress(FileNotFoundError):
            self._store.recycle(self.path(digest))

    def collect(self, keep: Collection[str], *, spare: int) -> None:
        """Removes all but `keep` and the `spare` newest others."""
        others = [digest for digest in self.digests() if digest not in keep]
        for digest in others[spare:]:
            self.drop(digest)
