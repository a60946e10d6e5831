"""Tensor groups on disk, by the digest of their tensors: what the next payload may be coded against.

A file is a payload of one group that stands alone; where possible it is a hard link to the payload that came or went.
Nothing here needs to last: what is lost is sent whole. So nothing is synced, and a reader checks what comes out.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from semisilo.common.errors import BadPayload
from semisilo.common.payload.reader import read_manifest
from semisilo.common.storage.store import PayloadStore

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
        now = time.time_ns()  # a disk's own clock may not tell two files apart
        os.utime(path, ns=(now, now))

    def drop(self, digest: str) -> None:
        """Forgets what is of no use any more, or has turned out to be damaged."""
        with suppress(FileNotFoundError):
            self._store.recycle(self.path(digest))

    def collect(self, keep: Collection[str], *, spare: int, of_each_name: int | None = None) -> None:
        """Removes all but `keep` and the `spare` newest others.

        Args:
            of_each_name: spares are the newest of their name of a tensor group, at most so many, those in `keep`
                counted; numbered groups share a name. So a group that comes with every task does not push out one that
                comes seldom.
        """
        found = self.digests()
        spares = [digest for digest in found if digest not in keep]
        if of_each_name is not None:
            seen = Counter(self._group_name(digest) for digest in found if digest in keep)
            newest = []
            for digest in spares:
                name = self._group_name(digest)
                seen[name] += 1
                if seen[name] <= of_each_name:
                    newest.append(digest)
            spares = newest
        for digest in set(found).difference(keep, spares[:spare]):
            self.drop(digest)

    def _group_name(self, digest: str) -> str:
        """What the file calls its group, without a number; nothing for one that is damaged."""
        try:
            name = read_manifest(self.path(digest))[0].name
        except (OSError, BadPayload, IndexError):
            return ""
        stem, slash, number = name.rpartition("/")
        return stem if slash and number.isdigit() else name
