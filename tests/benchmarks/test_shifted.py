"""Rare classes and other scanners: how images are dealt and shown, and that the page follows from what was run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.learning import shifted
from benchmarks.learning.shifted import EACH, SEEN, TASKS, Scanner, Task, deal, images_of, seen_by

TASK = Task(classes=((1, 2), (0,)), labels=(5, 2), dirichlet=5.0)


def _images(count: int) -> dict[str, NDArray[Any]]:
    """Of three kinds; every pixel of an image holds its number."""
    number_N = np.arange(count)
    part = {"images": np.broadcast_to(number_N[:, None, None, None], (count, 2, 2, 3)).astype(np.uint8),
            "labels": (number_N % 3)[:, None]}
    return {f"{name}_{what}": array for name in ("train", "test") for what, array in part.items()}


def test_a_scanner_multiplies_bends_and_adds_noise() -> None:
    images_NHWC = np.full((2, 1, 1, 3), 51, dtype=np.uint8)
    shown = seen_by(Scanner((1.0, 2.0, 10.0), 2.0, 0.0), images_NHWC, np.random.default_rng(1))
    assert shown[0, 0, 0].tolist() == [round(255 * 0.2 ** 2), round(255 * 0.4 ** 2), 255]
    noisy = seen_by(Scanner((1.0, 1.0, 1.0), 1.0, 0.1), np.full((500, 4, 4, 3), 128, dtype=np.uint8),
                    np.random.default_rng(1))
    assert noisy.std() / 255 == pytest.approx(0.1, rel=0.05)


def test_the_hub_has_its_labels_and_nobody_else_those_images() -> None:
    dealt = deal(TASK, _images(60), seen="as the hub", seed=1)
    assert np.bincount(dealt.labelled[1]).tolist() == [5, 2]
    hub, silos = (set(part[0][:, 0, 0, 0].tolist()) for part in (dealt.labelled, dealt.unlabelled))
    assert not hub & silos
    assert len(hub | silos) == 60
    for images_NHWC, labels_N in (dealt.labelled, dealt.unlabelled, dealt.test):
        assert ((images_NHWC[:, 0, 0, 0] % 3 == 0) == (labels_N == 1)).all()


def test_only_what_is_not_the_hubs_is_seen_by_other_scanners_and_a_seed_deals_the_same_again() -> None:
    plain, changed, others = (deal(TASK, _images(60), seen=seen, seed=2) for seen in SEEN if seen != EACH)
    assert np.array_equal(plain.labelled[0], changed.labelled[0])
    assert np.array_equal(plain.unlabelled[1], changed.unlabelled[1])
    same_N = (plain.unlabelled[0] == changed.unlabelled[0]).all(axis=(1, 2, 3))
    assert 0 < same_N.mean() < 0.6
    assert (others.unlabelled[0] != plain.unlabelled[0]).any(axis=(1, 2, 3)).mean() > 0.9
    again = deal(TASK, _images(60), seen="four scanners", seed=2)
    assert np.array_equal(changed.unlabelled[0], again.unlabelled[0])
    assert np.array_equal(changed.test[0], again.test[0])


def test_a_silo_whose_scanner_is_its_own_has_what_it_has_with_the_hubs_seen_by_it() -> None:
    plain, each = (deal(TASK, _images(120), seen=seen, seed=2) for seen in ("as the hub", EACH))
    assert np.array_equal(plain.unlabelled[0], each.unlabelled[0])
    assert len(each.sites) == len(SEEN[EACH]) == 5
    number_of = {tuple(image[0, 0]): label for image, label in zip(*plain.unlabelled, strict=True)}
    hubs, *others = each.sites
    assert all(number_of[tuple(image[0, 0])] == label for image, label in zip(*hubs, strict=True)), "as they are"
    assert sum(len(labels) for _, labels in each.sites) > 60
    for images_NHWC, _ in others:
        assert sum(tuple(image[0, 0]) in number_of for image in images_NHWC) < 0.2 * len(images_NHWC)
    assert (each.test[0] != plain.test[0]).any()


def test_classes_that_are_thinned_out_are_as_frequent_as_their_labels_and_tested_alike() -> None:
    number_N = np.arange(8000) % 4
    images = {f"{part}_{what}": array for part in ("train", "test")
              for what, array in (("images", np.zeros((8000, 2, 2), dtype=np.uint8)), ("labels", number_N))}
    found = images_of(Task(classes=((1, 2), (0,)), labels=(70, 10), dirichlet=5.0, thinned=True), images, seed=1)
    assert found["train_images"].shape[1:] == (2, 2, 3)
    kept = np.bincount(found["train_labels"], minlength=4)
    assert (kept[1] + kept[2], kept[0], kept[3]) == (70 + int(1.3 * 1500 * 70 / 80), 10 + int(1.3 * 1500 * 10 / 80), 0)
    tested = np.bincount(found["test_labels"], minlength=4)
    assert (tested[1] + tested[2], tested[0], tested[3]) == (300, 300, 0)


def test_the_page_follows_from_what_was_run(tmp_path: Path) -> None:
    assert {row["task"] for row in shifted.lines()} <= set(TASKS)
    shutil.copy(shifted.RESULTS, tmp_path)
    shifted.write_page(tmp_path)
    assert (tmp_path / "SHIFTED.md").read_text() == shifted.PAGE.read_text()
