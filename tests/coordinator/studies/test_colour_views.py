"""Whether colour tells classes apart, and what strong views then leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration
from semisilo.coordinator.export.card import settings_shown
from semisilo.coordinator.studies.colour_views import COLOUR_OPERATIONS, left_out_views, told_apart
from semisilo.coordinator.studies.images import read_study_data
from semisilo.coordinator.studies.study_file import StudyConfig, config_from_dict


def _images(*, coloured: bool, channels: int = 3, per_class: int = 6, seed: int = 1) -> ImageSet:
    """Noise of three classes; where coloured, each class has more of one channel."""
    draws = np.random.default_rng(seed)
    labels_N = np.repeat(np.arange(3), per_class)
    images_NCHW = draws.integers(60, 120, (len(labels_N), channels, 8, 8))
    if coloured:
        images_NCHW[np.arange(len(labels_N)), labels_N % channels] += 60
    return ImageSet(torch.from_numpy(images_NCHW.astype(np.uint8)), torch.from_numpy(labels_N),
                    tuple(map(str, range(len(labels_N)))))


def _config(**augmentation: object) -> StudyConfig:
    return config_from_dict({"study": {"rounds": 1}, "model": {"name": "small_cnn"}, "method": {"name": "semifl"},
                             "data": {"image": {"size": 8, "channels": 3}, "labelled": "labelled.npz",
                                      "validation_share": "0%"}, "augmentation": augmentation}, where="study")


def test_nearest_means_are_counted_with_each_image_left_out_of_its_own() -> None:
    """By hand: means 0.5 and 4; of the second class the image at 2 is nearer to the first without itself."""
    features_nF = np.array([[0.0], [1.0], [2.0], [6.0]])
    right, chance, error = told_apart(features_nF, np.array([0, 0, 1, 1]))
    # Distances in one unit: 0 has |0 - 1| = 1 to its own and 4; 1 has 1 and 3; 2 has |2 - 6| = 4 and 1.5; 6 has 4, 5.5.
    assert right == pytest.approx(0.75)
    assert chance == 0.5
    assert error == pytest.approx(np.sqrt(2 * 0.25 / 2) / 2)


def test_a_rare_class_counts_as_much_as_a_frequent_one_and_a_single_image_not_at_all() -> None:
    features_nF = np.array([[0.0]] * 8 + [[5.0], [-0.1]] + [[9.0]])
    right, chance, _ = told_apart(features_nF, np.array([0] * 8 + [1, 1] + [2]))
    assert (right, chance) == (pytest.approx(0.5), 0.5)


def test_one_class_tells_nothing() -> None:
    assert told_apart(np.zeros((3, 1)), np.array([4, 4, 4])) == (0.0, 1.0, 0.0)


def test_where_colour_tells_the_class_views_leave_colours_alone_and_it_is_said_why() -> None:
    left_out, why = left_out_views(_images(coloured=True), num_classes=3)
    assert left_out == COLOUR_OPERATIONS
    assert why == ("mean and spread of its colours alone give 100 % of the labelled images the right class, where"
                   " guessing gives 33 %")


@pytest.mark.parametrize("images", [
    pytest.param(_images(coloured=False), id="noise"),
    pytest.param(_images(coloured=True, channels=1), id="one channel"),
    pytest.param(None, id="no labelled images"),
    pytest.param(_images(coloured=True, per_class=1), id="one image a class"),
])
def test_elsewhere_nothing_is_left_out(images: ImageSet | None) -> None:
    assert left_out_views(images, num_classes=3) == ((), "")


def test_grey_images_repeated_to_three_channels_have_no_colour() -> None:
    grey = _images(coloured=False, channels=1)
    brighter_NCHW = (grey.images_NCHW + 40 * grey.labels_N[:, None, None, None]).to(torch.uint8)  # type: ignore[index]
    images = ImageSet(brighter_NCHW.expand(-1, 3, -1, -1).clone(), grey.labels_N, grey.names)
    assert left_out_views(images, num_classes=3) == ((), "")


@pytest.mark.parametrize(("augmentation", "expected"), [
    ({}, ()),
    ({"without": "auto"}, COLOUR_OPERATIONS),
    ({"without": []}, ()),
    ({"without": ["Invert"]}, ("Invert",)),
    ({"policy": "semifl_official", "without": "auto"}, ()),
    ({"policy": "none", "without": "auto"}, ()),
])
def test_a_study_decides_once_and_tasks_get_what_was_decided(tmp_path: Path, augmentation: dict[str, object],
                                                             expected: tuple[str, ...]) -> None:
    images = _images(coloured=True)
    assert images.labels_N is not None
    np.savez(tmp_path / "labelled.npz", train_images=images.images_NCHW.permute(0, 2, 3, 1).numpy(),
             train_labels=images.labels_N.numpy())
    config = _config(**augmentation)
    first = read_study_data(config, folder=tmp_path, frozen=None).frozen
    assert config.augmentation.decided(first.left_out_views).without == expected
    again = read_study_data(config, folder=tmp_path, frozen=first).frozen
    assert again == first


def test_what_is_frozen_stays_whatever_the_images_have_become(tmp_path: Path) -> None:
    def written(images: ImageSet) -> None:
        assert images.labels_N is not None
        np.savez(tmp_path / "labelled.npz", train_images=images.images_NCHW.permute(0, 2, 3, 1).numpy(),
                 train_labels=images.labels_N.numpy())

    config = _config(without="auto")
    written(_images(coloured=True))
    first = read_study_data(config, folder=tmp_path, frozen=None).frozen
    written(_images(coloured=False))
    assert read_study_data(config, folder=tmp_path, frozen=None).frozen.left_out_views == ()
    again = read_study_data(config, folder=tmp_path, frozen=first, may_have_changed=True)
    assert again.frozen.left_out_views == COLOUR_OPERATIONS


def test_the_model_card_has_the_list_that_auto_has_come_to() -> None:
    shown = settings_shown({"augmentation": {"policy": "small", "without": "auto"}}, left_out_views=("Invert",))
    assert shown["augmentation"]["without"] == ["Invert"]


def test_another_word_than_auto_is_refused_with_the_list_that_was_meant() -> None:
    with pytest.raises(BadConfiguration, match=r'give "auto" or a list of operations, \["Invert"\]'):
        _config(without="Invert")
