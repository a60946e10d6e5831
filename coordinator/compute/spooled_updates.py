"""All accepted updates of a phase, as a strategy may look at them before they are folded: one by one, or block by block
of coordinates.

Blocks are read from a scratch file of all updates, dense, on the disk of the study; small ones stay in memory. The file
has no name, so nothing is left of it however the process ends.

Tests: tests/coordinator/compute/test_spooled_updates.py.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import torch
from torch import Tensor

from semisilo.common.errors import DiskFull
from semisilo.common.methods.contract import TensorGroup, UpdateHeader
from semisilo.coordinator.compute.update_reader import group_norm

__all__ = ["SpooledUpdates"]

_BLOCK_BYTES = 64 * 2**20
_IN_MEMORY_BYTES = 256 * 2**20
"""Updates that take no more together need no file."""


class SpooledUpdates:
    """See `semisilo.common.methods.contract.Updates`. To be closed."""

    def __init__(self, headers: tuple[UpdateHeader, ...], read: Callable[[int], Mapping[str, TensorGroup]], *,
                 norms: Sequence[Mapping[str, float] | None], scratch: Path, block_bytes: int = _BLOCK_BYTES,
                 in_memory_bytes: int = _IN_MEMORY_BYTES) -> None:
        """
        Args:
            read: decodes the update of an index; may be asked several times.
            norms: by group, of every update; None where they are not known.
            scratch: folder for a file of N times a dense update.
            block_bytes: of a block, as it lies in the file.
        """
        self.headers = headers
        self._read = read
        self._norms = list(norms)
        self._scratch = scratch
        self._block_bytes, self._in_memory_bytes = block_bytes, in_memory_bytes
        self._matrices: dict[str, Tensor] = {}
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> SpooledUpdates:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._matrices.clear()
        for file in self._files:
            file.close()

    def norms(self, group: str) -> list[float]:
        """See `Updates.norms`. Raises: StorageDamaged."""
        found = []
        for index, known in enumerate(self._norms):
            if known is None:
                known = {name: group_norm(each) for name, each in self._read(index).items()}
                self._norms[index] = known
            found.append(known[group])
        return found

    def read(self, index: int) -> Mapping[str, TensorGroup]:
        """See `Updates.read`. Raises: StorageDamaged."""
        return self._read(index)

    def blocks(self, group: str) -> Iterator[Tensor]:
        """See `Updates.blocks`. Raises: StorageDamaged; DiskFull where the updates do not fit onto the disk."""
        if group not in self._matrices:
            self._matrices[group] = self._filled(group)
        matrix_ND = self._matrices[group]
        width = max(1, self._block_bytes // (matrix_ND.shape[0] * matrix_ND.element_size()))
        for start in range(0, matrix_ND.shape[1], width):
            yield matrix_ND[:, start:start + width].clone()

    def _filled(self, group: str) -> Tensor:
        matrix_ND: Tensor | None = None
        for index in range(len(self.headers)):
            tensors = [tensor.reshape(-1) for tensor in self._read(index)[group].tensors.values()]
            if matrix_ND is None:
                dtype = torch.float64 if any(each.dtype == torch.float64 for each in tensors) else torch.float32
                matrix_ND = self._empty(sum(each.numel() for each in tensors), dtype)
            start = 0
            for each in tensors:
                matrix_ND[index, start:start + each.numel()] = each
                start += each.numel()
        assert matrix_ND is not None
        return matrix_ND

    def _empty(self, width: int, dtype: torch.dtype) -> Tensor:
        count = len(self.headers)
        size = count * width * dtype.itemsize
        if size <= self._in_memory_bytes:
            return torch.empty(count, width, dtype=dtype)
        file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - closed with all others
        self._files.append(file)
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(
                f"No space in {self._scratch} to lay {count} updates beside each other: {size / 1e9:.1f} GB.",
                remedy='Free space, or set [robust] rule = "norm_clipping", which reads one update after another.'
            ) from error
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(np.memmap(file, dtype=kind, mode="r+", shape=(count, width)))
