"""What a source of images holds, found by looking at all of it: what `coordinator data` and `silo data` show.

Every image is decoded as a study would, so what would go wrong later is known before. Nothing is kept but counts and
the few pictures of a contact sheet, so a source may be larger than memory. Needs no torch.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data import partly_labelled, readers
from semisilo.common.data.form import PatientRule, Reading, Selection
from semisilo.common.data.formats import decoding, parquet
from semisilo.common.data.formats.archive import Arrays
from semisilo.common.data.formats.folder import ImageFile
from semisilo.common.data.formats.pixels import Geometry, UnusableError, eight_bits, range_of, squares
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.layout import Layout, layout_of
from semisilo.common.data.multi_hot import findings_of
from semisilo.common.errors import BadData

__all__ = ["Preview", "Tile", "look_at", "sample_of", "tied_in_sample"]

_TILES = 64
_PER_CLASS = 8
_MOST_CLASSES = 40
_SIZES = 8
_NAMED = 5
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A picture of the contact sheet."""

    class_name: str
    """Empty without a label."""
    square: NDArray[np.uint8]
    """uint8 (C, S, S)."""


@dataclass(kw_only=True, slots=True, eq=False)
class Preview:
    """What was found. Names of files never leave the machine."""

    source: str
    kind: str
    num_files: int = 0
    """In an array or table of rows: of these."""
    num_images: int = 0
    """What a study would read; a file may give several."""
    labelled: int = 0
    unlabelled: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    """Class -> images, in label order, also those with none."""
    sizes: dict[str, int] = field(default_factory=dict)
    """"640x480" -> images, most common first, at most eight."""
    num_sizes: int = 0
    channels: dict[int, int] = field(default_factory=dict)
    """1 (grey) or 3 (colour) -> images."""
    bits: dict[int, int] = field(default_factory=dict)
    """Bits of each value in the file -> images."""
    skipped: tuple[Skipped, ...] = ()
    """What would be left out, or stop a study."""
    notes: tuple[str, ...] = ()
    """What a person should know, on one line each."""
    burned_in: int = 0
    """DICOM images that say of themselves that there is writing in them."""
    patients: int = 0
    """How many the images are of; 0 unless that is known of every image."""
    layout: str = ""
    """Of a folder: what its own folders are taken for."""
    questions: tuple[str, ...] = ()
    """What a person must say before labels can be used as they are, with what to do, on one line each."""
    misfits: tuple[str, ...] = ()
    """Why the source does not fit the study, on one line each."""
    tiles: tuple[Tile, ...] = ()
    pixels: Mapping[bytes, Sequence[str]] = field(default_factory=dict)
    """Of files: a digest of the pixels of every image that is not plain -> the files that have them."""

    @property
    def broken(self) -> int:
        """Files that should have been images and are not."""
        return sum(item.broken for item in self.skipped)

    def facts(self) -> dict[str, object]:
        """Plain JSON types."""
        return {"source": self.source, "kind": self.kind, "files": self.num_files, "images": self.num_images,
                "labelled": self.labelled, "unlabelled": self.unlabelled, "classes": self.classes, "sizes": self.sizes,
                "different_sizes": self.num_sizes,
                "channels": {str(key): value for key, value in self.channels.items()},
                "bits": {str(key): value for key, value in self.bits.items()}, "broken": self.broken,
                "burned_in": self.burned_in, "patients": self.patients, "layout": self.layout,
                "questions": list(self.questions),
                "skipped": [{"name": item.name, "reason": item.reason, "broken": item.broken} for item in self.skipped],
                "notes": list(self.notes), "misfits": list(self.misfits)}


@dataclass(kw_only=True, slots=True, eq=False)
class _Found:
    """Counted while the files go by."""

    classes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    bits: Counter[int] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)
    samples: list[ImageFile] = field(default_factory=list)
    unwindowed: int = 0
    burned_in: int = 0
    patients: set[str] = field(default_factory=set)
    pixels: dict[bytes, list[str]] = field(default_factory=lambda: defaultdict(list))
    labelled: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    twins: list[tuple[str, str]] = field(default_factory=list)


def look_at(source: str, *, form: Geometry, reading: Reading = Reading(), classes: tuple[str, ...] = (),
            at_silo: bool = False, use_labels: bool = True, selection: Selection = Selection(),
            multi_label: bool = False, progress: Progress | None = None) -> Preview:
    """Reads a whole source and counts.

    Args:
        form: the study's geometry, that of the contact sheet's pictures.
        classes: the study's class names, to compare with; empty for no comparison.
        at_silo: whether folders `labelled` and `unlabelled` tell images apart, as they do at a silo.
        use_labels: False: all images are unlabelled, whatever folders they are in.
        selection: which DICOM files count, and how the patients of images are known.
        multi_label: whether images of the study may have several labels or none. Arrays and lists that have several for
            an image are counted so without it.
        progress: told the share that is done and a line of text.
    Raises: BadData when the source as a whole cannot be used.
    """
    path, split = readers.parse_source(source)
    kind = readers.kind_of(path)
    questions, layout = list[str](), Layout(understood="")
    if kind in ("npz", "digits"):
        return _of_arrays(source, path, split, form, reading, classes, selection, progress)
    assert path is not None
    if kind == "parquet":
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=multi_label or None,
                                 classes=classes)
        own, names, skipped = rows.classes, rows.labels_N, tuple[Skipped, ...]()
        number = rows.number
        labels = _named(names, own, number)
        if classes and not rows.classes_named:
            own, labels = _renamed(own, labels, classes)
            questions += _by_place(classes) if number and any(labels) else []
        stream: Iterable[ImageFile] = (_with_class(file, label) for file, label in
                                       zip(parquet.files_of(rows), labels, strict=True))
    else:
        listing = readers.listing_of(path, split, source=source, classes=classes, selection=selection,
                                     multi_label=multi_label)
        questions += [] if listing.question is None or not use_labels else [listing.question.line()]
        if kind == "folder" and use_labels:
            layout = layout_of(source, listing, classes=classes, at_silo=at_silo)
            use_labels = not layout.is_refused
        apart = partly_labelled.apart(source, path, listing, classes) if kind == "folder" and at_silo else listing
        own, skipped = apart.folders, listing.skipped
        if multi_label:
            apart = replace(apart, images=tuple(_with_class(file, _joined(file.findings)) for file in apart.images))
        if not use_labels:
            apart = replace(apart, images=tuple(replace(file, class_name="") for file in apart.images))
        if not any(file.class_name for file in apart.images) and (kind == "folder" or not use_labels):
            own = ()
        number, stream = len(apart.images), apart.images
        labels = [file.class_name for file in apart.images]
    found = _Found(skipped=list(skipped))
    ranges: dict[str, float] = {}
    patient: PatientRule = "none" if kind == "parquet" and selection.patient != "auto" else selection.patient
    _count(stream, found, form, reading, ranges, _chosen(labels), number, patient, progress)
    misfits = _misfits(own, classes)
    order = (*own, *(name for name in classes if name not in own)) if own else ()
    kept = sum(found.classes.values())
    unlabelled = found.classes.pop("", 0)
    by_class = _by_finding(found.classes, order)
    if layout.question:
        questions.append(layout.asks)
    return Preview(
        source=source, kind=_KINDS[kind] if kind != "folder" else "class folders" if own else
        "parts of a data set" if layout.is_refused else "flat folder",
        num_files=number, num_images=kept, labelled=kept - unlabelled, unlabelled=unlabelled, classes=by_class,
        sizes=dict(found.sizes.most_common(_SIZES)), num_sizes=len(found.sizes),
        channels=dict(sorted(found.channels.items())), bits=dict(sorted(found.bits.items())),
        burned_in=found.burned_in, patients=0 if "" in found.patients else len(found.patients),
        layout=layout.understood,
        questions=tuple(questions), skipped=tuple(found.skipped), misfits=misfits,
        notes=_notes(found, {} if layout.question else by_class, own, ranges, reading),
        tiles=_tiles(found.samples, form, reading, ranges), pixels=found.pixels)


def sample_of(source: str, *, form: Geometry, reading: Reading = Reading(), selection: Selection = Selection()
              ) -> tuple[NDArray[np.uint8], ...]:
    """Up to 64 pictures of a source as uint8 (C, S, S), quickly: files spread evenly, or of Parquet the first rows.
    What cannot be read is left out.

    Raises: BadData when the source as a whole cannot be used.
    """
    if (files := _files_of_sample(source, selection)) is None:
        return tuple(tile.square for tile in look_at(source, form=form, reading=reading).tiles)
    return tuple(tile.square for tile in _tiles(files, form, reading, {}))


def tied_in_sample(source: str, *, form: Geometry, reading: Reading = Reading(), selection: Selection = Selection()
                   ) -> tuple[str, ...]:
    """Kinds of values of which black and white are found in several images together, as
    `semisilo.common.data.image_set.ReadResult` has them, of such a sample. None of an array, which is read as it is.

    Raises: BadData when the source as a whole cannot be used.
    """
    found = set()
    with closing(decoding.decoded(_files_of_sample(source, selection) or [], form, reading, {})) as results:
        for _, result in results:
            for picture in () if isinstance(result, decoding.Trouble) else result:
                if picture.of_volume:
                    found.add("slices of a volume")
                if picture.divided is not None:
                    found.add(picture.divided[0])
    return tuple(sorted(found))


def _files_of_sample(source: str, selection: Selection) -> list[ImageFile] | None:
    """Files spread evenly, or of Parquet the first rows; None of an array."""
    path, split = readers.parse_source(source)
    kind = readers.kind_of(path)
    if kind in ("npz", "digits"):
        return None
    assert path is not None
    if kind == "parquet":
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=None)
        return list(itertools.islice(parquet.files_of(rows), _TILES))
    images = readers.listing_of(path, split, source=source, selection=selection).images
    return list(images[::max(1, -(-len(images) // _TILES))])


_KINDS = {"table": "table", "parquet": "Parquet"}


_NOTHING = "no finding"


def _joined(findings: Sequence[str] | None) -> str:
    """What an image shows as one text; "" where that is not said."""
    return "" if findings is None else "|".join(findings) or _NOTHING


def _named(labels_N: NDArray[np.int64] | None, own: tuple[str, ...], number: int) -> list[str]:
    """The class of each image by name, or all that it shows; "" where that is not said."""
    if labels_N is None:
        return [""] * number
    if labels_N.ndim == 2:
        return [_joined(None if max(row, default=-1) < 0 else findings_of(row, own)) for row in labels_N.tolist()]
    return [own[label] if label >= 0 else "" for label in labels_N.tolist()]


def _by_finding(counts: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Images of each class, of texts that name one class or several."""
    by_class: Counter[str] = Counter()
    for text, count in counts.items():
        for name in (text,) if text in order else text.split("|"):
            by_class[name] += count
    return {name: by_class.get(name, 0) for name in order}


def _with_class(file: ImageFile, class_name: str) -> ImageFile:
    return replace(file, class_name=class_name, findings=None)


def _renamed(own: tuple[str, ...], labels: list[str], classes: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Numbers as the study's classes, as a reader takes them; as they are when there are too many."""
    if len(own) > len(classes):
        return own, labels
    new = dict(zip(own, classes, strict=False))
    return classes, [new.get(label, "") for label in labels]


def _by_place(classes: tuple[str, ...]) -> list[str]:
    """What to ask where labels are numbers, which count into the study's classes, and these are called by others."""
    if not all(name.isdecimal() for name in classes) or [*classes] == [str(place) for place in range(len(classes))]:
        return []
    return [f"Labels are numbers, and classes of the study are called by numbers: a label 0 is taken for its first"
            f" class, '{classes[0]}'. Where a label is the name of its class, write it as text, or the classes into the"
            " file."]


def _chosen(labels: Sequence[str]) -> set[int]:
    """Indices of the images for the contact sheet: some of each class, spread evenly."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        indices[label].append(index)
    per_class = max(1, min(_PER_CLASS if len(indices) > 1 else _TILES, _TILES // max(1, len(indices))))
    chosen: set[int] = set()
    for name in sorted(indices)[:_MOST_CLASSES]:
        there = indices[name]
        step = len(there) / min(per_class, len(there))
        chosen.update(there[int((number + 0.5) * step)] for number in range(min(per_class, len(there))))
    return chosen


def _count(files: Iterable[ImageFile], found: _Found, form: Geometry, reading: Reading, ranges: dict[str, float],
           chosen: set[int], number: int, patient: PatientRule, progress: Progress | None) -> None:
    with closing(decoding.decoded(files, form, reading, ranges)) as results:
        for index, (file, result) in enumerate(results):
            if progress is not None and (index % 64 == 63 or index + 1 == number):
                progress((index + 1) / number, "looking at images")
            if isinstance(result, decoding.Trouble):
                found.skipped.append(Skipped(file.name, result.reason, result.broken))
                continue
            if index in chosen:
                found.samples.append(file)
            for picture in result:
                found.classes[file.class_name] += 1
                found.sizes[f"{picture.width}x{picture.height}"] += 1
                found.channels[picture.channels] += 1
                found.bits[picture.bits] += 1
                found.unwindowed += picture.unwindowed
                found.burned_in += picture.burned_in
                found.patients.add(readers.patient_of(file, picture.patient, patient, in_class=bool(file.class_name)))
                _remember(found, file, picture.square)


def _remember(found: _Found, file: ImageFile, square: NDArray[np.uint8]) -> None:
    if square.min() == square.max():
        return
    digest = hashlib.blake2b(np.ascontiguousarray(square).data, digest_size=16).digest()
    found.pixels[digest].append(file.name)
    if not file.class_name:
        return
    name, class_name = found.labelled.setdefault(digest, (file.name, file.class_name))
    if class_name != file.class_name:
        found.twins.append((name, file.name))


def _tiles(samples: list[ImageFile], form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> tuple[Tile, ...]:
    """The chosen pictures once more, now that the range of the source is known; of a file the middle one."""
    tiles = []
    for file, result in decoding.decoded(samples, form, reading, dict(ranges)):
        if not isinstance(result, decoding.Trouble):
            tiles.append(Tile(file.class_name, result[len(result) // 2].square))
    return tuple(tiles)


def _misfits(own: Sequence[str], classes: tuple[str, ...]) -> tuple[str, ...]:
    misfits = []
    for name in own:
        if classes and name not in classes:
            near = difflib.get_close_matches(name.casefold(), [other.casefold() for other in classes], n=1)
            match = next((other for other in classes if near and other.casefold() == near[0]), None)
            misfits.append(f"'{name}' is not a class of the study" + (f"; did you mean '{match}'?" if match else
                           f", whose classes are {', '.join(classes)}."))
    return tuple(misfits)


def _notes(found: _Found, by_class: Mapping[str, int], own: Sequence[str], ranges: Mapping[str, float],
           reading: Reading) -> tuple[str, ...]:
    named = set(own)
    notes = _without_images({name: "" if name in named else ", and no folder or label"
                             for name, count in by_class.items() if not count})
    notes += [f"the same image in two classes: {first} and {second}" for first, second in found.twins[:_NAMED]]
    if len(found.twins) > _NAMED:
        notes.append(f"the same image in two classes: {len(found.twins) - _NAMED} more")
    if found.unwindowed:
        notes.append(f"DICOM images that name no window: {found.unwindowed}. They are shown over the whole range of"
                     " their bits, perhaps nearly black; a study sets one with [data.image.reading] window")
    if found.burned_in:
        notes.append(f"DICOM images that say of themselves that there is writing in them: {found.burned_in}"
                     " (BurnedInAnnotation = YES). It may name a patient, and a network may learn from it. To leave"
                     ' them out: [data] dicom = { BurnedInAnnotation = ["NO", ""] }')
    return (*notes, *_of_depth({kind: limit for kind, limit in ranges.items()
                                if len(found.bits) > 1 or limit != 65535}, reading))


def _of_depth(ranges: Mapping[str, float], reading: Reading) -> list[str]:
    """Lines about what becomes white of values of more than 8 bits, where that should be known."""
    notes = [f"values of {kind}: {limit:g} and above become white, as far as this source shows; a study can fix it for"
             " all with [data.image.reading] window" for kind, limit in ranges.items()]
    if reading.window == "image":
        notes.append("each picture is stretched from its own smallest value to its largest")
    return notes


def _without_images(empty: Mapping[str, str]) -> list[str]:
    """Lines about classes without an image.

    Args:
        empty: each with what else is to be said of it.
    """
    lines = [f"class '{name}' has no image here{more}" for name, more in list(empty.items())[:_NAMED]]
    if len(empty) > _NAMED:
        lines.append(f"{len(empty) - _NAMED:,} more classes have no image here" + (
            ": where labels are numbers, each one from 0 to the largest is a class" * all(map(str.isdecimal, empty))))
    return lines


# Arrays ---------------------------------------------------------------------------------------------------------------


def _of_arrays(source: str, path: Path | None, split: str, form: Geometry, reading: Reading, classes: tuple[str, ...],
               selection: Selection, progress: Progress | None) -> Preview:
    parts: list[Arrays] = []
    if path is not None and path.is_file() and split == "" and (
            there := partly_labelled.parts_of(source, path, split)) is not None:
        parts = [readers.arrays_of(f"{source}#{name}", path, name, labels="if there", multi_label=None,
                                    classes=classes)
                 for name, count in (("labelled", there.labelled), ("unlabelled", there.unlabelled)) if count]
    parts = parts or [readers.arrays_of(source, path, split, labels="if there", multi_label=None, classes=classes)]
    preview = Preview(source=source, kind="digits" if path is None else "npz")
    own: tuple[str, ...] = next((part.classes for part in parts if part.labels_N is not None), ())
    named = next((part.classes_named for part in parts if part.labels_N is not None), False)
    shown = own if named or not classes or len(own) > len(classes) else classes
    counts: Counter[str] = Counter()
    tiles: list[Tile] = []
    ranges: dict[str, float] = {}
    for number, part in enumerate(parts):
        assert part.images is not None
        labels = _named(part.labels_N, shown, part.shape[0])
        counts.update(labels)
        indices = sorted(_chosen(labels))
        try:
            if (found := range_of(part.images, reading=reading)) is not None:
                ranges[found[0]] = max(found[1], ranges.get(found[0], 0.0))
            made = squares(_eight_bits(part.images, reading)[indices], size=form.size, channels=form.channels,
                           resize=form.resize)
        except UnusableError as error:
            raise BadData(f"{source}: its images cannot be used: {error}.",
                          remedy=error.remedy or "Store uint8 pixels, or fractions in 0..1.") from None
        tiles += [Tile(labels[index], square) for index, square in zip(indices, made, strict=True)]
        depth = 3 if len(part.shape) == 4 and part.shape[3] > 1 else 1
        preview.channels[depth] = preview.channels.get(depth, 0) + part.shape[0]
        bits = 8 * part.images.dtype.itemsize
        preview.bits[bits] = preview.bits.get(bits, 0) + part.shape[0]
        size = f"{part.shape[2]}x{part.shape[1]}"
        preview.sizes[size] = preview.sizes.get(size, 0) + part.shape[0]
        if progress is not None:
            progress((number + 1) / len(parts), "looking at images")
    if selection.patient == "auto" and all(part.patients and all(part.patients) for part in parts):
        preview.patients = len({patient for part in parts for patient in part.patients})
    preview.num_files = preview.num_images = sum(counts.values())
    preview.unlabelled = counts.pop("", 0)
    preview.labelled = preview.num_images - preview.unlabelled
    preview.num_sizes = len(preview.sizes)
    preview.classes = _by_finding(counts, (*shown, *(c for c in classes if own and c not in shown)))
    preview.misfits = _misfits(shown, classes)
    preview.questions = tuple(_by_place(classes)) if preview.labelled and not named and classes else ()
    preview.notes = (*_without_images({name: "" for name, count in preview.classes.items() if not count}),
                     *_of_depth({kind: limit for kind, limit in ranges.items() if limit != 65535}, reading))
    preview.tiles = tuple(tiles)
    return preview


def _eight_bits(images: NDArray[Any], reading: Reading) -> NDArray[np.uint8]:
    """All of an array, since what becomes white follows from all of it."""
    if images.dtype == np.uint8:
        return images
    if reading.window != "image":
        return eight_bits(images, reading=reading, ranges={})[0]
    return np.stack([eight_bits(image, reading=reading, ranges={})[0] for image in images])
