"""All updates of a phase side by side: from memory and from a scratch file, the same numbers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import DiskFull
from semisilo.common.methods.contract import TensorGroup, UpdateHeader
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates

HEADERS = tuple(UpdateHeader(f"silo-{index}", 1) for index in range(3))


def _update(index: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(index)
    return {"b": torch.randn(3, 4, generator=generator, dtype=dtype), "a": torch.randn(7, generator=generator),
            "scalar": torch.randn((), generator=generator)}


def _spooled(folder: Path, *, in_memory: int, dtype: torch.dtype = torch.float32) -> SpooledUpdates:
    return SpooledUpdates(HEADERS, lambda index: {"model": TensorGroup(_update(index, dtype))}, norms=[None] * 3,
                          scratch=folder, block_bytes=3 * 4 * 6, in_memory_bytes=in_memory)


@pytest.mark.parametrize("in_memory", [0, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_are_the_coordinates_in_the_groups_order(tmp_path: Path, in_memory: int, dtype: torch.dtype) -> None:
    expected_ND = torch.stack([torch.cat([tensor.reshape(-1).to(dtype) for tensor in _update(index, dtype).values()])
                               for index in range(3)])
    with _spooled(tmp_path, in_memory=in_memory, dtype=dtype) as updates:
        blocks = list(updates.blocks("model"))
        assert len(blocks) > 2
        assert torch.equal(torch.cat(blocks, dim=1), expected_ND)
        assert torch.equal(torch.cat(list(updates.blocks("model")), dim=1), expected_ND), "it may be read again"
        assert list(tmp_path.iterdir()) == [], "a file without a name is left by nobody"
    assert updates.norms("model") == pytest.approx(expected_ND.double().norm(dim=1).tolist())


def test_norms_that_a_check_has_found_are_not_computed_again(tmp_path: Path) -> None:
    def read(index: int) -> dict[str, TensorGroup]:
        assert index == 1
        return {"model": TensorGroup(_update(index))}

    updates = SpooledUpdates(HEADERS, read, norms=[{"model": 1.5}, None, {"model": 2.5}], scratch=tmp_path)
    assert updates.norms("model")[::2] == [1.5, 2.5]


def test_a_full_disk_says_what_else_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with _spooled(tmp_path, in_memory=0) as updates, pytest.raises(DiskFull, match="3 updates") as error:
        list(updates.blocks("model"))
    assert "norm_clipping" in error.value.remedy
