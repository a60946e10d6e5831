"""Sources that hold images with and without a class side by side: which of them are labelled.

| source                       | labelled                               | unlabelled                               |
|------------------------------|----------------------------------------|------------------------------------------|
| a folder with `labelled/`    | labelled/<class>/..., at any depth     | unlabelled/... and images at the top     |
| a folder of class folders    | <class>/..., at any depth              | unlabelled/... and images at the top     |
| a flat folder                | none                                   | all                                      |
| an .npz with two parts       | `labelled_images`, `labelled_labels`   | `unlabelled_images`, `unlabelled_steps`  |
| any other .npz, digits       | all, if there are labels               | all, if there are none                   |

The two parts of an .npz may be empty. Its `unlabelled_steps` (one whole number per image, from 0) let the unlabelled
images come in steps of `rounds_per_step` rounds each: the streaming setting of FedMatch.

Shapes: N unlabelled images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.data import archive, folder
from common.data.form import LABELLED, UNLABELLED, ImageForm
from common.data.image_set import ImageSet, Skipped, joined
from common.data.readers import check_folders, parse_source, read_images, read_listing, survey
from common.errors import BadData

__all__ = ["PartlyLabelled", "PartlySurvey", "read_partly_labelled", "survey_partly_labelled"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PartlySurvey:
    """How many images a source holds."""

    labelled: int
    unlabelled: int
    steps: int = 0
    """Steps in which the unlabelled images come; 0 when all are there from the start."""


def read_partly_labelled(source: str, form: ImageForm, *, classes: tuple[str, ...], use_labels: bool,
                         on_error: Literal["stop", "skip"] = "stop",
                         progress: Progress | None = None) -> PartlyLabelled:
    """All images of a source in a study's geometry, apart by whether they are labelled.

    Args:
        classes: the study's class names in label order.
        use_labels: False drops every label: all images are unlabelled, those that had labels are there in every step.
        progress: told the share that is done, 0 to 1, and a line of text that names no file.
    Raises: BadData, naming the file, also for a class that the study does not have.
    """
    path, split = parse_source(source)
    if path is not None and path.is_dir() and use_labels:
        return _read_folder(source, path, form, classes, on_error, progress)
    parts = _parts(source, path, split)
    if parts is not None:
        return _read_parts(source, parts, form, classes, use_labels, progress)
    labelled = use_labels and sum(survey(source).class_counts.values()) > 0
    found = read_images(source, size=form.size, channels=form.channels, resize=form.resize, classes=classes,
                        labelled=labelled, on_error=on_error, progress=progress)
    return PartlyLabelled(labelled=found.images if labelled else None, unlabelled=None if labelled else found.images,
                          skipped=found.skipped)


def survey_partly_labelled(source: str) -> PartlySurvey:
    """What `read_partly_labelled` would find, from names and headers only. Needs no torch.

    Raises: BadData as `read_partly_labelled`, except for what only decoding or the study's classes show.
    """
    path, split = parse_source(source)
    if path is not None and path.is_dir():
        apart = _apart(source, path, folder.list_images(path))
        return PartlySurvey(labelled=sum(bool(file.class_name) for file in apart.labelled.images),
                            unlabelled=len(apart.unlabelled.images))
    parts = _parts(source, path, split)
    if parts is not None:
        steps = 0 if parts.steps_N is None else int(parts.steps_N.max(initial=-1)) + 1
        return PartlySurvey(labelled=parts.labelled, unlabelled=parts.unlabelled, steps=steps)
    found = survey(source)
    labelled_count = sum(found.class_counts.values())
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


def _apart(source: str, path: Path, listing: folder.Listing) -> _Apart:
    if LABELLED in listing.folders:
        inside = path / LABELLED
        found = folder.list_images(inside) if folder.holds_files(inside) else folder.Listing((), (), ())
        return _Apart(f"{source}/{LABELLED}", replace(found, skipped=()),
                      folder.Listing(tuple(file for file in listing.images if file.class_name != LABELLED), (), ()),
                      tuple(name for name in listing.folders if name not in (LABELLED, UNLABELLED)))
    with_class = tuple(file for file in listing.images if file.class_name not in ("", UNLABELLED))
    return _Apart(source, folder.Listing(with_class, tuple(n for n in listing.folders if n != UNLABELLED), ()),
                  folder.Listing(tuple(file for file in listing.images if file.class_name in ("", UNLABELLED)), (), ()),
                  ())


def _read_folder(source: str, path: Path, form: ImageForm, classes: tuple[str, ...],
                 on_error: Literal["stop", "skip"], progress: Progress | None) -> PartlyLabelled:
    listing = folder.list_images(path)
    apart = _apart(source, path, listing)
    if apart.others:
        raise BadData(f"{source}: it is not clear what the folder '{apart.others[0]}' beside '{LABELLED}' is.",
                      remedy=f"Class folders belong into '{LABELLED}', images without a class into '{UNLABELLED}'.")
    for name in apart.labelled.folders:
        if name.casefold() in _NEARLY and name not in classes:
            raise BadData(f"{source}: the folder '{name}' is not a class of the study.",
                          remedy=f"Call it '{LABELLED}' if it holds class folders, '{UNLABELLED}' if images without.")
    sets: list[ImageSet | None] = []
    skipped = listing.skipped
    done = 0
    for where, part, with_class in ((apart.where, apart.labelled, True), (source, apart.unlabelled, False)):
        if not part.images:
            if with_class:
                check_folders(where, part.folders, classes)
            sets.append(None)
            continue
        found = read_listing(where, part, size=form.size, channels=form.channels, resize=form.resize, classes=classes,
                             labelled=with_class, on_error=on_error,
                             progress=_share_of(progress, done, len(part.images), len(listing.images)))
        done += len(part.images)
        sets.append(found.images)
        skipped += found.skipped
    return PartlyLabelled(labelled=sets[0], unlabelled=sets[1], skipped=skipped)


# Arrays ---------------------------------------------------------------------------------------------------------------


def _parts(source: str, path: Path | None, split: str) -> archive.Parts | None:
    if path is None or path.suffix.lower() != ".npz" or not path.is_file() or split not in ("", LABELLED, UNLABELLED):
        return None
    parts = archive.parts(path, source=source)
    if parts is None or not split:
        return parts
    return replace(parts, labelled=0) if split == UNLABELLED else replace(parts, unlabelled=0, steps_N=None)


def _read_parts(source: str, parts: archive.Parts, form: ImageForm, classes: tuple[str, ...], use_labels: bool,
                progress: Progress | None) -> PartlyLabelled:
    base = source.removesuffix(f"#{LABELLED}").removesuffix(f"#{UNLABELLED}")
    total = parts.labelled + parts.unlabelled

    def read(part: str, done: int, count: int, *, with_labels: bool) -> ImageSet | None:
        if not count:
            return None
        return read_images(f"{base}#{part}", size=form.size, channels=form.channels, resize=form.resize,
                           classes=classes, labelled=with_labels,
                           progress=_share_of(progress, done, count, total)).images

    labelled = read(LABELLED, 0, parts.labelled, with_labels=use_labels)
    unlabelled = read(UNLABELLED, parts.labelled, parts.unlabelled, with_labels=False)
    steps_N = parts.steps_N
    if not use_labels and labelled is not None:
        unlabelled = labelled if unlabelled is None else joined(labelled, unlabelled)
        labelled = None
        if steps_N is not None:
            steps_N = np.concatenate([np.full(parts.labelled, -1, dtype=np.int64), steps_N])
    return PartlyLabelled(labelled=labelled, unlabelled=unlabelled, steps_N=steps_N,
                          rounds_per_step=parts.rounds_per_step)


def _share_of(progress: Progress | None, done: int, count: int, total: int) -> Progress | None:
    """What to tell while `count` of `total` images are read after `done` others."""
    return None if progress is None else lambda share, text: progress((done + share * count) / total, text)
