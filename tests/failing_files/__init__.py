"""Operations on the files of a real process that fail for a while, as on a disk with bad sectors: SQLite, torch, gRPC
and Python meet what the C library says. Needs Linux and a C compiler.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["KINDS", "FailingFiles", "compiled"]

KINDS = ("open", "read", "write", "sync", "names", "look", "truncate")
"""What can fail. names: to rename, remove or make one; look: stat and access."""
_SOURCE = Path(__file__).with_name("failing_files.c")
_CONTROL = struct.Struct("=iii")


def compiled(folder: Path) -> Path | None:
    """The library to load before all others; None where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "failing_files.so"
    made = subprocess.run([compiler, "-O2", "-w", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"],
                          capture_output=True, check=False)
    return library if made.returncode == 0 else None


class FailingFiles:
    """Whether operations below a folder fail, of processes that begin with `environment`."""

    def __init__(self, library: Path, folder: Path, control: Path) -> None:
        """`control`: a small file, which is made."""
        control.write_bytes(bytes(_CONTROL.size + 4))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library), "FAILING_FILES": str(control),
                            "FAILING_FOLDER": f"{folder}{os.sep}"}

    @property
    def failed(self) -> int:
        """How many operations have."""
        return int(struct.unpack_from("=i", self._control, _CONTROL.size)[0])

    @contextmanager
    def failing(self, number: int = errno.EIO, kinds: Iterable[str] = KINDS, *, permille: int = 1000) -> Iterator[None]:
        """Meanwhile those kinds of operations fail with this error of the system, so many of a thousand."""
        bits = sum(1 << KINDS.index(kind) for kind in kinds)
        self._control[:_CONTROL.size] = _CONTROL.pack(number, permille, bits)
        try:
            yield
        finally:
            self._control[:_CONTROL.size] = bytes(_CONTROL.size)
