"""A lock on a file that a process holds while it runs. The kernel lets go of it when the process ends, however it ends.

Tests: tests/common/storage/test_lock_file.py.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

__all__ = ["LOCK_SECONDS", "is_locked", "lock_soon"]

LOCK_SECONDS = 0.5
"""How long `lock_soon` tries."""


def lock_soon(handle: int) -> bool:
    """Takes the lock of an open file. Tries for a moment: who asks `is_locked` holds it for as long as a glance takes.

    Returns: False when another process has it.
    Raises: OSError where the file system has no locks.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        else:
            return True
        time.sleep(LOCK_SECONDS / 10)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; False where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
