"""Where decoded squares lie: in memory, or, where they are too many for it, in a file that has no name.

The file is mapped into memory, so that whoever takes images from it reads what is needed from the disk, and the system
keeps as much of it in memory as is free. It has no name from its first byte on: nobody else can open it, no other run
ever takes stale images for current ones, and its space is free again when the images are no longer used or the process
ends, however it ends.

Shapes: N images, C channels, S side of the square.

Tests: tests/common/data/test_squares.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data import room
from semisilo.common.errors import BadData
from semisilo.common.text.describe import describe_bytes

__all__ = ["SHARE_OF_MEMORY", "Squares", "disk_for"]

SHARE_OF_MEMORY = 0.5
"""Of what is free: the rest is for training, and for what else the machine does."""
_SPARE_DISK_BYTES = 2**30
"""What stays free on the disk: updates and models must still fit."""
_REMEDY = "Use fewer images here, a smaller image size in the study, or a machine with more memory."


def disk_for(needed_bytes: int, *, what: str, disk: Path | None) -> Path | None:
    """Where squares go: None for memory, or the folder on whose disk they fit.

    Memory it is when they take at most half of what is free, and also when they cannot lie on a disk but just fit.
    Args:
        what: what they are, for the message.
        disk: the folder; None where they must not lie on a disk.
    Raises: BadData when they fit neither into memory nor onto the disk.
    """
    free = room.free_bytes()
    if free is None or needed_bytes <= SHARE_OF_MEMORY * free:
        return None
    on_disk = 0
    if disk is not None:
        disk.mkdir(parents=True, exist_ok=True, mode=0o700)
        on_disk = max(0, shutil.disk_usage(disk).free - _SPARE_DISK_BYTES)
        if needed_bytes <= on_disk:
            return disk
    if needed_bytes <= free:
        return None
    also = "" if disk is None else f", and {describe_bytes(on_disk)} on the disk of {disk}"
    raise BadData(f"{what} need {describe_bytes(needed_bytes)} of memory; {describe_bytes(free)} are free{also}.",
                  remedy=_REMEDY)


class Squares:
    """Room for N squares, uint8 (C, S, S) each, that are put in one by one."""

    def __init__(self, number: int, *, channels: int, size: int, disk: Path | None = None) -> None:
        """`disk` is a folder on whose disk they lie; None for memory.

        Raises: BadData when the disk has no room after all.
        """
        self._shape = (number, channels, size, size)
        self._bytes = channels * size * size
        self._array: NDArray[np.uint8] | None = None
        if disk is None or number == 0:
            self._array = np.empty(self._shape, dtype=np.uint8)
            return
        disk.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = tempfile.TemporaryFile(dir=disk, prefix=".squares-", buffering=0)  # noqa: SIM115
        try:
            # All of it now: a mapping of a file for which there is no space kills the process that reads it.
            os.posix_fallocate(self._file.fileno(), 0, number * self._bytes)
        except OSError as error:
            self._file.close()
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise BadData(f"The disk of {disk} has no room for {describe_bytes(number * self._bytes)} of images:"
                              f" {os.strerror(error.errno)}.", remedy=_REMEDY) from error
            raise

    def put(self, index: int, square: NDArray[np.uint8]) -> None:
        """Puts one square, or (n, C, S, S) of them from `index` on, into its place; may be done again."""
        if self._array is not None:
            if square.ndim == 3:
                self._array[index] = square
            else:
                self._array[index : index + len(square)] = square
            return
        rest, at = np.ascontiguousarray(square).reshape(-1).data, index * self._bytes
        while rest:
            written = os.pwrite(self._file.fileno(), rest, at)
            rest, at = rest[written:], at + written

    def finish(self, number: int) -> NDArray[np.uint8]:
        """The first `number` squares, (number, C, S, S); nothing is put afterwards."""
        if self._array is None:
            # Shared, since a private one that may be written is counted as memory by the system.
            mapped = mmap.mmap(self._file.fileno(), self._shape[0] * self._bytes, mmap.MAP_SHARED)
            self._file.close()  # the mapping keeps it
            self._array = np.frombuffer(mapped, dtype=np.uint8).reshape(self._shape)
        return self._array[:number]
