"""Images in memory, in the form of a study: what readers return and trainers see.

Shapes: N images, C channels (1 or 3), S the side of the square. torch is imported only where tensors are made, so that
a light process may look at a folder without paying for it.

Tests: tests/common/data/test_readers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import is_of_file
from semisilo.common.errors import BadData

if TYPE_CHECKING:
    import torch

__all__ = ["ImageSet", "ReadResult", "Skipped", "Survey", "joined", "measure_form", "part_of"]

_BLOCK = 256
"""Images that are worked on at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images of one size, with or without labels. Never changed in place."""

    images_NCHW: torch.Tensor
    """uint8 (N, C, S, S), in the study's geometry, not normalised. May be mapped from a disk because it is larger than
    memory: take batches from it, never a copy of all."""
    labels_N: torch.Tensor | None
    """int64 (N,), or None when unlabelled. Where images may have several labels or none multi-hot rows, int8 (N, K): 1
    shown, 0 not shown, -1 not known (`semisilo.common.data.multi_hot`)."""
    names: tuple[str, ...]
    """A name per image for messages: path within the folder, or "file.npz[12]". Never leaves the site."""
    patients: tuple[str, ...] = ()
    """A key of each image's patient, or where that is not known of the file that others are of, too
    (`semisilo.common.data.form.is_of_file`), "" where neither is; () when of no image. Never leaves the site."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.images_NCHW):
            raise ValueError(f"{len(self.images_NCHW)} images but {len(self.names)} names.")
        if self.labels_N is not None and len(self.labels_N) != len(self.images_NCHW):
            raise ValueError(f"{len(self.images_NCHW)} images but {len(self.labels_N)} labels.")
        if self.patients and len(self.patients) != len(self.images_NCHW):
            raise ValueError(f"{len(self.images_NCHW)} images but {len(self.patients)} patients.")

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, indices: Sequence[int] | NDArray[np.integer] | torch.Tensor) -> ImageSet:
        """A copy of the images at `indices`, in that order; an index may occur more than once.

        Raises: IndexError when an index is not in 0 .. N - 1, or a mask is given.
        """
        import torch

        index = indices.cpu() if isinstance(indices, torch.Tensor) else torch.from_numpy(np.array(indices))
        if index.dtype == torch.bool:
            raise IndexError("a mask was given where indices are needed.")
        index = index.to(torch.int64)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise IndexError(f"index out of range for {len(self)} images.")
        labels_N = None if self.labels_N is None else self.labels_N[index]
        return ImageSet(self.images_NCHW[index], labels_N, tuple(self.names[i] for i in index.tolist()),
                        self._patients_at(index.tolist()))

    def without_labels(self) -> ImageSet:
        """The same images, unlabelled; the pixels are shared."""
        return ImageSet(self.images_NCHW, None, self.names, self.patients)

    @property
    def num_patients(self) -> int:
        """How many patients the images are of; 0 unless that is known of every image."""
        return len(set(self.patients)) if self.patients and all(
            each and not is_of_file(each) for each in self.patients) else 0

    @property
    def knows_patients(self) -> bool:
        """Whether the patient of any image is known."""
        return any(each and not is_of_file(each) for each in self.patients)

    @property
    def has_parts_of_files(self) -> bool:
        """Whether several images of unknown patients are of one file."""
        return any(map(is_of_file, self.patients))

    def without_files(self) -> ImageSet:
        """The same images, those of one file not told any more; the pixels are shared."""
        patients = tuple("" if is_of_file(each) else each for each in self.patients)
        return ImageSet(self.images_NCHW, self.labels_N, self.names, patients if any(patients) else ())

    def _patients_at(self, indices: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.patients[index] for index in indices) if self.patients else ()


def joined(first: ImageSet, second: ImageSet, *, disk: Path | None = None) -> ImageSet:
    """A copy of both, one after the other. Labelled only if both are.

    Args:
        disk: a folder on whose disk it lies when it is too large for memory; None where it must not.
    Raises: BadData when it fits neither into memory nor onto the disk.
    """
    import torch

    from semisilo.common.data.squares import Squares

    labels_N = None
    if first.labels_N is not None and second.labels_N is not None:
        labels_N = torch.cat([first.labels_N, second.labels_N])
    names, (channels, size) = first.names + second.names, first.images_NCHW.shape[1:3]
    patients = () if not (first.patients or second.patients) else (
        (first.patients or ("",) * len(first)) + (second.patients or ("",) * len(second)))
    place = _place(len(names), channels, size, disk)
    if place is None:
        return ImageSet(torch.cat([first.images_NCHW, second.images_NCHW]), labels_N, names, patients)
    squares = Squares(len(names), channels=channels, size=size, disk=place)
    for images, start in ((first, 0), (second, len(first))):
        for at in range(0, len(images), _BLOCK):
            squares.put(start + at, images.images_NCHW[at : at + _BLOCK].numpy())
    return ImageSet(torch.from_numpy(squares.finish(len(names))), labels_N, names, patients)


def part_of(images: ImageSet, indices: NDArray[np.integer], *, disk: Path | None = None) -> ImageSet:
    """A copy of the images at `indices`, in that order, as `ImageSet.subset` gives it; on a disk where it is too large
    for memory.

    Args:
        disk: a folder on whose disk it may lie; None where it must not.
    Raises: BadData when it fits neither into memory nor onto the disk.
    """
    import torch

    from semisilo.common.data.squares import Squares

    channels, size = images.images_NCHW.shape[1:3]
    place = _place(len(indices), channels, size, disk)
    if place is None:
        return images.subset(indices)
    squares = Squares(len(indices), channels=channels, size=size, disk=place)
    for at in range(0, len(indices), _BLOCK):
        squares.put(at, images.images_NCHW[torch.from_numpy(np.array(indices[at : at + _BLOCK]))].numpy())
    labels_N = None if images.labels_N is None else images.labels_N[torch.from_numpy(np.array(indices))]
    return ImageSet(torch.from_numpy(squares.finish(len(indices))), labels_N,
                    tuple(images.names[index] for index in indices.tolist()), images._patients_at(indices.tolist()))


def _place(count: int, channels: int, size: int, disk: Path | None) -> Path | None:
    """The folder on whose disk so many squares lie; None for memory."""
    from semisilo.common.data.squares import disk_for

    return None if disk is None else disk_for(count * channels * size * size, disk=disk,
                                              what=f"{count} images as squares of {size} pixels")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was left out, and why; or of which something else is to be said. Never leaves the site."""

    name: str
    reason: str
    broken: bool = False
    """Whether it should have been an image; False for a report among scans, say, which is never a reason to stop."""
    unchosen: bool = False
    """Whether it is an image that a setting of this site leaves out."""
    counts: bool = False
    """Whether it is not left out at all: an image that a table lists several times."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a reader made of a source."""

    images: ImageSet
    classes: tuple[str, ...]
    """Class names in label order; empty when the source has none and none were given."""
    skipped: tuple[Skipped, ...]
    """Files left out, in reading order; hidden ones are not mentioned."""
    tied: tuple[str, ...] = ()
    """Kinds of deep values ("16 bits") whose range was found in the values of several pictures together: what one of
    these becomes hangs on the others."""
    ranges: Mapping[str, float] = field(default_factory=dict)
    """What deep values were divided by, by their kind, here or before a file of 8-bit images was written that says so;
    also of kinds that were asked for and did not occur."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a source holds, found without decoding its images."""

    kind: Literal["class_folders", "flat_folder", "npz", "digits", "table", "parquet"]
    num_images: int
    """In a folder: the files that look like images by their name. A file of several pictures counts once."""
    classes: tuple[str, ...]
    """As `read_images` would find them; empty when the source has none."""
    class_counts: dict[str, int]
    """Images of each class. Where images may have several labels they add up to more, or less, than `num_labelled`."""
    sizes: dict[tuple[int, int], int]
    """(width, height) of up to five most common original sizes, most common first, with counts; in a large folder the
    counts are of an even sample."""
    channels: Literal[1, 3]
    """3 as soon as one image of the sample has colours."""
    skipped: tuple[Skipped, ...] = ()
    """What would be left out as far as names show it."""
    num_with_rows: int | None = None
    """Images whose labels are rows, which may say "nothing"; None where an image has one class."""

    @property
    def num_labelled(self) -> int:
        """Images with a label."""
        return sum(self.class_counts.values()) if self.num_with_rows is None else self.num_with_rows


def measure_form(images: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale 0 to 1, over all pixels of all images.

    Computed from exact histograms in float64, so the result does not depend on order or threads. The deviation is at
    least 1/255, so that a constant channel can be divided by it.
    Raises: BadData when there are no images.
    """
    if len(images) == 0:
        raise BadData("Mean and standard deviation cannot be measured: there are no images.",
                      remedy="Add images, or write mean and std into the study.")
    means, deviations = [], []
    values = np.arange(256, dtype=np.float64) / 255
    pixels_NCHW = images.images_NCHW.cpu().numpy()
    histograms = np.zeros((pixels_NCHW.shape[1], 256), dtype=np.int64)
    for start in range(0, len(pixels_NCHW), _BLOCK):  # bincount widens to 8 bytes a pixel
        for channel, histogram in enumerate(histograms):
            histogram += np.bincount(pixels_NCHW[start : start + _BLOCK, channel].ravel(), minlength=256)
    for histogram in histograms:
        share = histogram / histogram.sum()
        mean = float(share @ values)
        means.append(mean)
        deviations.append(max(float(np.sqrt(share @ (values - mean) ** 2)), 1 / 255))
    return tuple(means), tuple(deviations)
