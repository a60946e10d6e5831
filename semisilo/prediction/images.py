"""Images for a model, batch by batch, in the form it was trained on; with their classes where the source has them.

Folders, tables and Parquet files are decoded as they are needed, so that they may be larger than memory; arrays are
read whole. Files are listed, decoded and brought to the model's form by the readers of a study. The classes of a source
count if the model knows all of them; what has none is predicted all the same. Where images may have several labels,
those that the model knows count, and what else the source names is told.

Tests: tests/semisilo/prediction/test_predict.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.datasets import SizedDataset, array_of, arrays_of_dataset, plain_labels
from semisilo.common.data.form import ImageForm, Selection
from semisilo.common.data.formats import archive, decoding, parquet, pixels
from semisilo.common.data.formats.folder import ImageFile, class_name_of, study_spelling
from semisilo.common.data.formats.registry import NPZ, SOURCES, has_suffix
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.multi_hot import to_rows
from semisilo.common.data.readers import kind_of, listing_of, parse_source, patient_of
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadData

__all__ = ["Batch", "OnError", "Source", "open_source"]

OnError = Literal["skip", "stop"]
_MOST_UNKNOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A few images."""

    images_BCHW: NDArray[np.uint8]
    files: list[str]
    labels: list[int]
    """-1 where no class is known."""
    share: float
    """Of the source that has been read."""
    rows_BK: NDArray[np.int8] | None = None
    """Where images may have several labels, of the model's classes: 1 shown, 0 not shown, -1 not known. Else None."""
    patients: list[str] = field(default_factory=list)
    """A key of each image's patient, "" where it is not known; [] where nobody asks, or it is known of none."""


class Source:
    """An iterable of batches, all of one size but the last; afterwards `skipped` is complete."""

    def __init__(self, parts: Iterator[Batch], batch_size: int, skipped: list[Skipped], *, ranges: dict[str, float],
                 not_compared: str = "") -> None:
        self._parts = parts
        self._batch_size = batch_size
        self.skipped = skipped
        self.ranges = ranges
        """What deep values were divided by, where their values decide it; complete afterwards."""
        self.not_compared = not_compared
        """Which of the source's labels do not count, and why, where images may have several; else empty."""

    def __iter__(self) -> Iterator[Batch]:
        """Batches cut anew, so that left out files shift no boundary."""
        held: list[NDArray[np.uint8]] = []
        rows: list[NDArray[np.int8]] = []
        files: list[str] = []
        patients: list[str] = []
        labels: list[int] = []
        share = 0.0
        for part in self._parts:
            held.append(part.images_BCHW)
            rows += [] if part.rows_BK is None else [part.rows_BK]
            files, labels, share = files + part.files, labels + part.labels, part.share
            patients += part.patients
            if len(files) < self._batch_size:
                continue
            whole, rows_NK = np.concatenate(held), np.concatenate(rows) if rows else None
            cut = 0
            while len(whole) - cut >= self._batch_size:
                end = cut + self._batch_size
                yield Batch(whole[cut:end], files[cut:end], labels[cut:end], share,
                            None if rows_NK is None else rows_NK[cut:end], patients[cut:end])
                cut = end
            held, files, labels, patients = [whole[cut:]], files[cut:], labels[cut:], patients[cut:]
            rows = [] if rows_NK is None else [rows_NK[cut:]]
        if files:
            yield Batch(np.concatenate(held), files, labels, share, np.concatenate(rows) if rows else None, patients)


def open_source(source: Any, *, form: ImageForm, classes: tuple[str, ...], on_error: OnError, batch_size: int,
                multi_label: bool = False, least: Mapping[str, float] = MappingProxyType({}),
                selection: Selection = Selection()) -> Source:
    """The images of a source for a model of these classes.

    Args:
        selection: which DICOM files count, and which plug-ins read files of other formats.
        least: what deep values are divided by at least, as the model's study did.
        source: what `semisilo.common.data.readers` reads; images (N, H, W[, C]); (images, labels); or a data set.
        multi_label: whether the model's images may have several labels or none.
    Raises: BadData, naming the source or file.
    """
    skipped: list[Skipped] = []
    ranges = _Ranges(least)
    if not isinstance(source, (str, Path)):
        return Source(_arrays(source, form, classes, ranges, multi_label=multi_label), batch_size, skipped,
                      ranges=ranges.used)
    path, part = parse_source(str(source))
    kind = kind_of(path)
    if path is not None and kind in ("folder", "table"):
        listing = listing_of(path, part, source=str(source), classes=classes, selection=selection,
                             multi_label=multi_label)
        skipped += listing.skipped
        index = {} if multi_label else _index(listing.folders, classes)
        rows, not_compared = _Rows(classes) if multi_label else None, ""
        if rows is not None and kind == "table":
            not_compared = "" if listing.question is None else f"labels are not compared: {listing.question.line()}"
            rows = _Rows(classes, asked=listing.asked, usable=listing.question is None)
            not_compared = not_compared or _unknown(listing.folders, classes)
        parts = _files(listing.images, listing.images, len(listing.images), index, form, on_error, str(source), skipped,
                       ranges, rows=rows)
        return Source(parts, batch_size, skipped, ranges=ranges.used, not_compared=not_compared)
    elif path is not None and kind == "parquet":
        held = parquet.open_rows(parquet.parquet_files(path), part, source=str(source), multi_label=multi_label,
                                 classes=classes)
        everything = np.ones(held.number, dtype=bool)
        parts = _files(parquet.files_of(held, everything), parquet.files_of(held, everything), held.number,
                       {} if multi_label else _index(held.classes, classes, named=held.classes_named), form, on_error,
                       str(source), skipped, ranges,
                       rows=_Rows(classes, asked=held.asked) if multi_label else None)
        return Source(parts, batch_size, skipped, ranges=ranges.used,
                      not_compared=_unknown(held.classes, classes) if multi_label else "")
    elif multi_label:
        return _npz_of_findings(path, part, form, classes, str(source), batch_size, skipped, ranges)
    else:
        parts = _npz(path, part, form, classes, str(source), ranges)
    return Source(parts, batch_size, skipped, ranges=ranges.used)


class _Ranges:
    """What deep values are divided by: what the model's study did, or more where the images need it."""

    def __init__(self, least: Mapping[str, float]) -> None:
        self.least = least
        self.used: dict[str, float] = {}

    def use(self, found: Mapping[str, float]) -> dict[str, float]:
        """The ranges for a source that needs these."""
        self.used |= {kind: max(limit, self.least.get(kind, 0.0)) for kind, limit in found.items()}
        return {**self.least, **self.used}


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the labels of files become rows of the model's classes."""

    classes: tuple[str, ...]
    asked: tuple[str, ...] | None = None
    """As `semisilo.common.data.formats.folder.Listing.asked`."""
    usable: bool = True

    def of(self, file: ImageFile) -> NDArray[np.int8]:
        """(K,), of the findings of a file; -1 where it has no label."""
        findings = file.findings
        if findings is None or not self.usable:
            return np.full(len(self.classes), -1, dtype=np.int8)
        row_K: NDArray[np.int8] = to_rows([[name for name in findings if name in self.classes]], self.classes,
                                          asked=self.asked, unsure=[file.unsure])[0]
        return row_K


def _unknown(found: Sequence[str], classes: tuple[str, ...]) -> str:
    """Which of a source's classes the model does not know; empty where it knows all."""
    unknown = [name for name in found if name not in classes]
    if not unknown:
        return ""
    first = ", ".join(f"'{name}'" for name in unknown[:_MOST_UNKNOWN])
    more = f" and {len(unknown) - _MOST_UNKNOWN} more" if len(unknown) > _MOST_UNKNOWN else ""
    return f"not compared, since the model has no such class: {first}{more}; its classes are {', '.join(classes)}"


def _index(found: Sequence[str], classes: tuple[str, ...], *, named: bool = True) -> dict[str, int]:
    """Class -> label; nothing where the source has a class that the model does not know.

    Args:
        named: whether the source names its classes; else they are numbers of the model's.
    """
    if not named:
        return {name: label for label, name in enumerate(found)} if len(found) <= len(classes) else {}
    return {name: label for label, name in enumerate(classes)} if set(found) <= set(classes) else {}


def _files(again: Iterable[ImageFile], files: Iterable[ImageFile], number: int, index: dict[str, int], form: ImageForm,
           on_error: OnError, source: str, skipped: list[Skipped], ranges: _Ranges, *, rows: _Rows | None = None
           ) -> Iterator[Batch]:
    """A batch for each file.

    Args:
        rows: where images may have several labels.
        again: the same files as `files`: of values above 8 bits the range of the whole source is known beforehand.
    """
    geometry = pixels.Geometry(size=form.size, channels=form.channels, resize=form.resize)
    needed = ranges.use(decoding.ranges_of(again, form.reading))
    for done, (file, found) in enumerate(decoding.decoded(files, geometry, form.reading, needed), 1):
        if isinstance(found, decoding.Trouble):
            if found.broken and on_error == "stop":
                raise BadData(f"{source}: {file.name} cannot be read: {found.reason}.",
                              remedy="Replace or remove it, or leave such files out with --on-error skip.")
            skipped.append(Skipped(file.name, f"cannot be read: {found.reason}" if found.broken else found.reason,
                                   found.broken))
            continue
        names = [file.name if each.part is None else f"{file.name}[{each.part}]" for each in found]
        yield Batch(np.stack([each.square for each in found]), names, [index.get(file.class_name, -1)] * len(found),
                    min(1.0, done / max(1, number)),
                    None if rows is None else np.tile(rows.of(file), (len(found), 1)),
                    [] if rows is None else [patient_of(file, each.patient, "auto", in_class=False,
                                                        has_several=len(found) > 1) for each in found])


def _npz_of_findings(path: Path | None, part: str, form: ImageForm, classes: tuple[str, ...], source: str,
                     batch_size: int, skipped: list[Skipped], ranges: _Ranges) -> Source:
    """Where images may have several labels or none."""
    arrays = _array_source(path, part, source, classes, multi_label=None)
    assert arrays.images is not None
    labels_N, own, not_compared = arrays.labels_N, arrays.classes, ""
    rows_NK = np.full((len(arrays.images), len(classes)), -1, dtype=np.int8)
    if labels_N is not None and labels_N.ndim != 2:
        not_compared = "labels are not compared: they are one class for an image, and the model's are several or none"
    elif labels_N is not None and not arrays.classes_named and len(own) != len(classes):
        not_compared = (f"labels are not compared: they have {len(own)} columns without names, and the model has"
                        f" {len(classes)} classes")
    elif labels_N is not None:
        names = own if arrays.classes_named else classes
        for column, name in enumerate(names):
            if name in classes:
                rows_NK[:, classes.index(name)] = labels_N[:, column]
        not_compared = _unknown(names, classes)
    parts = _squares(arrays.images, form, [f"{arrays.prefix}[{index}]" for index in range(len(rows_NK))],
                     [-1] * len(rows_NK), f"{source}: its images", ranges, rows_NK=rows_NK)
    return Source(parts, batch_size, skipped, ranges=ranges.used, not_compared=not_compared)


def _array_source(path: Path | None, part: str, source: str, classes: tuple[str, ...], *,
                  multi_label: bool | None = False) -> archive.Arrays:
    if path is not None and (not has_suffix(path, NPZ) or not path.exists()):
        raise BadData(f"{source}: no such folder or file, or none that is read.",
                      remedy=SOURCES)
    return archive.digits(part, source=source) if path is None else \
        archive.npz(path, part, source=source, labels="if there", multi_label=multi_label, classes=classes)


def _npz(path: Path | None, part: str, form: ImageForm, classes: tuple[str, ...], source: str, ranges: _Ranges
         ) -> Iterator[Batch]:
    arrays = _array_source(path, part, source, classes)
    assert arrays.images is not None
    known = [-1] * len(arrays.images)
    if arrays.labels_N is not None:
        index = _index(arrays.classes, classes, named=arrays.classes_named)
        known = [index.get(arrays.classes[label], -1) if label >= 0 else -1 for label in arrays.labels_N.tolist()]
    yield from _squares(arrays.images, form, [f"{arrays.prefix}[{index}]" for index in range(len(known))], known,
                        f"{source}: its images", ranges)


def _arrays(source: Any, form: ImageForm, classes: tuple[str, ...], ranges: _Ranges, *, multi_label: bool
            ) -> Iterator[Batch]:
    names: tuple[str, ...] = ()
    if isinstance(source, SizedDataset) and not isinstance(source, (tuple, list, dict, np.ndarray)) \
            and not hasattr(source, "__array__"):
        found = arrays_of_dataset(source, where="The data set", labelled=False)
        images, labels, names = found.images, found.labels, found.classes
    else:
        given, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
        images = array_of(given, what="The images")
        labels = None if labels is None else plain_labels(array_of(labels, what="The labels"))
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)) or not len(images):
        raise BadData(f"The images have the shape {images.shape}.", remedy="Give N x H x W, or N x H x W x 3.")
    if multi_label:
        rows_NK = np.full((len(images), len(classes)), -1) if labels is None else \
            _columns_of(np.asarray(labels), names, classes)
        if rows_NK.shape != (len(images), len(classes)) or not bool(np.isin(rows_NK, (-1, 0, 1)).all()):
            raise BadData(f"The labels have the shape {rows_NK.shape}, or hold something other than 0, 1 and -1.",
                          remedy=f"Give {len(images)} x {len(classes)}: 1 where the image shows the class, 0 where it"
                                 " does not, -1 where that is not known.")
        yield from _squares(images, form, [f"[{index}]" for index in range(len(images))], [-1] * len(images),
                            "The images", ranges, rows_NK=rows_NK.astype(np.int8))
        return
    known = [-1] * len(images) if labels is None else _indices(labels, names, classes)
    if len(known) != len(images) or max(known) >= len(classes) or min(known) < -1:
        raise BadData(f"The labels are not one per image, from 0 to {len(classes) - 1}.",
                      remedy="Give the place of each image's class among the model's classes, or its name.")
    yield from _squares(images, form, [f"[{index}]" for index in range(len(images))], known, "The images", ranges)


def _columns_of(rows: NDArray[Any], names: tuple[str, ...], classes: tuple[str, ...]) -> NDArray[Any]:
    """Rows of 1, 0 and -1 in the order of the model's classes, where a data set names its own; others as they are."""
    if not names or names == classes or rows.ndim != 2:
        return rows
    place = {name: column for column, name in enumerate(names)}
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise BadData(f"The label '{unknown}' is none of the model's classes.",
                      remedy=f"They are {', '.join(classes)}.")
    return np.stack([rows[:, place[name]] if name in place else np.full(len(rows), -1) for name in classes], axis=1)


def _indices(labels: NDArray[Any], names: tuple[str, ...], classes: tuple[str, ...]) -> list[int]:
    """Labels as indices of the model's classes; -1 for one that is not known.

    Args:
        names: what numbers are called, where a data set says so; () otherwise.
    Raises: BadData for a name that the model does not know, and for what is neither names nor whole numbers.
    """
    found: list[Any] = labels.ravel().tolist()
    if labels.dtype.kind in "US" or names:
        spelling = study_spelling(classes)
        texts = [class_name_of(str(label)) for label in (labels.astype(str).ravel().tolist() if not names else
                                                         [names[label] if label >= 0 else "" for label in found])]
        found = [spelling.get(text, text) for text in texts]
        unknown = next((text for text in found if text not in classes and (text or not names)), None)
        if unknown is not None:
            raise BadData(f"The label '{unknown}' is none of the model's classes.",
                          remedy=f"They are {', '.join(classes)}.")
        return [classes.index(text) if text else -1 for text in found]
    if labels.dtype.kind not in "iub":
        raise BadData(f"The labels have the type {labels.dtype}.",
                      remedy="Give whole numbers, the place of each image's class among the model's classes, or names.")
    return [int(label) for label in found]


def _squares(images: NDArray[Any], form: ImageForm, names: list[str], labels: list[int], what: str,
             ranges: _Ranges, *, rows_NK: NDArray[np.int8] | None = None) -> Iterator[Batch]:
    """All images as one batch. Raises: BadData when they cannot be used, or do not fit into memory at the model's size.
    """
    check_room(len(images) * form.channels * form.size**2, what=f"{what}, at {form.size} x {form.size} pixels,",
               remedy="Give fewer at a time, or a folder of files.")
    try:
        found = pixels.range_of(images, reading=form.reading)
        squares = pixels.squares(images, size=form.size, channels=form.channels, resize=form.resize,
                                 reading=form.reading, ranges=ranges.use(dict([found] if found else [])))
    except pixels.UnusableError as error:
        raise BadData(f"{what} cannot be used: {error}.",
                      remedy=error.remedy or "Store uint8 pixels, or fractions in 0..1.") from None
    yield Batch(squares, names, labels, 1.0, rows_NK)
