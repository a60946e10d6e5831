"""What a process waits for the disk for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

__all__ = ["synced_paths"]


@contextmanager
def synced_paths() -> Iterator[list[str]]:
    """The files and folders that are synchronised meanwhile, in order."""
    paths: list[str] = []
    with mock.patch("os.fsync", lambda handle: paths.append(os.readlink(f"/proc/self/fd/{handle}"))):
        yield paths
