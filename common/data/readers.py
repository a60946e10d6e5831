"""Reads a source of images into the one form of a study.

| source             | holds                                                                       |
|--------------------|-----------------------------------------------------------------------------|
| a folder           | one folder per class, its name the class; unlabelled, images at any depth   |
| file.csv, file.tsv | a table of file names and labels: see `semisilo.common.data.formats.table`                   |
| file.parquet       | images in rows; also a folder of such files: see `semisilo.common.data.formats.parquet`      |
| file.npz           | MedMNIST's layout; file.npz#train, #val or #test, by default the train part |
| a part, .npz       | what `semisilo split` writes for a silo: part.npz#labelled and #unlabelled  |
| digits             | scikit-learn's embedded scans; digits#train and digits#test, a fixed split  |

Class order decides the labels. A study freezes it; given as `classes`, a source that lacks a class shifts nothing and
one with an unknown class is refused. Not given, class folders count in sorted order. In a source that does not name its
classes a label is the index into `classes`.

In a study whose images may have several labels or none, labels are multi-hot rows: they come from tables, Parquet and
.npz files, since a class folder names one class alone.

Shapes: N images, C channels, S side of the square, K classes.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import UNLABELLED, OnError, PatientRule, Reading, Selection, file_key, patient_key
from semisilo.common.data.formats import archive, decoding, dicom, folder, parquet, pixels, table
from semisilo.common.data.formats.folder import ImageFile, Listing
from semisilo.common.data.formats.plugins import use_formats
from semisilo.common.data.formats.registry import (
    DICOM,
    DIGITS,
    NPZ,
    PARQUET,
    SOURCES,
    TABLE,
    format_of,
    has_suffix,
)
from semisilo.common.data.image_set import ImageSet, ReadResult, Skipped, Survey, measure_form
from semisilo.common.data.layout import refuse_parts, refuse_without_label
from semisilo.common.data.multi_hot import findings_of, is_said, to_rows
from semisilo.common.data.squares import disk_for
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.text.describe import counted, describe_bytes
from semisilo.common.text.logs import printable

__all__ = ["ImageSet", "ReadResult", "Skipped", "SourceKind", "Survey", "arrays_of", "check_folders", "check_labelled",
           "check_labels", "classes_of", "kind_of", "listing_of", "measure_form", "parse_source", "patient_of",
           "read_images", "read_listing", "read_rows", "refuse_broken", "survey"]

SourceKind = Literal["folder", "table", "parquet", "npz", "digits"]
_LOG = logging.getLogger("semisilo.data")
_SAMPLE = 500
_HEADER_THREADS = 4
_RESIZES = get_args(pixels.Resize)


def read_images(
    source: str, *, size: int, channels: int, resize: str = "fit", classes: tuple[str, ...] | None = None,
    labelled: bool = True, on_error: OnError = "stop", progress: Callable[[float, str], None] | None = None,
    reading: Reading = Reading(), disk: Path | None = None, selection: Selection = Selection(),
    multi_label: bool = False, ranges: Mapping[str, float] | None = None, keeps_unsaid: bool = False,
) -> ReadResult:
    """All images of a source, in the study's geometry.

    Args:
        source: see the table above.
        size: S, 1 to 4096. channels: 1 or 3. resize: "fit", "crop", "stretch" or "pad".
        classes: the study's class names in label order, once they are frozen.
        labelled: False drops labels and reads images at any depth of a folder.
        on_error: at a file that cannot be read, "stop"; "skip" (and list) it; or "report": read all, log each that is
            wrong, then raise.
        progress: told the share that is done, 0 to 1, and a line of text.
        reading: how files of more than 8 bits or several pictures are read.
        disk: a folder on whose disk images lie that are too many for memory; None where they must not. Those of an .npz
            are always in memory.
        selection: which DICOM files count, and how the patients of images are known.
        multi_label: whether images may have several labels or none.
        ranges: what values of more than 8 bits are divided by at least: what was found on other images of the study.
        keeps_unsaid: whether images of an .npz of which no class is known, which have no label, stay with -1.
    Returns: images uint8 (N, C, S, S) with int64 labels (N,), N >= 1, in byte order of paths, then of frames or rows;
        with several labels int8 (N, K) of 1, 0 and, for a class that the source was never asked for, -1.
    Raises: BadData, naming the file; BadConfiguration for a form that does not exist.
    """
    _check_form(size, channels, resize)
    classes = _checked_classes(classes)
    path, split = parse_source(source)
    kind = kind_of(path)
    form = pixels.Geometry(size=size, channels=channels, resize=resize)
    if kind in ("folder", "table"):
        assert path is not None
        listing = listing_of(path, split, source=source, classes=classes, selection=selection, multi_label=multi_label)
        return read_listing(source, listing, form=form, reading=reading, classes=classes, labelled=labelled,
                            on_error=on_error, progress=progress, disk=disk, patient=selection.patient,
                            multi_label=multi_label, ranges=ranges)
    if kind == "parquet":
        assert path is not None
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=multi_label,
                                 classes=classes)
        return read_rows(rows, form=form, reading=reading, classes=classes, labelled=labelled, on_error=on_error,
                         progress=progress, disk=disk, patient=selection.patient, ranges=ranges)
    shape = arrays_of(source, path, split, labels="no", pixels=False).shape
    _place(source, shape[0], size=size, channels=channels, disk=None)
    arrays = arrays_of(source, path, split, labels="needed" if labelled else "no", multi_label=multi_label,
                       classes=classes)
    labels_N, names = (_align(arrays.source, _known(arrays.labels_N), arrays.classes, arrays.classes_named, classes)
                       if labelled else (None, classes))
    assert arrays.images is not None
    try:
        found_range = pixels.range_of(arrays.images, reading=reading, ranges=ranges or {})
        squares = pixels.squares(arrays.images, size=size, channels=channels, resize=resize, reading=reading,
                                 ranges=ranges or {}, progress=_told(progress))
    except pixels.UnusableError as error:
        raise BadData(f"{source}: its images cannot be used: {error}.",
                      remedy=error.remedy or "Store uint8 pixels, or fractions in 0..1.") from None
    image_names = tuple(f"{arrays.prefix}[{i}]" for i in range(len(squares)))
    patients = arrays.patients if selection.patient == "auto" else ()
    divided = {**(ranges or {}), **({} if found_range is None else dict([found_range]))}
    for found_kind, limit in arrays.ranges:
        divided[found_kind] = max(limit, divided.get(found_kind, 0.0))
    images, skipped = _image_set(squares, labels_N, image_names, patients), tuple[Skipped, ...]()
    if labels_N is not None and not keeps_unsaid:
        _check_any_said(source, labels_N)
        said_N = is_said(labels_N)
        if unsaid := int((~said_N).sum()):
            images, skipped = images.subset(np.flatnonzero(said_N)), (Skipped(f"{unsaid} rows", "have no label"),)
    return ReadResult(images, names, skipped, () if found_range is None else found_range[:1], divided)


def kind_of(path: Path | None) -> SourceKind:
    """What kind of source a path is, by its name and by what a folder holds; "npz" also for what is none of them."""
    if path is None:
        return "digits"
    if parquet.parquet_files(path):
        return "parquet"
    if path.is_dir():
        return "folder"
    return "table" if table.is_table(path) and path.exists() else "npz"


def listing_of(path: Path, split: str, *, source: str, classes: tuple[str, ...] = (),
               selection: Selection = Selection(), multi_label: bool = False) -> Listing:
    """The images of a folder or a table; of DICOM files those that the selection asks for.

    Raises: BadData when it cannot be listed or understood, or holds no image; BadConfiguration for a tag that there is
        not, or a format that is not installed.
    """
    use_formats(selection.formats)
    if table.is_table(path) and not path.is_dir():
        listing = table.list_table(path, split, source=source, classes=classes, multi_label=multi_label)
    else:
        listing = folder.list_images(path)
    listing = listing.spelled_as(classes)
    return _chosen(listing, selection, source) if selection.dicom else listing


def _chosen(listing: Listing, selection: Selection, source: str) -> Listing:
    """The listing without DICOM files whose tags say something else than what is asked for."""
    rules = selection.rules
    dicom.check_rules(rules)
    files = [file for file in listing.images if format_of(file.path) is DICOM]
    with ThreadPoolExecutor(_HEADER_THREADS, thread_name_prefix="tags") as pool:
        why = dict(zip((file.name for file in files), pool.map(lambda file: dicom.unlike(file.path, rules), files),
                       strict=True))
    kept = tuple(file for file in listing.images if not why.get(file.name))
    if not kept:
        by_tag = Counter(why.values())
        wanted = ", ".join(f"{by_tag[keyword]} by {keyword}" for keyword in rules if by_tag[keyword])
        raise BadData(f"{source}: none of {len(files)} DICOM file{'s' * (len(files) != 1)} has the tags that [data]"
                      f" dicom asks for (left out: {wanted}).",
                      remedy='Fix the values there; "" stands for a file without the tag.')
    left_out = tuple(Skipped(name, f"its {keyword} is none of those that [data] dicom asks for", unchosen=True)
                     for name, keyword in why.items() if keyword)
    return replace(listing, images=kept, skipped=_in_order([*listing.skipped, *left_out]))


def survey(source: str, selection: Selection = Selection()) -> Survey:
    """What a source holds, from names and headers only. Needs no torch.

    Raises: BadData as `read_images`, except for what only decoding shows.
    """
    path, split = parse_source(source)
    kind = kind_of(path)
    if kind == "parquet":
        assert path is not None
        return _survey_rows(parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=None))
    if kind not in ("folder", "table"):
        arrays = arrays_of(source, path, split, labels="if there", pixels=False, multi_label=None)
        counts = _class_counts(arrays.labels_N, arrays.classes)
        return Survey("digits" if path is None else "npz", arrays.shape[0], arrays.classes, counts,
                      {(arrays.shape[2], arrays.shape[1]): arrays.shape[0]},
                      3 if len(arrays.shape) == 4 and arrays.shape[3] > 1 else 1,
                      num_with_rows=int(is_said(arrays.labels_N).sum())
                      if arrays.labels_N is not None and arrays.labels_N.ndim == 2 else None)
    assert path is not None
    listing = listing_of(path, split, source=source, selection=selection)
    sizes, channels = _sampled(listing.images, len(listing.images))
    by_class = Counter(file.class_name for file in listing.images)
    in_classes = any(name for name in by_class)
    counts = {name: by_class[name] for name in listing.folders} if in_classes else {}
    several = any(file.findings is not None for file in listing.images)
    return Survey("table" if kind == "table" else "class_folders" if in_classes else "flat_folder",
                  len(listing.images), listing.folders if in_classes else (), counts, sizes, channels, listing.skipped,
                  num_with_rows=sum(file.has_label for file in listing.images) if several else None)


def classes_of(sources: Sequence[str]) -> tuple[str, ...]:
    """The classes of one source, or every class that one of several has: numbers in their order, names in that of the
    alphabet.

    Raises: BadData as `survey`.
    """
    if len(sources) == 1:
        return survey(sources[0]).classes
    found = {name for source in sources for name in survey(source).classes}
    return tuple(sorted(found, key=int) if all(name.isdecimal() for name in found) else sorted(found))


def _survey_rows(rows: parquet.Rows) -> Survey:
    wanted = np.zeros(rows.number, dtype=bool)
    wanted[: min(rows.number, 50)] = True  # the first rows: others would need all before them to be read
    sizes, channels = _sampled(list(parquet.files_of(rows, wanted)), 50)
    several = rows.labels_N is not None and rows.labels_N.ndim == 2
    return Survey("parquet", rows.number, rows.classes, _class_counts(rows.labels_N, rows.classes), sizes, channels,
                  num_with_rows=int(rows.has_label_N.sum()) if several else None)


def _sampled(files: Sequence[ImageFile], number: int) -> tuple[dict[tuple[int, int], int], Literal[1, 3]]:
    """Sizes with counts, and channels, of an even sample."""
    step = max(1, -(-number // _SAMPLE))
    headers = [found for file in files[::step] if (found := decoding.header(file)) is not None]
    sizes = dict(Counter(found.size for found in headers).most_common(5))
    return sizes, 3 if any(found.channels == 3 for found in headers) else 1


def _class_counts(labels_N: NDArray[np.int64] | None, classes: tuple[str, ...]) -> dict[str, int]:
    occurring = ([0] * len(classes) if labels_N is None else (labels_N == 1).sum(axis=0).tolist() if labels_N.ndim == 2
                 else np.bincount(labels_N[labels_N >= 0], minlength=len(classes)).tolist())
    return dict(zip(classes, occurring, strict=True))


def read_listing(
    source: str, listing: Listing, *, form: pixels.Geometry, reading: Reading, classes: tuple[str, ...],
    labelled: bool, on_error: OnError, progress: Callable[[float, str], None] | None = None,
    ranges: Mapping[str, float] | None = None, disk: Path | None = None, patient: PatientRule = "auto",
    multi_label: bool = False,
) -> ReadResult:
    """As `read_images`, of image files that were listed before.

    Args:
        source: where they lie, for messages.
        ranges: what another part of the same source divides values of more than 8 bits by.
    """
    files, skipped = list(listing.images), list(listing.skipped)
    broken = next((item for item in skipped if item.broken), None)
    if on_error == "stop" and broken is not None:
        raise BadData(f"{source}: {broken.name}: {broken.reason}.",
                      remedy='Fix it, or set on_error = "skip" to leave such files out.')
    if labelled:
        _check_listing(source, listing, classes, multi_label=multi_label)
        classes = classes or listing.folders
        beside = "has no label" if has_suffix(source.partition("#")[0], TABLE) else \
            "lies beside the class folders, so it has no class"
        skipped += [Skipped(file.name, beside) for file in files if not file.has_label]
        files = [file for file in files if file.has_label]
    number = sum(decoding.count_pictures(files, reading))
    disk = _place(source, number, size=form.size, channels=form.channels, disk=disk)
    found = decoding.decode(lambda: files, number, form=form, reading=reading, on_error=on_error, where=source,
                            ranges=ranges, num_files=len(files), progress=_told(progress), disk=disk)
    everything = _in_order([*skipped, *found.skipped])
    if on_error == "report":
        refuse_broken(source, everything)
    return ReadResult(images=_labelled(found, classes if labelled else None, patient,
                                       asked=listing.asked if multi_label else ()), classes=classes,
                      skipped=everything, tied=found.tied, ranges=found.ranges)


def read_rows(rows: parquet.Rows, *, form: pixels.Geometry, reading: Reading, classes: tuple[str, ...], labelled: bool,
              on_error: OnError, progress: Callable[[float, str], None] | None = None,
              wanted: NDArray[np.bool_] | None = None, ranges: Mapping[str, float] | None = None,
              disk: Path | None = None, patient: PatientRule = "auto") -> ReadResult:
    """As `read_images`, of Parquet files that were opened before.

    Args:
        wanted: which rows; all by default.
    """
    take = np.ones(rows.number, dtype=bool) if wanted is None else wanted
    skipped: list[Skipped] = []
    if labelled:
        labels_N, names = _align(rows.source, _known(rows.labels_N, source=rows.source), rows.classes,
                                 rows.classes_named, classes)
        unlabelled = int((take & ~rows.has_label_N).sum())
        if unlabelled:
            skipped.append(Skipped(f"{unlabelled} rows", "have no label"))
        take = take & rows.has_label_N
        if not take.any():
            raise BadData(f"{rows.source}: holds {rows.number} images and no label.",
                          remedy="Say which column holds the labels: add #label=COLUMN.")
        index = {own: names[int(labels_N[row])] for own, row in _first_of(rows)} if labels_N.ndim == 1 else {}
        classes = names
    number = int(take.sum())
    disk = _place(rows.source, number, size=form.size, channels=form.channels, disk=disk)

    def files() -> Iterable[ImageFile]:
        for file in parquet.files_of(rows, take):
            yield replace(file, class_name=index.get(file.class_name, "") if labelled else "")

    found = decoding.decode(files, number, form=form, reading=reading, on_error=on_error, where=rows.source,
                            ranges=ranges, progress=_told(progress), disk=disk)
    everything = (*skipped, *found.skipped)
    if on_error == "report":
        refuse_broken(rows.source, everything)
    several = rows.labels_N is not None and rows.labels_N.ndim == 2
    return ReadResult(images=_labelled(found, classes if labelled else None, patient if patient == "auto" else "none",
                                       asked=rows.asked if several else ()),
                      classes=classes, skipped=everything, tied=found.tied, ranges=found.ranges)


def _first_of(rows: parquet.Rows) -> list[tuple[str, int]]:
    """For each class of the file that occurs: its name there, and the first row that has it."""
    assert rows.labels_N is not None
    occurring, first = np.unique(rows.labels_N, return_index=True)
    return [(rows.classes[int(label)], int(row)) for label, row in zip(occurring, first, strict=True) if label >= 0]


def _labelled(found: decoding.Decoded, classes: tuple[str, ...] | None, patient: PatientRule, *,
              asked: tuple[str, ...] | None = ()) -> ImageSet:
    """What was decoded as a set of images.

    Args:
        classes: None drops all labels.
        asked: () where an image has one class; else `Listing.asked`.
    """
    labels_N: NDArray[np.integer] | None = None
    if classes is not None and asked == ():
        index = {name: label for label, name in enumerate(classes)}
        labels_N = np.array([index[file.class_name] for file in found.files], dtype=np.int64)
    elif classes is not None:
        labels_N = to_rows([file.findings or () for file in found.files], classes, asked=asked,
                           unsure=[file.unsure for file in found.files])
    if classes is not None and labels_N is not None:
        _warn_of_twins(found, labels_N, classes)
    pictures = Counter(id(file) for file in found.files)
    patients = tuple(patient_of(file, of_file, patient, in_class=classes is not None and asked == (),
                                has_several=pictures[id(file)] > 1)
                     for file, of_file in zip(found.files, found.patients, strict=True))
    return _image_set(found.squares, labels_N, found.names, patients if any(patients) else ())


def patient_of(file: ImageFile, of_tags: str, rule: PatientRule, *, in_class: bool, has_several: bool = False) -> str:
    """A key of an image's patient; where that is not known, of its file if others of it count; "" else.

    Args:
        of_tags: what the file itself says, a key as well.
        in_class: whether the first folder is that of the class.
        has_several: whether other pictures of the file count: slices of a volume, pages, frames.
    """
    if rule == "none":
        return ""
    # By where it lies: in two folders files of the same name are two files.
    return _patient_by(rule, file, of_tags, in_class=in_class) or (
        file_key(os.path.realpath(file.path)) if has_several else "")


def _patient_by(rule: PatientRule, file: ImageFile, of_tags: str, *, in_class: bool) -> str:
    if rule == "auto":
        return file.patient or of_tags
    *folders, name = file.name.split("/")
    if rule == "name":
        return patient_key(name.partition("_")[0]) if "_" in name else ""
    inside = folders[1:] if folders and (in_class or folders[0] == UNLABELLED) else folders
    return patient_key(inside[0]) if inside else ""


def _warn_of_twins(found: decoding.Decoded, labels_N: NDArray[np.integer], classes: tuple[str, ...]) -> None:
    """Says on this machine which images are in two classes; pictures of a single value are not looked at."""
    seen: dict[bytes, int] = {}
    twins = []
    for index, square in enumerate(found.squares):
        first = seen.setdefault(square.tobytes() if square.size <= 64 else _digest(square), index)
        if not np.array_equal(labels_N[first], labels_N[index]) and square.min() != square.max():
            twins.append((first, index))

    def said(index: int) -> str:
        if labels_N.ndim == 1:
            return classes[int(labels_N[index])]
        return "|".join(findings_of(labels_N[index].tolist(), classes)) or "no finding"

    for first, index in twins[:5]:
        _LOG.warning("the same image in two classes: %s (%s) and %s (%s)", printable(found.names[first], limit=200),
                     said(first), printable(found.names[index], limit=200), said(index))
    if len(twins) > 5:
        _LOG.warning("the same image in two classes: %d more", len(twins) - 5)


def _digest(square: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(square).data, digest_size=16).digest()


def refuse_broken(where: str, skipped: Iterable[Skipped], *, any_left: bool = True) -> None:
    """What "report" does when everything was read: names all that is wrong on this machine, in its log.

    Args:
        any_left: whether there are images without those.
    Raises: BadData when there is anything.
    """
    broken = [item for item in skipped if item.broken]
    for item in broken:
        _LOG.warning("%s: %s", printable(item.name, limit=300), printable(item.reason, limit=300))
    if broken:
        raise BadData(f"{where}: {len(broken)} file{'s' * (len(broken) > 1)} cannot be used; each is named above.",
                      remedy='Fix or remove them, or set on_error = "skip" to leave them out.' if any_left else
                      "There is no other: check how they were exported.")


def _in_order(skipped: list[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(skipped, key=lambda item: item.name.encode()))


def check_folders(source: str, folders: Sequence[str], classes: tuple[str, ...]) -> None:
    """Raises: BadData for a class folder that the study does not know, when its classes are frozen."""
    _refuse_unknown(source, folders, classes, what="folder")


def check_labelled(source: str, *, classes: tuple[str, ...], selection: Selection = Selection(),
                   multi_label: bool = False) -> None:
    """Refuses what `read_images` with labels would refuse of names and labels, in the same words; decodes nothing.

    Args:
        classes: the study's class names in label order, once they are known.
        multi_label: whether images may have several labels or none.
    Raises: BadData; BadConfiguration for a tag that there is not.
    """
    path, split = parse_source(source)
    kind = kind_of(path)
    if kind in ("folder", "table"):
        assert path is not None
        _check_listing(source, listing_of(path, split, source=source, classes=classes, selection=selection,
                                          multi_label=multi_label), classes, multi_label=multi_label)
        return
    if kind == "parquet":
        assert path is not None
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=multi_label,
                                 classes=classes)
        check_labels(rows.source, _known(rows.labels_N, source=rows.source), rows.classes, rows.classes_named, classes)
        return
    arrays = arrays_of(source, path, split, labels="needed", pixels=False, multi_label=multi_label,
                       classes=classes)
    labels_N = _known(arrays.labels_N)
    check_labels(arrays.source, labels_N, arrays.classes, arrays.classes_named, classes)
    _check_any_said(source, labels_N)


def _check_any_said(source: str, labels_N: NDArray[np.integer]) -> None:
    """Raises: BadData for an .npz in which no class of any image is known."""
    if not is_said(labels_N).any():
        raise BadData(f"{source}: holds {len(labels_N)} images and no label: no class of any is known (-1).",
                      remedy=f"Write {'1 or 0 where a class' if labels_N.ndim == 2 else 'the class where it'} is known,"
                             " or use them as unlabelled.")


def _check_listing(source: str, listing: Listing, classes: tuple[str, ...], *, multi_label: bool = False) -> None:
    if listing.question is not None:
        raise listing.question
    if multi_label and not has_suffix(source.partition("#")[0], TABLE):
        raise BadData(f"{source}: is a folder, and in this study an image may have several labels or none, which class"
                      " folders cannot say.", remedy="Name a table that says what each image shows: labels.csv, with a"
                                                     ' column of 0 and 1 for each class, or cells such as "A|B".')
    if not any(file.has_label for file in listing.images):
        of_table = has_suffix(source.partition("#")[0], TABLE)
        raise BadData(f"{source}: names {counted(len(listing.images), 'image')} and no label." if of_table
                      else f"{source}: holds {counted(len(listing.images), 'image')} but no class folders.",
                      remedy="Say which column holds the labels: add #label=COLUMN." if of_table else
                      "Put the images of each class into a folder with its name, or use them as unlabelled.")
    if not has_suffix(source.partition("#")[0], TABLE):
        refuse_parts(source, listing, classes=classes)
        refuse_without_label(source, listing, classes=classes)
    _refuse_unknown(source, listing.folders, classes,
                    what="class" if has_suffix(source.partition("#")[0], TABLE) else "folder")


def check_labels(source: str, labels_N: NDArray[np.int64], own: tuple[str, ...], named: bool,
                 classes: tuple[str, ...]) -> None:
    """Whether labels of rows or of an array fit the study's classes, as reading them finds out. Raises: BadData."""
    _align(source, labels_N, own, named, classes)


def _told(progress: Callable[[float, str], None] | None) -> Callable[[float], None] | None:
    """The share alone; the line says not what is read: at a silo it goes to the coordinator."""
    return None if progress is None else lambda share: progress(share, "reading images")


def _place(source: str, number: int, *, size: int, channels: int, disk: Path | None) -> Path | None:
    """Where the squares go, as `disk_for` says, and a line about it where that is a disk."""
    needed, what = number * channels * size * size, f"{source}: its {number} images as squares of {size} pixels"
    chosen = disk_for(needed, what=what, disk=disk)
    if chosen is not None:
        _LOG.info("%d images of %d pixels need %s, too much for memory: they are stored on the disk of %s, in an"
                  " unnamed file, until they are no longer needed", number, size, describe_bytes(needed), chosen)
    return chosen


def arrays_of(
    source: str, path: Path | None, split: str, *, labels: Literal["needed", "if there", "no"], pixels: bool = True,
    multi_label: bool | None = False, classes: tuple[str, ...] = (),
) -> archive.Arrays:
    """An .npz or the digits, as `semisilo.common.data.formats.archive` reads them.

    Args:
        classes: the study's class names, once they are frozen: they keep its spelling.
    Raises: BadData, also for a path that is no kind of source.
    """
    if path is None:
        if multi_label and labels != "no":
            raise BadData(f"{source}: every digit is of one class, and in this study an image may have several labels.",
                          remedy="Name other images, or leave [study] task out.")
        return archive.digits(split, source=source)
    if not path.exists():
        raise BadData(f"{source}: no such folder or file.", remedy=SOURCES)
    if not has_suffix(path, NPZ):
        raise BadData(f"{source}: is neither a folder nor an .npz file, a table or Parquet.", remedy=SOURCES)
    return archive.npz(path, split, source=source, labels=labels, pixels=pixels, multi_label=multi_label,
                       classes=classes)


def _known(labels_N: NDArray[np.int64] | None, *, source: str = "") -> NDArray[np.int64]:
    if labels_N is None:
        raise BadData(f"{source}: has no labels.", remedy="Say which column holds them: add #label=COLUMN.")
    return labels_N


def _align(source: str, labels_N: NDArray[np.int64], own: tuple[str, ...], named: bool, classes: tuple[str, ...]
           ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels by the study's class order, and that order; -1 stays.

    Args:
        own: the source's classes; `named` says whether it names them itself.
    """
    if not classes:
        return labels_N, own
    if named:
        _refuse_unknown(source, own, classes, what="class")
        if labels_N.ndim == 2:  # a class that the source has no column for is not known
            aligned_NK = np.full((len(labels_N), len(classes)), -1, dtype=np.int64)
            aligned_NK[:, [classes.index(name) for name in own]] = labels_N
            return aligned_NK, classes
        order = np.array([*(classes.index(name) for name in own), -1], dtype=np.int64)
        return order[labels_N], classes
    if labels_N.ndim == 2:
        if labels_N.shape[1] != len(classes):
            raise BadData(f"{source}: its labels have {labels_N.shape[1]} columns, the study has {len(classes)}"
                          " classes.",
                          remedy="Write one column for each class of the study, in its order.")
        return labels_N, classes
    if len(labels_N) and labels_N.max() >= len(classes):
        index = int(labels_N.argmax())
        raise BadData(f"{source}: label {labels_N[index]} of image {index} is out of range, "
                      f"the study has {len(classes)} classes (0 to {len(classes) - 1}).",
                      remedy="Use labels in the study's class order.")
    return labels_N, classes


def _refuse_unknown(source: str, found: Sequence[str], known: tuple[str, ...], *, what: str) -> None:
    for name in found:
        if known and name not in known:
            near = difflib.get_close_matches(name.casefold(), [other.casefold() for other in known], n=1)
            match = next((other for other in known if near and other.casefold() == near[0]), None)
            raise BadData(f"{source}: {what} '{name}' is not a class of the study.",
                          remedy=f"Did you mean '{match}'?" if match else f"The study's classes: {', '.join(known)}.")


def parse_source(source: str) -> tuple[Path | None, str]:
    """Path (None for the embedded digits), and what stands behind the # ("" when nothing does)."""
    head, _, split = source.partition("#")
    if head == DIGITS:
        return None, split
    head, mark, split = source.partition("#")
    if mark and has_suffix(head, TABLE, PARQUET):
        return Path(head).expanduser(), split
    head, mark, split = source.rpartition("#")
    if mark and has_suffix(head, NPZ):
        return Path(head).expanduser(), split
    whole = Path(source).expanduser()
    if mark and not whole.exists() and parquet.parquet_files(Path(head).expanduser()):
        return Path(head).expanduser(), split
    return whole, ""


def _checked_classes(classes: tuple[str, ...] | None) -> tuple[str, ...]:
    if classes and len(set(classes)) != len(classes):
        double = next(name for name in classes if classes.count(name) > 1)
        raise BadConfiguration(f"classes: '{double}' is listed twice.", remedy="Name each class once.")
    return tuple(classes or ())


def _check_form(size: int, channels: int, resize: str) -> None:
    if not 1 <= size <= 4096:
        raise BadConfiguration(f"size = {size}: must be between 1 and 4096.")
    if channels not in (1, 3):
        raise BadConfiguration(f"channels = {channels}: must be 1 (grey) or 3 (colour).")
    if resize not in _RESIZES:
        near = difflib.get_close_matches(resize, _RESIZES, n=1)
        raise BadConfiguration(f"resize = {resize!r} is not known.",
                               remedy=f"Did you mean '{near[0]}'?" if near else "Choose fit, crop, stretch or pad.")


def _image_set(squares: NDArray[np.uint8], labels_N: NDArray[np.integer] | None, names: tuple[str, ...],
               patients: tuple[str, ...] = ()) -> ImageSet:
    import torch

    if labels_N is not None and labels_N.ndim == 2:
        labels_N = labels_N.astype(np.int8)
    labels = None if labels_N is None else torch.from_numpy(labels_N)
    return ImageSet(torch.from_numpy(squares), labels, names, patients)
