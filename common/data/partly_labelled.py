"""Sources that hold images with and without a class side by side: which of them are labelled.

| source                       | labelled                               | unlabelled                               |
|------------------------------|----------------------------------------|------------------------------------------|
| a folder with `labelled/`    | labelled/<class>/..., at any depth     | unlabelled/... and images at the top     |
| a folder of class folders    | <class>/..., at any depth              | unlabelled/... and images at the top     |
| a flat folder                | none                                   | all                                      |
| an .npz with two parts       | `labelled_images`, `labelled_labels`   | `unlabelled_images`, `unlabelled_steps`  |
| any other .npz               | those with a label                     | those with -1; all without labels        |
| digits                       | all                                    | none                                     |
| a table, Parquet             | rows with a label                      | rows without                             |

The two parts of an .npz may be empty. Its `unlabelled_steps` (one whole number per image, from 0) let the unlabelled
images come in steps of `rounds_per_step` rounds each: the streaming setting of FedMatch. In an .npz -1 says that an
image has no label, where images may have several or none a row of -1.

Shapes: N unlabelled images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import LABELLED, UNLABELLED, ImageForm, OnError, PatientRule, Selection
from semisilo.common.data.formats import archive, folder, parquet
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.formats.registry import NPZ, TABLE, has_suffix
from semisilo.common.data.identifiers import patients_for_classes
from semisilo.common.data.image_set import ImageSet, ReadResult, Skipped, joined
from semisilo.common.data.layout import layout_of, refuse_parts
from semisilo.common.data.multi_hot import is_said
from semisilo.common.data.readers import (
    arrays_of,
    check_folders,
    check_labels,
    kind_of,
    listing_of,
    parse_source,
    read_images,
    read_listing,
    read_rows,
    refuse_broken,
    survey,
)
from semisilo.common.errors import BadData

__all__ = ["PartlyLabelled", "PartlySurvey", "apart", "check_partly_labelled", "parts_of", "read_partly_labelled",
           "survey_partly_labelled"]

_NEARLY = (LABELLED, UNLABELLED, "labeled", "unlabeled")
Progress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartlyLabelled:
    """What was read of a source."""

    labelled: ImageSet | None
    unlabelled: ImageSet | None
    """Without labels."""
    steps_N: NDArray[np.int64] | None = None
    """The step of each unlabelled image, from 0; -1 for one that is there in every step. None without steps."""
    rounds_per_step: int = 1
    skipped: tuple[Skipped, ...] = ()
    tied: tuple[str, ...] = ()
    """See `ReadResult`; of both parts."""
    ranges: Mapping[str, float] = field(default_factory=dict)
    """Likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartlySurvey:
    """How many images a source holds."""

    labelled: int
    unlabelled: int
    steps: int = 0
    """Steps in which the unlabelled images come; 0 when all are there from the start."""


def read_partly_labelled(source: str, form: ImageForm, *, classes: tuple[str, ...], use_labels: bool,
                         on_error: OnError = "stop", progress: Progress | None = None,
                         disk: Path | None = None, selection: Selection = Selection(), multi_label: bool = False
                         ) -> PartlyLabelled:
    """All images of a source in a study's geometry, apart by whether they are labelled.

    Args:
        classes: the study's class names in label order.
        use_labels: False drops every label: all images are unlabelled, those that had labels are there in every step.
        progress: told the share that is done, 0 to 1, and a line of text that names no file.
        disk: a folder on whose disk images lie that are too many for memory; None where they must not.
        selection: which DICOM files count, and how the patients of images are known.
        multi_label: whether images may have several labels or none. Folders then say nothing: all that is in them is
            unlabelled.
    Raises: BadData, naming the file, also for a class that the study does not have.
    """
    path, split = parse_source(source)
    kind = kind_of(path)
    if multi_label and kind == "folder":
        use_labels = _folders_say_nothing(source, path)
    if path is not None and use_labels and kind in ("folder", "table"):
        listing = listing_of(path, split, source=source, classes=classes, selection=selection, multi_label=multi_label)
        divided = _apart(source, path, listing, classes) if kind == "folder" else _by_label(source, listing)
        _check_apart(source, listing, divided, classes)
        return _read_apart(source, listing, divided, form, classes, on_error, progress, disk, selection.patient,
                           multi_label=multi_label)
    if path is not None and use_labels and kind == "parquet":
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=multi_label,
                                 classes=classes)
        return _read_rows(rows, form, classes, on_error, progress, disk, selection.patient)
    parts = parts_of(source, path, split)
    if parts is not None:
        return _read_parts(source, parts, form, classes, use_labels, progress, multi_label=multi_label)
    labelled = use_labels and survey(source, selection).num_labelled > 0
    found = read_images(source, size=form.size, channels=form.channels, resize=form.resize, classes=classes,
                        labelled=labelled, on_error=on_error, progress=progress, reading=form.reading, disk=disk,
                        selection=selection, multi_label=multi_label, keeps_unsaid=True)
    said, unsaid = _by_rows(found.images)
    return PartlyLabelled(labelled=said, unlabelled=unsaid, skipped=found.skipped, tied=found.tied, ranges=found.ranges)


def _folders_say_nothing(source: str, path: Path | None) -> bool:
    """False: the images of a folder have no labels where an image may have several.

    Raises: BadData for a folder that says of itself that some are labelled.
    """
    if path is not None and (path / LABELLED).is_dir():
        raise BadData(f"{source}: has a folder '{LABELLED}', and in this study an image may have several labels or"
                      " none, which class folders cannot say.",
                      remedy="Name a table that says what each image shows: silo join --labelled labels.csv.")
    return False


def check_partly_labelled(source: str, *, classes: tuple[str, ...], selection: Selection = Selection(),
                          multi_label: bool = False) -> None:
    """Refuses what `read_partly_labelled` with `use_labels` would refuse of names and labels, in the same words;
    decodes nothing.

    Args:
        classes: the study's class names in label order.
        multi_label: whether images may have several labels or none.
    Raises: BadData for folders of which it is not clear what they are, and for a class that the study does not have.
    """
    path, split = parse_source(source)
    kind = kind_of(path)
    if multi_label and kind == "folder":
        _folders_say_nothing(source, path)
        return
    if path is not None and kind in ("folder", "table"):
        listing = listing_of(path, split, source=source, classes=classes, selection=selection, multi_label=multi_label)
        divided = _apart(source, path, listing, classes) if kind == "folder" else _by_label(source, listing)
        _check_apart(source, listing, divided, classes)
        check_folders(divided.where, divided.labelled.folders, classes)
        return
    if kind == "parquet":
        assert path is not None
        rows = parquet.open_rows(parquet.parquet_files(path), split, source=source, multi_label=multi_label,
                                 classes=classes)
        if rows.labels_N is not None:
            check_labels(rows.source, rows.labels_N, rows.classes, rows.classes_named, classes)
        return
    parts = parts_of(source, path, split)
    for name in ("",) if parts is None else (LABELLED,) if parts.labelled else ():
        arrays = arrays_of(source, path, name or split, labels="if there", pixels=False, multi_label=multi_label,
                           classes=classes)
        if arrays.labels_N is not None:
            check_labels(arrays.source, arrays.labels_N, arrays.classes, arrays.classes_named, classes)


def survey_partly_labelled(source: str, selection: Selection = Selection()) -> PartlySurvey:
    """What `read_partly_labelled` would find, from names and headers only. Needs no torch.

    Raises: BadData as `read_partly_labelled`, except for what only decoding or the study's classes show.
    """
    path, split = parse_source(source)
    kind = kind_of(path)
    if path is not None and kind in ("folder", "table"):
        listing = listing_of(path, split, source=source, selection=selection)
        divided = _apart(source, path, listing) if kind == "folder" else _by_label(source, listing)
        return PartlySurvey(labelled=sum(file.has_label for file in divided.labelled.images),
                            unlabelled=len(divided.unlabelled.images))
    parts = parts_of(source, path, split)
    if parts is not None:
        steps = 0 if parts.steps_N is None else int(parts.steps_N.max(initial=-1)) + 1
        labelled_count = survey(f"{_base(source)}#{LABELLED}").num_labelled if parts.labelled else 0
        return PartlySurvey(labelled=labelled_count, steps=steps,
                            unlabelled=parts.labelled + parts.unlabelled - labelled_count)
    found = survey(source, selection)
    labelled_count = found.num_labelled
    return PartlySurvey(labelled=labelled_count, unlabelled=found.num_images - labelled_count)


# Folders --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Apart:
    """A folder's images apart."""

    where: str
    """The folder that holds the class folders, for messages."""
    labelled: folder.Listing
    """Images of the class folders, named from `where`; with `labelled/` also those beside them."""
    unlabelled: folder.Listing
    others: tuple[str, ...]
    """Folders of which it is not clear what they are; their images count as unlabelled."""


def _apart(source: str, path: Path, listing: folder.Listing, classes: tuple[str, ...] = ()) -> _Apart:
    if LABELLED in listing.folders:
        inside = path / LABELLED
        found = folder.list_images(inside) if folder.holds_files(inside) else folder.Listing((), (), ())
        found = found.spelled_as(classes)
        counting = {file.path for file in listing.images}
        found = replace(found, images=tuple(file for file in found.images if file.path in counting))
        return _Apart(f"{source}/{LABELLED}", replace(found, skipped=()),
                      folder.Listing(tuple(file for file in listing.images if file.class_name != LABELLED), (), ()),
                      tuple(name for name in listing.folders if name not in (LABELLED, UNLABELLED)))
    with_class = tuple(file for file in listing.images if file.class_name not in ("", UNLABELLED))
    return _Apart(source, folder.Listing(with_class, tuple(n for n in listing.folders if n != UNLABELLED), ()),
                  folder.Listing(tuple(file for file in listing.images if file.class_name in ("", UNLABELLED)), (), ()),
                  ())


def apart(source: str, path: Path, listing: folder.Listing, classes: tuple[str, ...] = ()) -> folder.Listing:
    """A folder's images as a silo takes them: the class of each, empty without a label; class folders as `folders`.

    Args:
        classes: the study's, once they are frozen: they keep its spelling.
    """
    found = _apart(source, path, listing, classes)
    images = (*found.labelled.images, *(replace(file, class_name="") for file in found.unlabelled.images))
    return folder.Listing(images, found.labelled.folders, listing.skipped)


def _by_label(source: str, listing: folder.Listing) -> _Apart:
    """A table's images apart."""
    return _Apart(source, replace(listing, images=tuple(file for file in listing.images if file.has_label)),
                  folder.Listing(tuple(file for file in listing.images if not file.has_label), (), ()), ())


def _check_apart(source: str, listing: folder.Listing, divided: _Apart, classes: tuple[str, ...]) -> None:
    """Raises: BadData where it is not clear which images have a label."""
    for each in (listing, divided.labelled):
        if each.question is not None:
            raise each.question
    if divided.others:
        raise BadData(f"{source}: it is not clear what the folder '{divided.others[0]}' beside '{LABELLED}' is.",
                      remedy=f"Class folders belong into '{LABELLED}', images without a class into '{UNLABELLED}'.")
    if has_suffix(source.partition("#")[0], TABLE):
        return
    refuse_parts(source, listing, classes=classes, at_silo=True)
    counts = Counter(file.class_name for file in divided.labelled.images)
    if classes and not any(name in classes for name in counts) and (asked := patients_for_classes(counts)):
        raise BadData(f"{source}: no folder has the name of a class of the study; {asked}.",
                      remedy=f"{layout_of(source, listing, at_silo=True).remedy}.")
    for name in divided.labelled.folders:
        if name.casefold() in _NEARLY and name not in classes:
            raise BadData(f"{source}: the folder '{name}' is not a class of the study.",
                          remedy=f"Call it '{LABELLED}' if it holds class folders, '{UNLABELLED}' if images without.")


def _read_apart(source: str, listing: folder.Listing, divided: _Apart, form: ImageForm, classes: tuple[str, ...],
                on_error: OnError, progress: Progress | None, disk: Path | None, patient: PatientRule, *,
                multi_label: bool = False) -> PartlyLabelled:
    broken = next((item for item in listing.skipped if item.broken), None)
    if on_error == "stop" and broken is not None:
        raise BadData(f"{source}: {broken.name}: {broken.reason}.",
                      remedy='Fix it, or set on_error = "skip" to leave such files out.')

    def read(with_class: bool, ranges: Mapping[str, float]) -> ReadResult | None:
        where, part = (divided.where, divided.labelled) if with_class else (source, divided.unlabelled)
        part = replace(part, skipped=())
        if not part.images:
            if with_class:
                check_folders(where, part.folders, classes)
            return None
        done = 0 if with_class else len(divided.labelled.images)
        return read_listing(where, part, form=_geometry(form), reading=form.reading, classes=classes,
                            labelled=with_class, on_error=_later(on_error), ranges=ranges, disk=disk, patient=patient,
                            multi_label=multi_label,
                            progress=_share_of(progress, done, len(part.images), len(listing.images)))

    return _together(source, read, listing.skipped, on_error)


def _read_rows(rows: parquet.Rows, form: ImageForm, classes: tuple[str, ...], on_error: OnError,
               progress: Progress | None, disk: Path | None, patient: PatientRule) -> PartlyLabelled:
    with_label = rows.has_label_N
    done = int(with_label.sum())

    def read(with_class: bool, ranges: Mapping[str, float]) -> ReadResult | None:
        wanted = with_label if with_class else ~with_label
        if not wanted.any():
            return None
        return read_rows(rows, form=_geometry(form), reading=form.reading, classes=classes, labelled=with_class,
                         on_error=_later(on_error), wanted=wanted, ranges=ranges, disk=disk, patient=patient,
                         progress=_share_of(progress, 0 if with_class else done, int(wanted.sum()), rows.number))

    return _together(rows.source, read, (), on_error)


def _together(source: str, read: Callable[[bool, Mapping[str, float]], ReadResult | None],
              skipped: tuple[Skipped, ...], on_error: OnError) -> PartlyLabelled:
    """Both parts, with one range of deep values: the labelled part again when the other one is brighter."""
    labelled = read(True, {})
    ranges = {} if labelled is None else labelled.ranges
    unlabelled = read(False, ranges)
    if labelled is not None and unlabelled is not None and any(
            kind in ranges and limit > ranges[kind] for kind, limit in unlabelled.ranges.items()):
        labelled = read(True, unlabelled.ranges)
    for part in (labelled, unlabelled):
        skipped += () if part is None else part.skipped
    if on_error == "report":
        refuse_broken(source, skipped)
    return PartlyLabelled(labelled=None if labelled is None else labelled.images,
                          unlabelled=None if unlabelled is None else unlabelled.images, skipped=skipped,
                          tied=_united(labelled, unlabelled), ranges=_largest(labelled, unlabelled))


def _united(*parts: ReadResult | None) -> tuple[str, ...]:
    return tuple(sorted({kind for part in parts if part is not None for kind in part.tied}))


def _largest(*parts: ReadResult | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for kind, limit in () if part is None else part.ranges.items():
            found[kind] = max(limit, found.get(kind, 0.0))
    return found


def _later(on_error: OnError) -> OnError:
    """What is wrong is reported once, when both parts are read."""
    return "skip" if on_error == "report" else on_error


def _geometry(form: ImageForm) -> Geometry:
    return Geometry(size=form.size, channels=form.channels, resize=form.resize)


# Arrays ---------------------------------------------------------------------------------------------------------------


def parts_of(source: str, path: Path | None, split: str) -> archive.Parts | None:
    """The labelled and unlabelled part of an .npz that has them; None for any other source."""
    if path is None or not has_suffix(path, NPZ) or not path.is_file() or split not in ("", LABELLED, UNLABELLED):
        return None
    parts = archive.parts(path, source=source)
    if parts is None or not split:
        return parts
    return replace(parts, labelled=0) if split == UNLABELLED else replace(parts, unlabelled=0, steps_N=None)


def _read_parts(source: str, parts: archive.Parts, form: ImageForm, classes: tuple[str, ...], use_labels: bool,
                progress: Progress | None, *, multi_label: bool = False) -> PartlyLabelled:
    base = _base(source)
    total = parts.labelled + parts.unlabelled

    def read(part: str, done: int, count: int, *, with_labels: bool) -> ReadResult | None:
        if not count:
            return None
        return read_images(f"{base}#{part}", size=form.size, channels=form.channels, resize=form.resize,
                           classes=classes, labelled=with_labels, reading=form.reading, multi_label=multi_label,
                           progress=_share_of(progress, done, count, total), keeps_unsaid=True)

    first = read(LABELLED, 0, parts.labelled, with_labels=use_labels)
    second = read(UNLABELLED, parts.labelled, parts.unlabelled, with_labels=False)
    labelled, more = (None, None) if first is None else _by_rows(first.images)
    unlabelled, steps_N = None if second is None else second.images, parts.steps_N
    if more is not None:
        unlabelled = more if unlabelled is None else joined(more, unlabelled)
        if steps_N is not None:
            steps_N = np.concatenate([np.full(len(more), -1, dtype=np.int64), steps_N])
    return PartlyLabelled(labelled=labelled, unlabelled=unlabelled, steps_N=steps_N,
                          rounds_per_step=parts.rounds_per_step, tied=_united(first, second),
                          ranges=_largest(first, second))


def _base(source: str) -> str:
    """The file of an .npz with two parts, whichever of them is named."""
    return source.removesuffix(f"#{LABELLED}").removesuffix(f"#{UNLABELLED}")


def _by_rows(images: ImageSet) -> tuple[ImageSet | None, ImageSet | None]:
    """Images with a label, and those without; None for a part without images."""
    if images.labels_N is None:
        return None, images
    said_N = is_said(images.labels_N.numpy())
    if said_N.all():
        return images, None
    said = images.subset(np.flatnonzero(said_N)) if said_N.any() else None
    return said, images.subset(np.flatnonzero(~said_N)).without_labels()


def _share_of(progress: Progress | None, done: int, count: int, total: int) -> Progress | None:
    """What to tell while `count` of `total` images are read after `done` others."""
    return None if progress is None else lambda share, text: progress((done + share * count) / total, text)
