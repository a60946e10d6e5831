"""Images for a model, batch by batch, in the form it was trained on; with their classes where the source has them.

Folders, tables and Parquet files are decoded as they are needed, so that they may be larger than memory; arrays are
read whole. Files are listed, decoded and brought to the model's form by the readers of a study. The classes of a source
count if the model knows all of them; what has none is predicted all the same.

Tests: tests/semisilo/prediction/test_predict.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import ImageForm
from semisilo.common.data.formats import archive, decoding, parquet, pixels
from semisilo.common.data.formats.folder import ImageFile
from semisilo.common.data.formats.registry import NPZ, SOURCES, has_suffix
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.readers import kind_of, listing_of, parse_source
from semisilo.common.errors import BadData

__all__ = ["Batch", "Source", "open_source"]

OnError = Literal["skip", "stop"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A few images."""

    images_BCHW: NDArray[np.uint8]
    files: list[str]
    labels: list[int]
    """-1 where no class is known."""
    share: float
    """Of the source that has been read."""


class Source:
    """An iterable of batches, all of one size but the last; afterwards `skipped` is complete."""

    def __init__(self, parts: Iterator[Batch], batch_size: int, skipped: list[Skipped]) -> None:
        self._parts = parts
        self._batch_size = batch_size
        self.skipped = skipped

    def __iter__(self) -> Iterator[Batch]:
        """Batches cut anew, so that left out files shift no boundary."""
        held: list[NDArray[np.uint8]] = []
        files: list[str] = []
        labels: list[int] = []
        share = 0.0
        for part in self._parts:
            held.append(part.images_BCHW)
            files, labels, share = files + part.files, labels + part.labels, part.share
            if len(files) < self._batch_size:
                continue
            whole = np.concatenate(held)
            cut = 0
            while len(whole) - cut >= self._batch_size:
                end = cut + self._batch_size
                yield Batch(whole[cut:end], files[cut:end], labels[cut:end], share)
                cut = end
            held, files, labels = [whole[cut:]], files[cut:], labels[cut:]
        if files:
            yield Batch(np.concatenate(held), files, labels, share)


def open_source(source: Any, *, form: ImageForm, classes: tuple[str, ...], on_error: OnError, batch_size: int,
                multi_label: bool = False) -> Source:
    """The images of a source for a model of these classes.

    Args:
        source: what `semisilo.common.data.readers` reads; images (N, H, W[, C]); or (images, labels).
        multi_label: whether the model's images may have several labels or none: those of the source are not looked at.
    Raises: BadData, naming the source or file.
    """
    skipped: list[Skipped] = []
    if not isinstance(source, (str, Path)):
        if multi_label and isinstance(source, tuple) and len(source) == 2:
            source = source[0]
        return Source(_arrays(source, form, classes), batch_size, skipped)
    path, part = parse_source(str(source))
    kind = kind_of(path)
    if path is not None and kind in ("folder", "table"):
        listing = listing_of(path, part, source=str(source), classes=classes, multi_label=multi_label)
        skipped += listing.skipped
        index = {} if multi_label else _index(listing.folders, classes)
        parts = _files(listing.images, listing.images, len(listing.images), index, form, on_error, str(source), skipped)
    elif path is not None and kind == "parquet":
        rows = parquet.open_rows(parquet.parquet_files(path), part, source=str(source), multi_label=multi_label)
        everything = np.ones(rows.number, dtype=bool)
        parts = _files(parquet.files_of(rows, everything), parquet.files_of(rows, everything), rows.number,
                       {} if multi_label else _index(rows.classes, classes, named=rows.classes_named), form, on_error,
                       str(source), skipped)
    else:
        parts = _npz(path, part, form, classes, str(source), labels="no" if multi_label else "if there")
    return Source(parts, batch_size, skipped)


def _index(found: Sequence[str], classes: tuple[str, ...], *, named: bool = True) -> dict[str, int]:
    """Class -> label; nothing where the source has a class that the model does not know.

    Args:
        named: whether the source names its classes; else they are numbers of the model's.
    """
    if not named:
        return {name: label for label, name in enumerate(found)} if len(found) <= len(classes) else {}
    return {name: label for label, name in enumerate(classes)} if set(found) <= set(classes) else {}


def _files(again: Iterable[ImageFile], files: Iterable[ImageFile], number: int, index: dict[str, int], form: ImageForm,
           on_error: OnError, source: str, skipped: list[Skipped]) -> Iterator[Batch]:
    """A batch for each file.

    Args:
        again: the same files as `files`: of values above 8 bits the range of the whole source is known beforehand.
    """
    geometry = pixels.Geometry(size=form.size, channels=form.channels, resize=form.resize)
    ranges = decoding.ranges_of(again, form.reading)
    for done, (file, found) in enumerate(decoding.decoded(files, geometry, form.reading, ranges), 1):
        if isinstance(found, decoding.Trouble):
            if found.broken and on_error == "stop":
                raise BadData(f"{source}: {file.name} cannot be read: {found.reason}.",
                              remedy="Replace or remove it, or leave such files out with --on-error skip.")
            skipped.append(Skipped(file.name, f"cannot be read: {found.reason}" if found.broken else found.reason,
                                   found.broken))
            continue
        names = [file.name if each.part is None else f"{file.name}[{each.part}]" for each in found]
        yield Batch(np.stack([each.square for each in found]), names, [index.get(file.class_name, -1)] * len(found),
                    min(1.0, done / max(1, number)))


def _npz(path: Path | None, part: str, form: ImageForm, classes: tuple[str, ...], source: str, *,
         labels: Literal["if there", "no"]) -> Iterator[Batch]:
    if path is not None and (not has_suffix(path, NPZ) or not path.exists()):
        raise BadData(f"{source}: no such folder or file, or none that is read.",
                      remedy=SOURCES)
    arrays = archive.digits(part, source=source) if path is None else \
        archive.npz(path, part, source=source, labels=labels)
    assert arrays.images is not None
    known = [-1] * len(arrays.images)
    if arrays.labels_N is not None and labels != "no":
        index = _index(arrays.classes, classes, named=arrays.classes_named)
        known = [index.get(arrays.classes[label], -1) if label >= 0 else -1 for label in arrays.labels_N.tolist()]
    yield from _squares(arrays.images, form, [f"{arrays.prefix}[{index}]" for index in range(len(known))], known,
                        f"{source}: its images")


def _arrays(source: Any, form: ImageForm, classes: tuple[str, ...]) -> Iterator[Batch]:
    images, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    images = np.asarray(images)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)) or not len(images):
        raise BadData(f"The images have the shape {images.shape}.", remedy="Give N x H x W, or N x H x W x 3.")
    known = [-1] * len(images) if labels is None else [int(label) for label in np.asarray(labels).ravel()]
    if len(known) != len(images) or max(known) >= len(classes) or min(known) < -1:
        raise BadData(f"The labels are not one per image, from 0 to {len(classes) - 1}.",
                      remedy="Give the place of each image's class among the model's classes.")
    yield from _squares(images, form, [f"[{index}]" for index in range(len(images))], known, "The images")


def _squares(images: NDArray[Any], form: ImageForm, names: list[str], labels: list[int], what: str) -> Iterator[Batch]:
    try:
        squares = pixels.squares(images, size=form.size, channels=form.channels, resize=form.resize,
                                 reading=form.reading)
    except pixels.UnusableError as error:
        raise BadData(f"{what} cannot be used: {error}.",
                      remedy=error.remedy or "Store uint8 pixels, or fractions in 0..1.") from None
    yield Batch(squares, names, labels, 1.0)
