"""What is handed over from Python as arrays of images and labels: a torch.utils.data.Dataset, or lists and arrays.
torch is imported by whoever hands a data set over, not here.

Shapes: N images, H and W pixels, C channels (1 or 3).

Tests: tests/common/data/test_datasets.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import BadData

__all__ = ["DatasetArrays", "SizedDataset", "array_of", "arrays_of_dataset", "check_names", "plain_labels"]

Label = int | str | tuple[int, ...]
"""A number from 0 or a name; or, where images may have several classes or none, 1, 0 and -1 for each class."""

_MISSING = ("", "nan")


@runtime_checkable
class SizedDataset(Protocol):
    """What is needed of a torch.utils.data.Dataset: a length, and items (image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class DatasetArrays:
    """What a data set holds."""

    images: NDArray[np.uint8]
    """(N, H, W), or (N, H, W, 3) for colour."""
    labels: NDArray[np.int64] | None
    """(N,), indices from 0; (N, K), 1, 0 and -1 for not known, where an item's label is a row; None where items have no
    label."""
    classes: tuple[str, ...]
    """Their names, where the data set has them; () otherwise."""
    by_name: bool = False
    """Whether the items say the names themselves."""


def array_of(values: Any, *, what: str) -> NDArray[Any]:
    """What somebody gave, as an array. Raises: BadData, saying `what` it is, where its items differ in shape."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        shapes = list(dict.fromkeys(str(np.shape(item)) for item in values)) if isinstance(values, (list, tuple)) \
            and all(isinstance(item, np.ndarray) for item in values) else []
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        reason = f"have several shapes: {', '.join(shapes[:5])}" if len(shapes) > 1 else f"are no array: {said}"
        raise BadData(f"{what} {reason}.", remedy="Give items of one shape; images of several sizes as a folder of"
                                                  " files.") from None


def plain_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as texts or whole numbers, where a column of a table (pandas) holds them as Python objects; others as they
    are. Same shape."""
    if labels.dtype.kind == "T" or (labels.dtype.hasobject and all(isinstance(each, str) for each in labels.flat)):
        return labels.astype(str)
    if labels.dtype.hasobject and all(isinstance(each, (int, np.integer)) for each in labels.flat):
        return labels.astype(np.int64)
    return labels


def check_names(names: Iterable[str], *, where: str) -> None:
    """Whether names of classes are such, of each image: an empty one, and "nan", which NumPy makes of a missing value
    among texts, would be one more class.

    Raises: BadData, naming the first image.
    """
    for index, name in enumerate(names):
        if name.strip().casefold() in _MISSING:
            raise BadData(f"{where}: the label of image {index} is {name!r}, as if there were none.",
                          remedy="Leave out images without a label, or give them alone as unlabelled=.")


def arrays_of_dataset(dataset: SizedDataset, *, where: str, labelled: bool = True) -> DatasetArrays:
    """Reads every item of a data set once, in order.

    Args:
        where: the argument that it was given as, for errors.
        labelled: whether items must have labels; otherwise an item may be an image alone.
    Raises: BadData in one line, naming the item: for no items, images of different sizes, pixels that are normalised,
        labels that are none.
    """
    try:
        number = len(dataset)
    except TypeError:
        raise BadData(f"{where}: the data set has no length.",
                      remedy="Give a map-style torch.utils.data.Dataset, with __len__ and __getitem__.") from None
    if number == 0:
        raise BadData(f"{where}: the data set is empty.", remedy="Give one with images.")
    images: list[NDArray[np.uint8]] = []
    labels: list[Label | None] = []
    for index in range(number):
        at = f"{where}: item {index}"
        try:
            item = dataset[index]
        except Exception as error:  # somebody's own code
            reason = str(error).strip().splitlines()
            raise BadData(f"{at}: {type(error).__name__}: {reason[0] if reason else 'no reason given'}",
                          remedy="Fix the data set's __getitem__.") from error
        if isinstance(item, dict):  # of MONAI's dictionary transforms
            if "image" not in item:
                raise BadData(f"{at}: is a dictionary without 'image'.", remedy="Call its keys image and label.")
            item = (item["image"], item["label"]) if "label" in item else (item["image"],)
        image, label = (item[0], item[1]) if isinstance(item, (tuple, list)) and len(item) >= 2 else \
            (item[0] if isinstance(item, (tuple, list)) and len(item) == 1 else item, None)
        images.append(_pixels(image, at))
        labels.append(None if label is None else _label(label, at))
        if images[-1].shape != images[0].shape:
            raise BadData(f"{at}: has the shape {images[-1].shape}, item 0 {images[0].shape}.",
                          remedy="Bring all images to one size and one number of channels, with a Resize and a"
                                 " Grayscale transform for example.")
    pixels = np.stack(images)
    if all(label is None or label == -1 or (isinstance(label, tuple) and set(label) == {-1}) for label in labels):
        if labelled:
            raise BadData(f"{where}: the items have no labels.", remedy="Let __getitem__ return (image, label).")
        return DatasetArrays(pixels, None, ())
    missing = next((index for index, label in enumerate(labels) if label is None), None)
    if missing is not None:
        raise BadData(f"{where}: item {missing} has no label; others have one.",
                      remedy="Give all of them labels, -1 to those that have none.")
    known = [label for label in labels if label is not None]
    return DatasetArrays(pixels, *_numbered(known, _names(dataset), where), isinstance(known[0], str))


def _names(dataset: Any) -> tuple[str, ...]:
    """Class names as torchvision's data sets have them, also behind `Subset`."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", ())
    return tuple(found) if isinstance(found, (list, tuple)) and all(isinstance(each, str) for each in found) else ()


def _numbered(labels: list[Label], names: tuple[str, ...], where: str
              ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise BadData(f"{where}: the data set's classes are {', '.join(map(repr, names[:10]))}: two are the same, or"
                      " one is empty.", remedy="Give every class a name of its own in .classes, or leave it out.")
    if any(isinstance(label, tuple) for label in labels):
        return _rows(labels, names, where)
    texts = [label for label in labels if isinstance(label, str)]
    if texts and len(texts) != len(labels):
        raise BadData(f"{where}: some labels are names and some are numbers.", remedy="Give all of them as one kind.")
    if texts:
        if not names:
            check_names(texts, where=where)
        names = names or tuple(sorted(set(texts)))
        unknown = next((label for label in texts if label not in names), None)
        if unknown is not None:
            raise BadData(f"{where}: the label '{unknown}' is none of the data set's classes.",
                          remedy=f"They are {', '.join(names)}.")
        return np.array([names.index(label) for label in texts], dtype=np.int64), names
    numbers = np.array(labels, dtype=np.int64)
    if numbers.min() < -1 or (names and numbers.max() >= len(names)):
        raise BadData(f"{where}: the labels go from {numbers.min()} to {numbers.max()}"
                      f"{f', and there are {len(names)} classes' if names else ''}.",
                      remedy="Count classes from 0; -1 is an image without a label.")
    return numbers, names


def _rows(labels: list[Label], names: tuple[str, ...], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(N, K) of labels that are rows. Raises: BadData where one is none, or longer or shorter than the first."""
    columns = len(names) or next(len(label) for label in labels if isinstance(label, tuple))
    for index, label in enumerate(labels):
        if not isinstance(label, tuple) or len(label) != columns:
            raise BadData(f"{where}: the label of item {index} is {label!r}, not a row of {columns} numbers.",
                          remedy="Give every image a row of 1, 0 and -1 (not known), a number for each class.")
    return np.array(labels, dtype=np.int64), names


def _label(label: Any, at: str) -> Label:
    if isinstance(label, str):
        return label
    array = np.asarray(label)
    if array.ndim == 1 and array.size > 1 and array.dtype.kind in "iubf" and bool(np.isin(array, (-1, 0, 1)).all()):
        return tuple(int(each) for each in array)
    if array.size != 1 or array.dtype.kind not in "iub":
        raise BadData(f"{at}: its label is {str(label)[:40]!r}, neither a whole number nor a name.",
                      remedy="Give the number of its class, from 0, or its name; where images may have several classes,"
                             " a row of 1, 0 and -1 (not known).")
    return int(array.reshape(()))


def _pixels(image: Any, at: str) -> NDArray[np.uint8]:
    """uint8 (H, W) or (H, W, 3)."""
    is_tensor = hasattr(image, "detach") and hasattr(image, "cpu")
    if is_tensor:
        array = image.detach().cpu().numpy()
    elif hasattr(image, "convert") and hasattr(image, "mode"):  # PIL
        array = np.asarray(image if image.mode in ("L", "RGB") or image.mode.startswith("I;16") or image.mode in "IF"
                           else image.convert("RGB"))
    else:
        array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] in (1, 3) and (is_tensor or array.shape[2] not in (1, 3)):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or 0 in array.shape:
        raise BadData(f"{at}: its image is a {type(image).__name__} of the shape {tuple(np.shape(image)) or 'none'}.",
                      remedy="Give a PIL image, a tensor (C, H, W), or an array (H, W) or (H, W, 3).")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "f":
        raise BadData(f"{at}: its pixels are {array.dtype}.", remedy="Give uint8, or fractions from 0 to 1.")
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
        raise BadData(f"{at}: its pixels go from {array.min():.3g} to {array.max():.3g}, not from 0 to 1.",
                      remedy="Leave out Normalize and random transforms: semisilo normalises and augments itself.")
    return np.ascontiguousarray(np.rint(array * 255).astype(np.uint8))
