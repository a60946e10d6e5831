"""Reads a source of images into the one form of a study.

| source           | holds                                                                       |
|------------------|-----------------------------------------------------------------------------|
| a folder         | one folder per class, its name the class; unlabelled, images at any depth   |
| file.npz         | MedMNIST's layout; file.npz#train, #val or #test, by default the train part |
| a part, .npz     | what `semisilo split` writes for a silo: part.npz#labelled and #unlabelled  |
| digits           | scikit-learn's embedded scans; digits#train and digits#test, a fixed split  |

Class order decides the labels. A study freezes it; given as `classes`, a source that lacks a class shifts nothing and
one with an unknown class is refused. Not given, class folders count in sorted order. In an .npz that does not name its
classes a label is the index into `classes`.

Shapes: N images, C channels, S side of the square.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from common.data import archive, folder, pixels
from common.data.image_set import ImageSet, ReadResult, Skipped, Survey, measure_form
from common.data.room import check_room
from common.errors import BadConfiguration, BadData

__all__ = ["ImageSet", "ReadResult", "Skipped", "Survey", "check_folders", "measure_form", "parse_source",
           "read_images", "read_listing", "survey"]

_SAMPLE = 500
_RESIZES = get_args(pixels.Resize)


def read_images(
    source: str, *, size: int, channels: int, resize: str = "fit", classes: tuple[str, ...] | None = None,
    labelled: bool = True, on_error: Literal["stop", "skip"] = "stop",
    progress: Callable[[float, str], None] | None = None,
) -> ReadResult:
    """All images of a source, in the study's geometry.

    Args:
        source: a folder, an .npz file or "digits"; see the table above.
        size: S, 1 to 4096. channels: 1 or 3. resize: "fit", "crop", "stretch" or "pad".
        classes: the study's class names in label order, once they are frozen.
        labelled: False drops labels and reads images at any depth of a folder.
        on_error: at a file that cannot be read, "stop" or "skip" (and list) it.
        progress: told the share that is done, 0 to 1, and a line of text.
    Returns: images uint8 (N, C, S, S) with int64 labels (N,), N >= 1, in byte order of paths.
    Raises: BadData, naming the file; BadConfiguration for a form that does not exist.
    """
    _check_form(size, channels, resize)
    classes = _checked_classes(classes)
    path, split = parse_source(source)

    if path is not None and path.is_dir():
        return read_listing(source, folder.list_images(path), size=size, channels=channels, resize=resize,
                            classes=classes, labelled=labelled, on_error=on_error, progress=progress)
    shape = _arrays(source, path, split, labels="no", pixels=False).shape
    _check_room(source, shape[0], size=size, channels=channels)
    arrays = _arrays(source, path, split, labels="needed" if labelled else "no")
    labels_N, names = (_align(arrays, classes) if labelled else (None, classes))
    assert arrays.images is not None
    try:
        squares = pixels.squares(arrays.images, size=size, channels=channels, resize=resize, progress=_told(progress))
    except pixels.UnusableError as error:
        raise BadData(f"{source}: its images cannot be used: {error}.",
                      remedy=error.remedy or "Store uint8 pixels, or fractions in 0..1.") from None
    image_names = tuple(f"{arrays.prefix}[{i}]" for i in range(len(squares)))
    return ReadResult(_image_set(squares, labels_N, image_names), names, ())


def survey(source: str) -> Survey:
    """What a source holds, from names and headers only. Needs no torch.

    Raises: BadData as `read_images`, except for what only decoding shows.
    """
    path, split = parse_source(source)
    if path is None or not path.is_dir():
        arrays = _arrays(source, path, split, labels="if there", pixels=False)
        counts = dict.fromkeys(arrays.classes, 0)
        if arrays.labels_N is not None:
            occurring = np.bincount(arrays.labels_N, minlength=len(arrays.classes)).tolist()
            counts = dict(zip(arrays.classes, occurring, strict=True))
        return Survey("digits" if path is None else "npz", arrays.shape[0], arrays.classes, counts,
                      {(arrays.shape[2], arrays.shape[1]): arrays.shape[0]},
                      3 if len(arrays.shape) == 4 and arrays.shape[3] > 1 else 1)
    listing = folder.list_images(path)
    step = -(-len(listing.images) // _SAMPLE)
    headers = [found for file in listing.images[::step] if (found := folder.header(file)) is not None]
    sizes = dict(Counter(size for size, _ in headers).most_common(5))
    by_class = Counter(file.class_name for file in listing.images)
    in_classes = any(name for name in by_class)
    return Survey("class_folders" if in_classes else "flat_folder", len(listing.images),
                  listing.folders if in_classes else (),
                  {name: by_class[name] for name in listing.folders} if in_classes else {},
                  sizes, 3 if any(count == 3 for _, count in headers) else 1)


def read_listing(
    source: str, listing: folder.Listing, *, size: int, channels: int, resize: str, classes: tuple[str, ...],
    labelled: bool, on_error: Literal["stop", "skip"], progress: Callable[[float, str], None] | None = None,
) -> ReadResult:
    """As `read_images`, of image files that were listed before.

    Args:
        source: where they lie, for messages.
    """
    files, skipped = list(listing.images), list(listing.skipped)
    if labelled:
        if not any(file.class_name for file in files):
            raise BadData(f"{source}: holds {len(files)} images but no class folders.",
                          remedy="Put the images of each class into a folder with its name, or use them as unlabelled.")
        check_folders(source, listing.folders, classes)
        classes = classes or listing.folders
        skipped += [Skipped(file.name, "lies beside the class folders, so it has no class")
                    for file in files if not file.class_name]
        files = [file for file in files if file.class_name]
    _check_room(source, len(files), size=size, channels=channels)
    squares, kept, unreadable = folder.decode(files, size=size, channels=channels, resize=resize, on_error=on_error,
                                              folder=source, progress=_told(progress))
    labels_N = None
    if labelled:
        index = {name: label for label, name in enumerate(classes)}
        labels_N = np.array([index[files[place].class_name] for place in kept], dtype=np.int64)
    images = _image_set(squares, labels_N, tuple(files[place].name for place in kept))
    return ReadResult(images, classes, tuple(sorted(skipped + unreadable, key=lambda item: item.name.encode())))


def check_folders(source: str, folders: Sequence[str], classes: tuple[str, ...]) -> None:
    """Raises: BadData for a class folder that the study does not know, when its classes are frozen."""
    _refuse_unknown(source, folders, classes, what="folder")


def _told(progress: Callable[[float, str], None] | None) -> Callable[[float], None] | None:
    """The share alone; the line says not what is read: at a silo it goes to the coordinator."""
    return None if progress is None else lambda share: progress(share, "reading images")


def _check_room(source: str, number: int, *, size: int, channels: int) -> None:
    check_room(number * channels * size * size, what=f"{source}: its {number} images as squares of {size} pixels",
               remedy="Use fewer images here, a smaller image size in the study, or a machine with more memory.")


def _arrays(
    source: str, path: Path | None, split: str, *, labels: Literal["needed", "if there", "no"], pixels: bool = True
) -> archive.Arrays:
    if path is None:
        return archive.digits(split, source=source)
    if not path.exists():
        raise BadData(f"{source}: no such folder or file.",
                      remedy="Give a folder of images, an .npz file, or digits.")
    if path.suffix.lower() != ".npz":
        raise BadData(f"{source}: is neither a folder nor an .npz file.",
                      remedy="Give a folder of images, an .npz file, or digits.")
    return archive.npz(path, split, source=source, labels=labels, pixels=pixels)


def _align(arrays: archive.Arrays, classes: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels by the study's class order, and that order."""
    labels_N = arrays.labels_N
    assert labels_N is not None
    if not classes:
        return labels_N, arrays.classes
    if arrays.classes_named:
        _refuse_unknown(arrays.source, arrays.classes, classes, what="class")
        order = np.array([classes.index(name) for name in arrays.classes], dtype=np.int64)
        return order[labels_N], classes
    if labels_N.max() >= len(classes):
        place = int(labels_N.argmax())
        raise BadData(f"{arrays.source}: label {labels_N[place]} of image {place} is out of range, "
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
    """Path (None for the embedded digits) and split ("" when none is named)."""
    head, _, split = source.partition("#")
    if head == "digits":
        return None, split
    head, mark, split = source.rpartition("#")
    if mark and head.lower().endswith(".npz"):
        return Path(head).expanduser(), split
    return Path(source).expanduser(), ""


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


def _image_set(squares: NDArray[np.uint8], labels_N: NDArray[np.int64] | None, names: tuple[str, ...]) -> ImageSet:
    import torch

    labels = None if labels_N is None else torch.from_numpy(labels_N)
    return ImageSet(torch.from_numpy(squares), labels, names)
