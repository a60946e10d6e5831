"""Temporary files that a process has left half-written when it was killed: found by their names, and removed while
others go on working.

A compute process that is aborted is killed, so they come up in the middle of a study as well; a service that runs for
weeks must not fill its disk with them.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["LEFT_SECONDS", "nobody_has_open", "remove_leftovers"]

LEFT_SECONDS = 3600.0
"""A temporary file that nobody has touched for so long is left over; the largest is written in minutes."""
_TEMPORARY = re.compile(r"\..*\.tmp|.*\.json\.\d+\.tmp|\w+\.temporary")


def remove_leftovers(folders: Iterable[Path], *, now_unix: float | None = None) -> int:
    """Removes the temporary files in some folders, not below them, that are `LEFT_SECONDS` old and that nobody has
    open; returns how many. What cannot be removed, or asked about, stays for the next time.

    Args:
        folders: any of them may be missing.
        now_unix: None for the present.
    """
    now, removed = time.time() if now_unix is None else now_unix, 0
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) \
                            and now - entry.stat(follow_symlinks=False).st_mtime > LEFT_SECONDS \
                            and nobody_has_open(Path(entry.path)):
                        os.unlink(entry.path)
                        removed += 1
    return removed


def nobody_has_open(path: Path) -> bool:
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
