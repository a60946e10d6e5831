"""A small file that is written about once a second for others to look at, such as what a process is doing.

Nothing depends on it, so it is not synchronised. Most of all it is looked at while something is in the way, and that is
often the very disk that it lies on: so where the system takes no new file, the one that is there is overwritten.

Tests: tests/common/storage/test_shown_file.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ShownFile"]

_BLOCK_BYTES = 4096
_SPARE_BYTES = 1024
"""At least so much more may be said than before: the blocks of the file are there already."""


class ShownFile:
    """A text file of which a reader sees the last whole version; while it is overwritten, rarely, a torn one."""

    def __init__(self, path: Path, *, temporary: Path | None = None, stays_open: bool = False) -> None:
        """
        Args:
            temporary: under which name a new version is written; beside `path`, of this process.
            stays_open: whether the file is to be written also where no more files can be opened; `close` it then.
        """
        self._path = path
        self._temporary = temporary or path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._stays_open = stays_open
        self._open: int | None = None

    def write(self, text: str, *, shorter: Sequence[str] = ()) -> None:
        """Replaces the file; it ends with spaces, which JSON allows.

        Args:
            shorter: what may be said instead, the first that fits, where only the file that is there can be written.
        Raises: OSError where that cannot be written either.
        """
        content = text.encode()
        try:
            self._replace(content.ljust(-(-(len(content) + _SPARE_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES))
        except OSError as error:
            if not self._overwrite([content, *(each.encode() for each in shorter)]):
                raise error from None

    def _replace(self, content: bytes) -> None:
        new = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            if os.write(new, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._temporary))
            os.replace(self._temporary, self._path)
        except BaseException:
            os.close(new)
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise
        if self._stays_open:
            self.close()
            self._open = new
        else:
            os.close(new)

    def _overwrite(self, contents: Sequence[bytes]) -> bool:
        """Within the bytes that the last version has; whether that could be done."""
        try:
            file = self._open if self._open is not None else os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                about = os.fstat(file)
                found = next((each for each in contents if len(each) <= about.st_size), None)
                if found is None or not about.st_nlink:
                    return False
                return os.pwrite(file, found.ljust(about.st_size), 0) == about.st_size
            finally:
                if file != self._open:
                    os.close(file)
        except OSError:
            return False

    def close(self) -> None:
        """Lets go of the file, which stays."""
        if self._open is not None:
            os.close(self._open)
            self._open = None
