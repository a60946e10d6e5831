"""More images than memory should hold lie on the disk, in a file without a name, and are the same images."""

from __future__ import annotations

import errno
import gc
import os
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisilo.common.data import room, squares
from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet, joined, measure_form
from semisilo.common.data.partly_labelled import read_partly_labelled
from semisilo.common.data.readers import read_images
from semisilo.common.data.squares import Squares, disk_for
from semisilo.common.errors import BadData

_BYTES = 13 * 3 * 8 * 8
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with six pictures each, and one that cannot be read."""
    for number in range(12):
        path = tmp_path / "images" / ("cat" if number % 2 else "dog") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (9, 11, 3)).astype(np.uint8)).save(path)
    (tmp_path / "images" / "cat" / "05b.png").write_text("no picture")
    return tmp_path / "images"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda: _BYTES)


def mapped_files(disk: Path) -> list[str]:
    """Files of a folder that this process has mapped, as the kernel lists them."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f" {disk.resolve()}/" in line]


def read(folder: Path, disk: Path | None) -> ImageSet:
    return read_images(str(folder), size=8, channels=3, on_error="skip", disk=disk).images


@pytest.mark.usefixtures("little_memory")
def test_images_on_the_disk_are_those_in_memory_in_the_same_order(folder: Path, tmp_path: Path) -> None:
    in_memory, mapped = read(folder, None), read(folder, tmp_path / "disk")
    assert len(mapped_files(tmp_path / "disk")) == 1
    assert torch.equal(in_memory.images_NCHW, mapped.images_NCHW)
    assert mapped.labels_N is not None
    assert in_memory.labels_N is not None
    assert torch.equal(in_memory.labels_N, mapped.labels_N)
    assert in_memory.names == mapped.names
    assert len(mapped) == 12, "the one that cannot be read has no place"
    assert measure_form(in_memory) == measure_form(mapped)
    index = torch.tensor([11, 0, 5, 5])
    assert torch.equal(in_memory.images_NCHW[index], mapped.images_NCHW[index])


@pytest.mark.usefixtures("little_memory")
def test_the_file_has_no_name_is_for_the_owner_only_and_goes_with_the_images(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    mapped = read(folder, disk)
    assert list(disk.iterdir()) == [], "nobody can open it, and no restart can find it"
    assert disk.stat().st_mode & 0o777 == 0o700
    assert "(deleted)" in mapped_files(disk)[0]
    del mapped
    gc.collect()
    assert mapped_files(disk) == []


def test_images_that_take_at_most_half_of_the_memory_stay_in_it(
        folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda: 2 * 13 * 3 * 8 * 8)  # 13 may be images
    read(folder, tmp_path / "disk")
    assert not (tmp_path / "disk").exists()
    monkeypatch.setattr(room, "free_bytes", lambda: 2 * 13 * 3 * 8 * 8 - 1)
    kept = read(folder, tmp_path / "disk")
    assert mapped_files(tmp_path / "disk")
    assert len(kept) == 12


def test_where_they_fit_nowhere_or_must_not_lie_on_a_disk_they_are_refused_or_just_fit(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda: 1000)
    assert disk_for(1000, what="12 images", disk=None) is None, "memory, as before"
    with pytest.raises(BadData, match=r"12 images need 1.0 kB of memory; 1.0 kB are free\.") as caught:
        disk_for(1001, what="12 images", disk=None)
    assert "Use fewer images" in caught.value.remedy
    monkeypatch.setattr(squares.shutil, "disk_usage", lambda path: Usage(0, 0, 2**30 + 2000))
    assert disk_for(1001, what="12 images", disk=tmp_path) == tmp_path
    assert disk_for(2000, what="12 images", disk=tmp_path) == tmp_path
    with pytest.raises(BadData, match=r"1.0 kB are free, and 2.0 kB on the disk of"):
        disk_for(2001, what="12 images", disk=tmp_path)
    monkeypatch.setattr(squares.shutil, "disk_usage", lambda path: Usage(0, 0, 5))
    assert disk_for(900, what="12 images", disk=tmp_path) is None, "the disk is full, memory just suffices"


def test_a_disk_that_is_full_after_all_is_told_before_anything_is_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BadData, match="has no room for 64 B of images: No space left on device"):
        Squares(1, channels=1, size=8, disk=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bright_deep_pictures_that_come_late_are_read_again_into_the_same_place(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(70):
        path = tmp_path / "deep" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        values = np.full((8, 8), 60_000 if number == 69 else 100 + number, dtype=np.uint16)
        Image.fromarray(values).save(path)
    in_memory = read_images(str(tmp_path / "deep"), size=8, channels=1, labelled=False).images
    monkeypatch.setattr(room, "free_bytes", lambda: 70 * 64)
    mapped = read_images(str(tmp_path / "deep"), size=8, channels=1, labelled=False, disk=tmp_path / "disk").images
    assert mapped_files(tmp_path / "disk")
    assert torch.equal(in_memory.images_NCHW, mapped.images_NCHW)
    assert int(mapped.images_NCHW[0].max()) < 2, "divided by 65535"


@pytest.mark.usefixtures("little_memory")
def test_two_sets_are_joined_on_the_disk_where_memory_is_short(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    first = read(folder, disk).without_labels()
    both = joined(first, first, disk=disk)
    assert len(mapped_files(disk)) == 2
    assert torch.equal(both.images_NCHW, torch.cat([first.images_NCHW, first.images_NCHW]))
    assert both.names == first.names * 2
    assert torch.equal(joined(first, first).images_NCHW, both.images_NCHW)


@pytest.mark.usefixtures("little_memory")
def test_both_parts_of_a_partly_labelled_folder_may_lie_on_the_disk(folder: Path, tmp_path: Path) -> None:
    (folder / "cat" / "05b.png").unlink()
    form = ImageForm(size=8, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    (folder / "dog").rename(folder / "unlabelled")
    parts = [read_partly_labelled(str(folder), form, classes=("cat", "dog"), use_labels=True, disk=disk)
             for disk in (None, tmp_path / "disk")]
    for name in ("labelled", "unlabelled"):
        in_memory, mapped = (getattr(part, name) for part in parts)
        assert torch.equal(in_memory.images_NCHW, mapped.images_NCHW)
        assert in_memory.names == mapped.names


def test_squares_are_put_one_by_one_or_many_at_once_and_again(tmp_path: Path) -> None:
    wanted = np.random.default_rng(0).integers(0, 256, (7, 2, 5, 5)).astype(np.uint8)
    for disk in (None, tmp_path):
        found = Squares(9, channels=2, size=5, disk=disk)
        found.put(0, wanted[1:4])
        for index in (0, 1, 2):
            found.put(index, wanted[index])
        found.put(3, wanted[3:])
        assert np.array_equal(found.finish(7), wanted)
