"""Data sets of torch as images and labels: what is taken, and what is wrong with an item in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from semisilo.common.data.datasets import arrays_of_dataset
from semisilo.common.errors import BadData
from tests.each_of import each_of


class Items(Dataset[Any]):
    """A data set of any items, and perhaps with class names as torchvision's have them."""

    def __init__(self, *items: Any, classes: Sequence[str] = ()) -> None:
        self.items = items
        if classes:
            self.classes = list(classes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=2)


@each_of(("image", "expected"), [
    (GREY, GREY), (COLOUR, COLOUR), (GREY[:, :, None], GREY), (GREY / 255, GREY), (np.moveaxis(COLOUR, 2, 0), COLOUR),
    (torch.from_numpy(GREY), GREY), (torch.from_numpy(GREY)[None], GREY),
    (torch.from_numpy(np.moveaxis(COLOUR, 2, 0) / np.float32(255)), COLOUR), (Image.fromarray(GREY), GREY),
    (Image.fromarray(COLOUR), COLOUR), (Image.fromarray(COLOUR).convert("RGBA"), COLOUR)])
def test_an_image_of_any_usual_kind_has_its_pixels(image: Any, expected: np.ndarray[Any, Any]) -> None:
    found = arrays_of_dataset(Items((image, 0), (image, 1)), where="data")
    assert found.images.dtype == np.uint8
    assert np.array_equal(found.images, np.stack([expected, expected]))
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]


@each_of("label", [2, np.int64(2), torch.tensor(2), torch.tensor([2]), "c"])
def test_a_label_is_a_number_or_a_name(label: Any) -> None:
    names = ("a", "b", "c") if isinstance(label, str) else ()
    found = arrays_of_dataset(Items((GREY, label), classes=names), where="data")
    assert found.labels is not None
    assert found.labels.tolist() == [2]


def test_class_names_are_found_behind_a_subset() -> None:
    whole = Items((GREY, 0), (GREY, 1), (GREY, 1), classes=("mouse", "cat"))
    found = arrays_of_dataset(Subset(Subset(whole, [1, 2]), [0]), where="data")
    assert (found.classes, [] if found.labels is None else found.labels.tolist()) == (("mouse", "cat"), [1])


def test_names_that_no_class_list_gives_are_sorted() -> None:
    found = arrays_of_dataset(Items((GREY, "mouse"), (GREY, "cat"), (GREY, "mouse")), where="data")
    assert (found.classes, [] if found.labels is None else found.labels.tolist()) == (("cat", "mouse"), [1, 0, 1])


def test_dictionaries_of_monais_transforms_are_items() -> None:
    found = arrays_of_dataset(Items({"image": torch.from_numpy(GREY)[None], "label": 1, "path": "x"}), where="data")
    assert np.array_equal(found.images[0], GREY)
    assert found.labels is not None
    assert found.labels.tolist() == [1]
    with pytest.raises(BadData, match="a dictionary without 'image'"):
        arrays_of_dataset(Items({"img": GREY}), where="data")


def test_images_alone_are_taken_where_no_labels_are_needed() -> None:
    for dataset in (Items(GREY, GREY), TensorDataset(torch.zeros(2, 1, 3, 4))):
        assert arrays_of_dataset(dataset, where="unlabelled", labelled=False).labels is None
        with pytest.raises(BadData, match="the items have no labels"):
            arrays_of_dataset(dataset, where="data")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield GREY, 0

    def __len__(self) -> int:
        raise TypeError("no length")


@each_of("row", [[1, 0, -1], (1, 0, -1), np.array([1, 0, -1], np.int8), torch.tensor([1.0, 0.0, -1.0])])
def test_where_images_may_have_several_classes_a_label_is_a_row(row: Any) -> None:
    found = arrays_of_dataset(Items((GREY, row), (GREY, [-1, -1, -1]), classes=("a", "b", "c")), where="data")
    assert found.labels is not None
    assert found.labels.tolist() == [[1, 0, -1], [-1, -1, -1]]
    assert found.classes == ("a", "b", "c")


@each_of(("dataset", "says"), [
    (Items(), "data: the data set is empty"),
    (Endless(), "has no length"),
    (Items((GREY, 0), ValueError("first\nsecond")), "data: item 1: ValueError: first"),
    (Items((GREY, 0), (GREY.T, 0)), r"data: item 1: has the shape \(4, 3\), item 0 \(3, 4\)"),
    (Items((torch.zeros(1, 3, 4) - 0.4, 0)), "its pixels go from -0.4 to -0.4, not from 0 to 1"),
    (Items((torch.full((1, 3, 4), float("nan")), 0)), "its pixels go from nan"),
    (Items((torch.zeros(5, 3, 4), 0)), r"is a Tensor of the shape \(5, 3, 4\)"),
    (Items(("image.png", 0)), "is a str of the shape none"),
    (Items((np.zeros((3, 4), dtype=np.int32), 0)), "its pixels are int32"),
    (Items((GREY, torch.tensor([0, 2]))), r"its label is 'tensor\(\[0, 2\]\)'"),
    (Items((GREY, [0, 1]), (GREY, 1)), "the label of item 1 is 1, not a row of 2 numbers"),
    (Items((GREY, [0, 1]), (GREY, [0, 1, 1])), r"the label of item 1 is \(0, 1, 1\), not a row of 2"),
    (Items((GREY, [0, 1]), classes=("a", "b", "c")), r"the label of item 0 is \(0, 1\), not a row of 3"),
    (Items((GREY, [-1, -1]), (GREY, -1)), "the items have no labels"),
    (Items((GREY, 0), classes=("a", "b", "a")), "two are the same, or one is empty"),
    (Items((GREY, 0), classes=("a", " ")), "two are the same, or one is empty"),
    (Items((GREY, 0.5)), "its label is '0.5'"),
    (Items((GREY, -1)), "the items have no labels"),
    (Items((GREY, -2), (GREY, 0)), "the labels go from -2 to 0"),
    (Items((GREY, 3), classes=("a", "b")), "go from 3 to 3, and there are 2 classes"),
    (Items((GREY, "x"), classes=("a", "b")), "the label 'x' is none of"),
    (Items((GREY, "x"), (GREY, 1)), "some labels are names and some are numbers"),
    (Items((GREY, "x"), (GREY, " ")), "the label of image 1 is ' ', as if there were none"),
    (Items((GREY, 0), (GREY, None)), "item 1 has no label; others have one")])
def test_what_is_wrong_is_said_in_one_line_with_the_item(dataset: Any, says: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        arrays_of_dataset(dataset, where="data")
    assert "\n" not in caught.value.line()
    assert caught.value.remedy
