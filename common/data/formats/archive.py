"""Images that come as arrays: .npz files in the layout of MedMNIST, and scikit-learn's embedded digits.

An .npz holds `train_images`, `train_labels`, `val_images`, ... or one unnamed split as `images`, `labels`. Images are
N x H x W, N x H x W x 1, x 3 or x 4 (with opacity); labels N or N x 1 whole numbers; in a study whose images may have
several labels or none N x K of 0 and 1 (-1: not known), a column for each class. An optional key `classes` names the
classes in label order; `train_patients`, ... or `patients` tell whose images they are, as whole numbers (-1: not known)
or text (empty: not known). `divided_by` says of 8-bit images what their values were divided by before, as texts such as
"16 bits=4095". A silo's part has `labelled_images`, `labelled_labels` and `unlabelled_images`, and perhaps
`unlabelled_steps` with `rounds_per_step` (see `parts`). Pickled objects are never loaded, and a member's declared size
is compared with what the file holds before memory is taken.

Shapes: N images, H rows, W columns, K classes.

Tests: tests/common/data/test_readers.py.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import lzma
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import Ranges, check_ranges, patient_key
from semisilo.common.data.formats.folder import class_name_of, study_spelling
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadData
from semisilo.common.system_errors import source_trouble

__all__ = ["Arrays", "Parts", "digits", "npz", "parts", "texts_of_ranges"]

_PARTS = ("labelled", "unlabelled")
_SPLITS = ("train", "val", "test", *_PARTS)
_MAX_STEP = 10**6
_NPY = b"\x93NUMPY"
_LONGEST_HEADER = 2**16
"""Bytes of what says shape and type of an array: numpy takes no more than 10,000, but reads whatever is declared."""
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, NotImplementedError,
            zipfile.BadZipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """One split of an array source."""

    source: str
    """For messages: "scans.npz#train"."""
    prefix: str
    """Start of each image's name: "scans.npz" gives "scans.npz[12]"."""
    shape: tuple[int, ...]
    """Of the images: N, H, W and perhaps channels."""
    images: NDArray[Any] | None
    """None when only surveyed."""
    labels_N: NDArray[np.int64] | None
    """(N,), or (N, K) of 0 and 1 where images may have several labels."""
    classes: tuple[str, ...]
    """In label order; "0" .. "K-1" when the source does not name them, K over all its splits. Empty without labels."""
    classes_named: bool
    """Whether the source itself names its classes."""
    patients: tuple[str, ...] = ()
    """A key of each image's patient, "" where it is not known; () where the source names none."""
    ranges: Ranges = ()
    """What values were divided by before the file was written, where it says so."""


def digits(split: str, *, source: str) -> Arrays:
    """scikit-learn's 1797 scans of handwritten digits, 8 x 8 grey; values 0..16 become 0..255.

    Args:
        split: "" for all, or "train" or "test". Of each class, in file order, every fifth image is for the test: 1442
            and 355 images, the same on every machine and in every version.
    Raises: BadData for another split.
    """
    if split not in ("", "train", "test"):
        raise BadData(f"{source}: the digits have no split '{split}'.",
                      remedy="Write digits, digits#train or digits#test.")
    images, labels_N = _scans()
    if split:
        for_test = np.zeros(len(labels_N), dtype=bool)
        for label in range(10):
            for_test[np.flatnonzero(labels_N == label)[4::5]] = True
        chosen = for_test if split == "test" else ~for_test
        images, labels_N = images[chosen], labels_N[chosen]
    else:
        images, labels_N = images.copy(), labels_N.copy()
    classes = tuple(str(digit) for digit in range(10))
    return Arrays(source, source, images.shape, images, labels_N, classes, classes_named=True)


@functools.cache
def _scans() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All digits and what they are. Kept: a simulation deals them again and again, and they are text in a package.

    Read from the package's file, a line of 64 values and the digit for each scan: to import the package takes seconds.
    """
    found = importlib.util.find_spec("sklearn")
    assert found is not None, "scikit-learn is one of our dependencies"
    assert found.origin is not None
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, delimiter=",")
    return (np.floor(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16) + 0.5).astype(np.uint8),
            rows[:, -1].astype(np.int64))


def npz(
    path: Path, split: str, *, source: str, labels: Literal["needed", "if there", "no"], pixels: bool = True,
    multi_label: bool | None = False, classes: Sequence[str] = (),
) -> Arrays:
    """One split of an .npz file.

    Args:
        split: "train", "val", "test", "labelled", "unlabelled", or "" for the training split, or else the only one.
        source: how the user wrote it, for messages.
        labels: whether to read them; "needed" refuses a file without.
        pixels: False reads the images' shape only.
        multi_label: whether a label is a row of 0 and 1; None: as the file has it.
        classes: the study's, once they are frozen: they keep its spelling.
    Raises: BadData, naming the file and the key, when the file is damaged, a key is missing, a shape or type does not
        fit, or a label is below -1 or beyond the named classes.
    """
    with _opened(path, source=source) as archive:
        prefix = _prefix(archive, split, source=source)
        shape, _ = _header(archive, f"{prefix}images", source=source)
        _check_shape(shape, source=source, key=f"{prefix}images")
        images = _member(archive, f"{prefix}images", source=source) if pixels else None
        labels_N, own, named = None, tuple[str, ...](), False
        there = f"{prefix}labels" in archive.files
        if labels == "needed" or (labels == "if there" and there):
            if not there:
                raise BadData(f"{source}: has no key '{prefix}labels'.",
                              remedy="Add the labels, or use the file as unlabelled images.")
            labels_N = _labels(archive, f"{prefix}labels", source=source, multi_label=multi_label)
            if len(labels_N) != shape[0]:
                raise BadData(f"{source}: {shape[0]} images but {len(labels_N)} labels.",
                              remedy="Write one label per image.")
            own, named = _classes(archive, source=source, columns=labels_N.shape[1] if labels_N.ndim == 2 else 0)
            if labels_N.ndim == 2 and labels_N.shape[1] != len(own):
                raise BadData(f"{source}: '{prefix}labels' has {labels_N.shape[1]} columns, its 'classes' names"
                              f" {len(own)}.", remedy="Write one column for each class.")
            if len(labels_N) and labels_N.ndim == 1 and labels_N.max() >= len(own):
                index = int(labels_N.argmax())
                raise BadData(f"{source}: label {labels_N[index]} of image {index} is out of range, "
                              f"its 'classes' names {len(own)} (0 to {len(own) - 1}).",
                              remedy="Fix the labels or the class names.")
        patients = _patients(archive, f"{prefix}patients", shape[0], source=source)
        ranges = _ranges(archive, f"{prefix}divided_by", source=source)
    spelling = study_spelling(classes)
    return Arrays(source, path.name, shape, images, labels_N, tuple(spelling.get(name, name) for name in own), named,
                  patients, ranges)


def _patients(archive: Any, key: str, number: int, *, source: str) -> tuple[str, ...]:
    """Keys of the patients of so many images; () where the file names none, or none is known."""
    if key not in archive.files:
        return ()
    values = _member(archive, key, source=source)
    if values.shape != (number,) or values.dtype.kind not in "iuU":
        raise BadData(f"{source}: '{key}' must be a whole number or a text for each of {number} images; it has the"
                      f" shape {list(values.shape)} and the type {values.dtype}.",
                      remedy="Write one for each image: equal for images of one patient.")
    found = tuple(patient_key("" if value == -1 else str(value).strip()) for value in values.tolist())
    return found if any(found) else ()


def texts_of_ranges(ranges: Ranges) -> NDArray[np.str_]:
    """What a file of 8-bit images says under `divided_by`: "16 bits=4095"."""
    return np.array([f"{kind}={limit:g}" for kind, limit in ranges])


def _ranges(archive: Any, key: str, *, source: str) -> Ranges:
    """What `texts_of_ranges` has written; () where the file says nothing."""
    if key not in archive.files:
        return ()
    values = _member(archive, key, source=source)
    try:
        if values.ndim != 1 or values.dtype.kind != "U":
            raise ValueError("it is not a list of texts")
        pairs = [text.rpartition("=") for text in values.tolist()]
        found = tuple(sorted((kind, float(limit)) for kind, _, limit in pairs))
        check_ranges(found)
    except ValueError as error:
        raise BadData(f"{source}: '{key}' does not say what values were divided by: {_reason(error)}.",
                      remedy="Write the file again with semisilo split, or leave the key out.") from None
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a silo's part holds, without its pixels."""

    labelled: int
    """Number of images."""
    unlabelled: int
    steps_N: NDArray[np.int64] | None
    """Step of each unlabelled image, from 0; None without steps."""
    rounds_per_step: int


def parts(path: Path, *, source: str) -> Parts | None:
    """What an .npz with labelled and unlabelled images holds; None for one in another layout. A part may be empty.

    Raises: BadData, naming the file and the key, when it is damaged, or its steps do not fit.
    """
    with _opened(path, source=source) as archive:
        if not any(f"{name}_images" in archive.files for name in _PARTS):
            return None
        labelled, unlabelled = (_header(archive, f"{name}_images", source=source)[0][:1]
                                if f"{name}_images" in archive.files else (0,) for name in _PARTS)
        for name, shape in zip(_PARTS, (labelled, unlabelled), strict=True):
            if not shape:
                _check_shape(shape, source=source, key=f"{name}_images")
        steps_N = None
        if "unlabelled_steps" in archive.files:
            steps_N = _whole(archive, "unlabelled_steps", (unlabelled[0],), (0, _MAX_STEP), source=source)
        there = "rounds_per_step" in archive.files
        if there != (steps_N is not None):
            have, lack = ("rounds_per_step", "unlabelled_steps") if there else ("unlabelled_steps", "rounds_per_step")
            raise BadData(f"{source}: has a key '{have}' but no '{lack}'.", remedy="Images in steps need both.")
        rounds = _whole(archive, "rounds_per_step", (), (1, _MAX_STEP), source=source) if there else np.int64(1)
    return Parts(labelled[0], unlabelled[0], steps_N, int(rounds))


def _whole(archive: Any, key: str, shape: tuple[int, ...], limits: tuple[int, int], *, source: str
           ) -> NDArray[np.int64]:
    """A member of whole numbers of that shape within the limits."""
    values = _member(archive, key, source=source)
    if values.shape != shape or values.dtype.kind not in "iu":
        wanted = f"{shape[0]} whole numbers, one per unlabelled image" if shape else "one whole number"
        raise BadData(f"{source}: '{key}' must be {wanted}; it has the shape {list(values.shape)} and the type "
                      f"{values.dtype}.", remedy="Write the file again with semisilo split.")
    if values.size and (int(values.min()) < limits[0] or int(values.max()) > limits[1]):
        raise BadData(f"{source}: '{key}' holds numbers beyond {limits[0]} to {limits[1]}.",
                      remedy="Write the file again with semisilo split.")
    return values.astype(np.int64)


def _opened(path: Path, *, source: str) -> Any:
    try:
        _refuse_foreign(path, source=source)
        archive = np.load(path, allow_pickle=False)
    except PermissionError:
        raise BadData(f"{source}: this user may not read it.", remedy="Let this user read it.") from None
    except _DAMAGED as error:
        raise source_trouble(error, path) or BadData(f"{source}: cannot be read as an .npz file: {_reason(error)}.",
                      remedy="Write it again with numpy.savez, and check the copy.") from None
    return archive


def _refuse_foreign(path: Path, *, source: str) -> None:
    """Refuses what numpy would take for a pickle: its advice, to load it nevertheless, is not ours. And a single array,
    which it would load whole."""
    with path.open("rb") as file:
        start = file.read(len(_NPY))
    if start == _NPY:
        raise BadData(f"{source}: is a single array, not an .npz file.", remedy="Write it with numpy.savez.")
    if start[:2] != b"PK":
        raise BadData(f"{source}: is {'empty' if not start else 'not an .npz file, whatever its name says'}.",
                      remedy="Write it with numpy.savez, and check the copy.")


def _prefix(archive: Any, split: str, *, source: str) -> str:
    there = [name for name in _SPLITS if f"{name}_images" in archive.files]
    if split:
        if split in there:
            return f"{split}_"
        options = ", ".join(f"#{name}" for name in there) or "none; it holds one set, so leave the # part out"
        raise BadData(f"{source}: has no split '{split}'.", remedy=f"Its splits: {options}.")
    if "train" in there:
        return "train_"
    if "images" in archive.files:
        return ""
    if len(there) == 1:
        return f"{there[0]}_"
    if there:
        raise BadData(f"{source}: holds several splits.",
                      remedy=f"Add one of {', '.join(f'#{name}' for name in there)}.")
    keys = ", ".join(archive.files[:8]) or "none"
    raise BadData(f"{source}: has neither a key 'train_images' nor 'images'; its keys: {keys}.",
                  remedy="Store the images under one of these keys, the labels under train_labels or labels.")


def _header(archive: Any, key: str, *, source: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type that a member declares, checked against the bytes that it holds."""
    try:
        name = key if key in archive.zip.namelist() else f"{key}.npy"  # as numpy chooses, where both are there
        with archive.zip.open(name) as stream:
            _check_header(stream.read(len(_NPY) + 6))
            stream.seek(0)
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            else:
                shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        held = archive.zip.getinfo(name).file_size
    except _DAMAGED as error:
        raise source_trouble(error, Path(source)) or BadData(
            f"{source}: key '{key}' cannot be read: {_reason(error)}.",
            remedy="Write the file again with numpy.savez, and check the copy.") from None
    if dtype.hasobject:
        raise BadData(f"{source}: key '{key}' holds Python objects, which are never loaded.",
                      remedy="Store plain numbers of one shape.")
    if math.prod(shape) * dtype.itemsize > held:
        raise BadData(f"{source}: key '{key}' declares more data than the file holds.",
                      remedy="Write the file again with numpy.savez, and check the copy.")
    return shape, dtype


def _check_header(start: bytes) -> None:
    """Raises: ValueError when an array declares more bytes of shape and type than can be: the lengths of version 1 have
    16 bits, those of later ones 32."""
    declared = int.from_bytes(start[8 : 10 if start[6:7] == b"\1" else 12], "little")
    if declared > _LONGEST_HEADER and start.startswith(_NPY):
        raise ValueError(f"its header is said to have {declared} bytes")


def _member(archive: Any, key: str, *, source: str) -> NDArray[Any]:
    shape, dtype = _header(archive, key, source=source)
    check_room(math.prod(shape) * dtype.itemsize, what=f"{source}: the values of key '{key}'",
               remedy="Split the file, or use a machine with more memory.")
    try:
        array: NDArray[Any] = archive[key]
    except _DAMAGED as error:
        raise source_trouble(error, Path(source)) or BadData(
            f"{source}: key '{key}' cannot be read: {_reason(error)}.",
            remedy="Write the file again with numpy.savez, and check the copy.") from None
    return array


def _check_shape(shape: tuple[int, ...], *, source: str, key: str) -> None:
    shown = " x ".join(map(str, shape)) or "a single number"
    remedy = "Store them as N x H x W or N x H x W x 3."
    if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        remedy = "The channels come second; move them last: images.transpose(0, 2, 3, 1)."
    elif len(shape) in (4, 5) and shape[-1] not in (1, 3, 4):
        remedy = "Volumes are not supported; store their slices as N x H x W."
    if len(shape) == 3 and shape[2] in (1, 3, 4):
        raise BadData(f"{source}: '{key}' has the shape {shown}: one colour image, not a stack of images.",
                      remedy="Stack the images: N x H x W x 3.")
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3, 4)):
        raise BadData(f"{source}: '{key}' has the shape {shown}, which is not a stack of images.", remedy=remedy)
    if 0 in shape:
        raise BadData(f"{source}: '{key}' is empty (shape {shown}).", remedy="Add images.")


def _labels(archive: Any, key: str, *, source: str, multi_label: bool | None = False) -> NDArray[np.int64]:
    labels = _member(archive, key, source=source)
    if multi_label or (multi_label is None and labels.ndim == 2 and labels.shape[1] > 1):
        return _rows(labels, key, source=source)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        shown = " x ".join(map(str, labels.shape)) or "a single number"
        raise BadData(f"{source}: '{key}' has the shape {shown}; one class per image is needed (N or N x 1).",
                      remedy='If its images have several labels, set [study] task = "multi_label".')
    if labels.dtype.kind not in "iub":
        raise BadData(f"{source}: '{key}' has the type {labels.dtype}; whole numbers are needed.",
                      remedy="Store the index of each image's class.")
    wrong = np.flatnonzero((labels < -1) | (labels > 65535)) if labels.dtype.kind == "i" else \
        np.flatnonzero(labels > 65535)
    if len(wrong):
        raise BadData(f"{source}: label {labels[wrong[0]]} of image {wrong[0]} is out of range.",
                      remedy="Labels count from 0, at most 65535; -1 says that there is none.")
    return labels.astype(np.int64)


def _rows(labels: NDArray[Any], key: str, *, source: str) -> NDArray[np.int64]:
    """Rows of 1 (shown), 0 (not shown) and -1 (not known), (N, K)."""
    if labels.ndim != 2 or labels.shape[1] < 2:
        shown = " x ".join(map(str, labels.shape)) or "a single number"
        raise BadData(f"{source}: '{key}' has the shape {shown}; where images may have several labels, a row for"
                      " each image and a column for each class is needed (N x K).",
                      remedy='If every image has one class, set [study] task = "single_label".')
    if labels.dtype.kind not in "iub" or (labels.size and not bool(np.isin(labels, (-1, 0, 1)).all())):
        raise BadData(f"{source}: '{key}' holds something other than 0, 1 and -1.",
                      remedy="Write 1 where the image shows the class, 0 where it does not, -1 where it is not known.")
    return labels.astype(np.int64)


def _classes(archive: Any, *, source: str, columns: int = 0) -> tuple[tuple[str, ...], bool]:
    """Class names and whether the file itself gives them.

    Args:
        columns: of labels; 0 where a label is a number.
    """
    if "classes" in archive.files:
        names = _member(archive, "classes", source=source)
        found = tuple(class_name_of(str(name)) for name in names.ravel().tolist())
        if names.ndim != 1 or names.dtype.kind != "U" or len(set(found)) != len(found):
            raise BadData(f"{source}: 'classes' is not a list of different names.",
                          remedy="Store numpy.array([...]) of text, one name per class in label order.")
        return found, True
    if columns:
        return tuple(str(label) for label in range(columns)), False
    highest = -1
    for key in ("labels", *(f"{name}_labels" for name in _SPLITS)):
        if key in archive.files:
            highest = max(highest, int(_labels(archive, key, source=source).max(initial=-1)))
    return tuple(str(label) for label in range(highest + 1)), False


def _reason(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.rstrip(".")
