"""Finished files that nobody needs any more, kept to be written over by the next ones.

The system has to find and clear a page of memory for every 4 KiB of a new file, and does not for bytes that replace
others: 100 MB take 0.09 to 0.27 s to write into a new file and 0.01 s into an old one (measured). What a spare holds is
never read again: whoever takes one goes by its own account of what it has written, and cuts the rest off.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["SMALLEST_SPARE_BYTES", "SPARE_SUFFIX", "SpareFiles"]

SPARE_SUFFIX = ".spare"
SMALLEST_SPARE_BYTES = 2**20
"""Smaller files are written anew: there is little to gain."""


class SpareFiles:
    """At most `limit` files `*.spare` in a folder. Several processes may take from it; their renames decide."""

    def __init__(self, folder: Path, limit: int) -> None:
        """
        Args:
            folder: on the disk of the files that come and go.
            limit: most files that are kept; 0 for none.
        """
        self.limit = limit
        self._folder = folder

    def add(self, path: Path) -> bool:
        """Keeps a file as a spare, under another name; False, with nothing changed, when there is no use for it."""
        if path.stat().st_size < SMALLEST_SPARE_BYTES or len(list(self._files())) >= self.limit:
            return False
        os.replace(path, self._folder / f"{path.name}{SPARE_SUFFIX}")
        return True

    def take(self, target: Path, size_bytes: int) -> bool:
        """Renames the spare that fits best to `target`; False when none fits or somebody still has it open.

        Args:
            target: on the same disk; what is there is replaced.
            size_bytes: what is going to be written; a spare of half to twice that size fits.
        """
        if not self.limit or size_bytes < SMALLEST_SPARE_BYTES:
            return False
        for size, path in sorted(self._files(), key=lambda each: abs(each[0] - size_bytes)):
            if size_bytes <= 2 * size <= 4 * size_bytes and _nobody_has_open(path):
                with suppress(FileNotFoundError):  # another process was quicker
                    os.replace(path, target)
                    return True
        return False

    def drop(self, *, keep: int = 0) -> int:
        """Removes spares until `keep` are left; returns the bytes that became free."""
        freed = 0
        for size, path in list(self._files())[keep:]:
            with suppress(FileNotFoundError):
                path.unlink()
                freed += size
        return freed

    def _files(self) -> Iterator[tuple[int, Path]]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(SPARE_SUFFIX):
                    with suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False).st_size, Path(entry.path)


def _nobody_has_open(path: Path) -> bool:
    """Whether no process reads or maps the file: asked of the kernel, which grants a write lease only then.

    A reader that opened the file while it was a payload keeps what it began to read, as it does after an unlink.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Who opens it in this instant waits, and this process is told so by a signal; by default one that kills.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return os.fstat(handle).st_nlink == 1
    except OSError:
        return False
    finally:
        os.close(handle)
